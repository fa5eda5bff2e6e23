// SPDX-License-Identifier: Apache-2.0
// AdamW rounds what is bf16 by the element's place in the whole parameter, on devices too: shards
// that begin anywhere have the bits of a model that is not sharded.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace tessera {
namespace {

constexpr int64_t kIn = 5, kOut = 9, kRows = 4;
constexpr int kSteps = 3;

// Sizes that neither two ranks nor four divide.
class Net final : public nn::Layer<Net> {
 public:
  void visit(nn::Visitor& v) override {
    v.child("narrow", narrow);
    v.child("wide", wide);
    v.child("columns", columns);
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    return cast(narrow(x), DType::f32) + wide(cast(x, DType::f32)) + cast(columns(x), DType::f32);
  }
  nn::Linear narrow{kIn, kOut, nn::Init::normal(1), DType::bf16, true};
  nn::Linear wide{kIn, kOut, nn::Init::normal(1), DType::f32, true};
  nn::Linear columns{kIn, kOut, nn::Init::normal(1), DType::bf16};  // sharded over its inputs
};

// Small whole numbers, so that a gradient is exact in whatever order ranks add its parts up.
Tensor numbers(const Shape& shape, int salt, DType dtype) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>((7 * i + static_cast<size_t>(salt)) % 5) - 2;
  return from_values(values, shape, dtype);
}

// All parameters and moments after some steps, each with its name.
std::vector<std::pair<std::string, std::vector<double>>> trained(
    Net& net, const std::function<Tensor(const Tensor&)>& placed) {
  optim::AdamW optimizer(nn::named_parameters(net),
                         {.lr = 0.01, .state_dtype = DType::bf16, .seed = 3});
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = placed(numbers({kRows, kIn}, step, DType::bf16)),
                 weights = placed(numbers({kRows, kOut}, step + 3, DType::f32));
    backward(sum(net(x) * weights));
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<std::pair<std::string, std::vector<double>>> all;
  const auto add = [&](const std::string& name, const Tensor& t) {
    all.emplace_back(name, to_device(t.is_distributed() ? full_tensor(t) : t, kCpu).values());
  };
  for (const auto& p : nn::named_parameters(net)) add(p.name, p.tensor);
  for (const auto& s : optimizer.state().tensors) add(s.name, s.tensor);
  return all;
}

TEST(RoundingCuda, ShardsAreRoundedAsTheWhole) {
  const int devices = std::min(Process::get().cuda().device_count(), 4);
  test::on_ranks(devices, [&](World& world) {
    const Device device = cuda(world.rank());
    const Mesh mesh = Mesh::make({{"dp", devices}});
    Net whole, sharded;
    nn::initialize(whole, 7, device);
    const auto expected = trained(whole, [&](const Tensor& t) { return to_device(t, device); });
    const auto dim = [](const std::string& name, const Tensor&) {
      return name.starts_with("columns") ? 1 : 0;
    };
    nn::fully_shard(sharded, mesh, {{"dp"}}, {.dim = dim});
    nn::initialize(sharded, 7, nn::laid_out(sharded, mesh), device);
    const auto found = trained(sharded, [&](const Tensor& t) {
      return distribute(to_device(t, device), Layout::of(mesh, {Shard(0)}));
    });
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, expected[i].first);
      EXPECT_EQ(found[i].second, expected[i].second) << expected[i].first;
    }
  });
}

}  // namespace
}  // namespace tessera

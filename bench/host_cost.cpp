// SPDX-License-Identifier: Apache-2.0
// Host cost: what an op call costs where the arithmetic is next to nothing, and a whole training
// step of a tiny Llama. bench/peers/host_cost.py measures the same in PyTorch under the same names.
#include "tessera/bench/support.h"
#include "tessera/core/process.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parameters.h"

namespace tessera::bench {
namespace {

class Report {
 public:
  explicit Report(const std::string& json) : lines_(json) {}
  void write(std::string_view name, const Json& shape, double us) {
    if (us < 100) fmt::print("{:46} {:9.1f} ns\n", name, us * 1e3);
    else fmt::print("{:46} {:9.3f} ms\n", name, us / 1e3);
    std::fflush(stdout);
    lines_.write({{"name", name}, {"shape", shape}, {"dtype", "float32"}, {"time_us", us}});
  }

 private:
  Lines lines_;
};

void small_ops(Report& report, Device device) {
  constexpr int kChain = 100;
  const auto random = [device](const Shape& shape, uint64_t stream) {
    return normal(shape, {7, stream}, 0, 1, DType::f32, device);
  };
  const Tensor a = random({8}, 1), b = random({8}, 2), one = ones({8}, DType::f32, device);
  Tensor w = random({8}, 3), v = random({8}, 4);
  w.set_requires_grad();
  v.set_requires_grad();
  {
    const NoGrad guard;
    report.write("add_no_grad", {8}, median_us([&] { (void)(a + b); }));
  }
  report.write("add_grad_recorded", {8}, median_us([&] { (void)(w + b); }));
  const auto chain = [&](const Tensor& other) {
    Tensor x = w;
    for (int i = 0; i < kChain / 2; ++i) x = (x + other) * other;
    (void)grad({x}, {w}, {.grad_outputs = {one}});
  };
  report.write("chain_forward_backward_per_op", {8}, median_us([&] { chain(b); }) / kChain);
  report.write("chain_forward_backward_per_op_both_need_grad", {8},
               median_us([&] { chain(v); }) / kChain);
  const Tensor m = random({4, 4}, 5), n = random({4, 4}, 6);
  const NoGrad guard;
  report.write("matmul_4x4", {4, 4}, median_us([&] { (void)matmul(m, n); }));
}

void small_step(Report& report, Device device) {
  constexpr int64_t kLength = 64;
  llama3::Model model({.dim = 64,
                       .n_layers = 4,
                       .n_heads = 4,
                       .n_kv_heads = 4,
                       .ffn_dim = 192,
                       .vocab_size = 258,
                       .max_seq_len = kLength});
  nn::initialize(model, 7, device);
  optim::AdamW optimizer(nn::parameters(model),
                         {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
  const models::Metadata metadata = model.metadata(kLength);
  std::vector<double> bytes(kLength + 1);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<double>(i * 37 % 256);
  const std::span<const double> all = bytes;
  const auto row = [&](std::span<const double> values) {
    return to_device(from_values(values, {1, kLength}, DType::i64), device);  // (B, T)
  };
  const Tensor tokens = row(all.first(kLength)), targets = row(all.last(kLength));

  const auto step = [&] {
    optimizer.zero_grad();
    const CrossEntropyResult result = cross_entropy(model.forward(tokens, metadata), targets);
    backward(result.sum * (1 / result.count.item()));
    const NoGrad guard;
    optimizer.step({}, optim::grad_norm(optimizer.parameters(), 1).factor);
  };
  report.write("train_step_dim64_4layers_64tokens", {1, kLength}, median_us(step, 9, 0.3, device));
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const int threads = arguments.number("--threads", Process::get().cores());
    const Device device = arguments.device();
    bench::Report report(arguments.text("--json"));
    arguments.finish();
    Session session({.threads = threads});
    fmt::print("host cost on {}, threads {}\n", concat(device), threads);
    bench::small_ops(report, device);
    bench::small_step(report, device);
  });
}

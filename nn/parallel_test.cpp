// SPDX-License-Identifier: Apache-2.0
// A transformer block and an MLP, forward and backward in f64, over every way to give 8 ranks to
// data, context and tensor axes: equal to one rank, with sizes that no axis divides. Gradients of
// what is replicated are the same bits on every replica.
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

namespace tessera::nn {
namespace {

constexpr int64_t kBatch = 5, kLength = 11, kHeads = 8, kKvHeads = 4, kHeadDim = 4,
                  kDim = kHeads * kHeadDim, kHidden = 20;

class TransformerBlock final : public Layer<TransformerBlock> {
 public:
  TransformerBlock()
      : attention({.dim = kDim,
                   .n_heads = kHeads,
                   .n_kv_heads = kKvHeads,
                   .head_dim = kHeadDim,
                   .input = Init::normal(0.2),
                   .dtype = DType::f64}),
        feed_forward(
            {.dim = kDim, .hidden = kHidden, .gate = Init::normal(0.2), .dtype = DType::f64}),
        attention_norm(kDim, 1e-5, DType::f64),
        ffn_norm(kDim, 1e-5, DType::f64) {}
  void visit(Visitor& v) override {
    v.child("attention", attention);
    v.child("feed_forward", feed_forward);
    v.child("attention_norm", attention_norm);
    v.child("ffn_norm", ffn_norm);
  }
  [[nodiscard]] Tensor forward(const Tensor& x, const AttentionMetadata& metadata) const {
    const Tensor h = x + attention(attention_norm(x), metadata);
    return h + feed_forward(ffn_norm(h));
  }
  Attention attention;
  FeedForward feed_forward;
  RmsNorm attention_norm, ffn_norm;
};

// As in GPT-2: biases everywhere, positions not rotary.
class BlockWithBiases final : public Layer<BlockWithBiases> {
 public:
  BlockWithBiases()
      : attention({.dim = kDim,
                   .n_heads = kHeads,
                   .n_kv_heads = kHeads,
                   .head_dim = kHeadDim,
                   .input = Init::normal(0.2),
                   .qkv_bias = true,
                   .output_bias = true,
                   .rotary = false,
                   .dtype = DType::f64}),
        feed_forward(
            {.dim = kDim, .hidden = kHidden, .input = Init::normal(0.2), .dtype = DType::f64}),
        norm(kDim, 1e-5, DType::f64) {}
  void visit(Visitor& v) override {
    v.child("attention", attention);
    v.child("feed_forward", feed_forward);
    v.child("norm", norm);
  }
  [[nodiscard]] Tensor forward(const Tensor& x, const AttentionMetadata& metadata) const {
    return feed_forward(norm(x + attention(x, metadata)));
  }
  Attention attention;
  Mlp feed_forward;
  LayerNorm norm;
};

// Column-parallel into a block, row-parallel out of it, as torchtitan's plan.
Placement tensor_parallel(const std::string& name) {
  for (const char* column : {"wq", "wk", "wv", "w1", "w3"}) {
    if (name.find(std::string(column) + '.') != name.npos) return Shard(0);
  }
  for (const char* row : {"wo", "w2"}) {
    if (name.find(std::string(row) + ".weight") != name.npos) return Shard(1);
  }
  return Replicate();
}

AttentionMetadata positions() {
  auto metadata = causal_metadata(kLength, kHeadDim, 10000);
  metadata.cos = cast(metadata.cos, DType::f64);
  metadata.sin = cast(metadata.sin, DType::f64);
  return metadata;
}

Tensor random(const Shape& shape, uint64_t stream) {
  return normal(shape, RngKey{11, stream}, 0, 1, DType::f64);
}

struct Result {
  std::vector<double> output, input_gradient;
  std::vector<std::vector<double>> gradients;
};

Result finish(const Tensor& x, const Tensor& y, Module& module,
              const std::function<std::vector<double>(const Tensor&)>& read) {
  backward(sum(y * y));
  Result r{read(y), read(x.grad()), {}};
  for (auto& p : named_parameters(module)) r.gradients.push_back(read(p.tensor.grad()));
  return r;
}

template <class M> Tensor run_module(const M& module, const Tensor& x, const AttentionMetadata& m) {
  if constexpr (std::is_same_v<M, FeedForward>) return module(x);
  else return module(x, m);
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(a[i] - b[i]) / (1 + std::abs(b[i])));
  return most;
}

// Whether the replicas of a tensor hold the same bits.
bool replicas_agree(const Tensor& x) {
  const Mesh mesh = layout_of(x).mesh();
  const Tensor part = contiguous(local(x));
  for (int a = 0; a < mesh.axes(); ++a) {
    if (layout_of(x).placement(a).kind != Placement::Kind::replicate) continue;
    const Tensor all = empty({part.numel() * mesh.size(a)}, part.dtype());
    mesh.group(a).all_gather(part, all)->wait();
    const size_t bytes = static_cast<size_t>(part.numel() * item_size(part.dtype()));
    for (int r = 0; r < mesh.size(a); ++r) {
      const auto* other =
          static_cast<const std::byte*>(all.raw_data()) + static_cast<size_t>(r) * bytes;
      if (bytes > 0 && std::memcmp(other, part.raw_data(), bytes) != 0) return false;
    }
  }
  return true;
}

void distribute_parameters(Module& module, Mesh mesh) {
  struct Plan final : Visitor {
    Mesh mesh;
    void on_parameter(const std::string& path, Tensor& p, const Init&) override {
      p = distribute(p.detach(),
                     Layout::of(mesh, {Replicate(), Replicate(), tensor_parallel(path)}));
      p.set_requires_grad();
    }
  } plan;
  plan.mesh = mesh;
  plan.walk(module);
}

template <class Make> void equal_on_every_mesh(Make make) {
  Result reference;
  {
    const Session session;
    const auto module = make();
    initialize(*module, 3);
    Tensor x = random({kBatch, kLength, kDim}, 1);
    x.set_requires_grad();
    const auto metadata = positions();
    reference = finish(x, run_module(*module, x, metadata), *module,
                       [](const Tensor& t) { return t.values(); });
  }
  int meshes = 0;
  for (int dp : {1, 2, 4, 8}) {
    for (int cp : {1, 2, 4, 8}) {
      if (8 % (dp * cp) != 0) continue;
      const int tp = 8 / (dp * cp);
      ++meshes;
      std::atomic<int> disagreeing{0};
      double worst = 0;
      run_ranks(8, [&](World& world) {
        const Mesh mesh = Mesh::make({{"dp", dp}, {"cp", cp}, {"tp", tp}});
        const auto module = make();
        initialize(*module, 3);
        distribute_parameters(*module, mesh);
        Tensor x = distribute(random({kBatch, kLength, kDim}, 1),
                              Layout::of(mesh, {Shard(0), Shard(1), Replicate()}));
        x.set_requires_grad();
        auto metadata = positions();
        const Layout by_position = Layout::of(mesh, {Replicate(), Shard(0), Replicate()});
        metadata.cos = distribute(metadata.cos, by_position);
        metadata.sin = distribute(metadata.sin, by_position);
        const AutoRedistribute wish;
        const Result got = finish(x, run_module(*module, x, metadata), *module,
                                  [](const Tensor& t) { return full_tensor(t).values(); });
        for (auto& p : named_parameters(*module)) {
          const Tensor g = redistribute(p.tensor.grad(), layout_of(p.tensor));
          if (!replicas_agree(g)) ++disagreeing;
        }
        if (world.rank() != 0) return;
        worst = std::max(difference(got.output, reference.output),
                         difference(got.input_gradient, reference.input_gradient));
        for (size_t i = 0; i < reference.gradients.size(); ++i)
          worst = std::max(worst, difference(got.gradients[i], reference.gradients[i]));
      });
      EXPECT_LT(worst, 1e-10) << "dp " << dp << ", cp " << cp << ", tp " << tp;
      EXPECT_EQ(disagreeing, 0) << "dp " << dp << ", cp " << cp << ", tp " << tp;
    }
  }
  std::cout << meshes << " meshes of 8 ranks\n";
}

TEST(Parallel, TransformerBlockEqualsOneRankOnEveryMesh) {
  equal_on_every_mesh([] { return std::make_unique<TransformerBlock>(); });
}

TEST(Parallel, BlockWithBiasesEqualsOneRankOnEveryMesh) {
  equal_on_every_mesh([] { return std::make_unique<BlockWithBiases>(); });
}

TEST(Parallel, FeedForwardEqualsOneRankOnEveryMesh) {
  equal_on_every_mesh([] {
    return std::make_unique<FeedForward>(FeedForward::Config{
        .dim = kDim, .hidden = kHidden, .gate = Init::normal(0.2), .dtype = DType::f64});
  });
}

TEST(Parallel, AModuleOutlivesItsWorldWhenItIsInitialisedAnew) {
  FeedForward module({.dim = kDim, .hidden = kHidden, .dtype = DType::f64});
  run_fake(4, 0, [&](World&) {
    const Mesh mesh = Mesh::make({{"dp", 4}});
    initialize(module, 3,
               [&](const std::string&, const TensorMeta&) { return Layout::of(mesh, {Shard(0)}); });
  });
  const Session session;
  std::vector<NamedParameter> values = named_parameters(module);
  for (NamedParameter& p : values) p.tensor = random(p.tensor.shape(), 1);
  EXPECT_THROW(load(module, values), UsageError);
  initialize(module, 3);
  for (const NamedParameter& p : named_parameters(module)) EXPECT_FALSE(p.tensor.is_distributed());
  load(module, values);
}

// Gradients on 4 ranks, batch and heads cut, of a block wrapped by `wrap`.
std::vector<std::vector<double>> wrapped(const std::function<void(TransformerBlock&)>& wrap) {
  std::vector<std::vector<double>> result;
  run_ranks(4, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"cp", 1}, {"tp", 2}});
    TransformerBlock block;
    initialize(block, 3);
    distribute_parameters(block, mesh);
    wrap(block);
    Tensor x = distribute(random({kBatch, kLength, kDim}, 1),
                          Layout::of(mesh, {Shard(0), Replicate(), Replicate()}));
    x.set_requires_grad();
    auto metadata = positions();
    const Layout everywhere = Layout::replicated(mesh);
    metadata.cos = distribute(metadata.cos, everywhere);
    metadata.sin = distribute(metadata.sin, everywhere);
    const AutoRedistribute wish;
    const Result got = finish(x, block(x, metadata), block,
                              [](const Tensor& t) { return full_tensor(t).values(); });
    if (world.rank() != 0) return;
    result = got.gradients;
    result.push_back(got.input_gradient);
    result.push_back(got.output);
  });
  return result;
}

TEST(Parallel, CheckpointsGiveTheSameBitsOnRanks) {
  using Mode = ActivationCheckpointConfig::Mode;
  for (const bool mixed : {false, true}) {
    const auto run = [&](const ActivationCheckpointConfig& config) {
      return wrapped([&](TransformerBlock& block) {
        Module* const unit = &block;
        apply_activation_checkpoint({&unit, 1}, config);
        if (mixed) mixed_precision(block, {}, DType::f64);
      });
    };
    const auto expected = run({});
    EXPECT_TRUE(run({.mode = Mode::full}) == expected);
    EXPECT_TRUE(run({.mode = Mode::selective}) == expected);
    EXPECT_TRUE(run({.mode = Mode::memory_budget, .memory_budget = 0.3}) == expected);
  }
}

// What each rank reduces in backward, when the ranks use different parts of what they computed.
TEST(Parallel, RanksThatUseDifferentPartsReduceTheSameInTheSameOrder) {
  std::array<std::vector<double>, 2> gradients;
  run_ranks(2, [&](World& world) {
    ProcessGroup& group = world.group();
    const auto reduced = [&group](const Tensor& w) {
      return apply({"bucket", [](FunctionContext&, Tensors in) { return TensorList{copy(in[0])}; },
                    [&group, like = w.detach()](FunctionContext&, const Grads& dy) {
                      const Tensor g = dy[0].defined() ? copy(dy[0]) : zeros_like(like);
                      group.all_reduce(g)->wait();
                      return Grads{g};
                    },
                    true},
                   {w})[0];
    };
    std::vector<Tensor> w, whole;
    for (int64_t n = 1; n <= 4; ++n) {  // of different sizes, so that another order is an error
      w.push_back(ones({n}).set_requires_grad());
      whole.push_back(reduced(w.back()));
    }
    Tensor y = sum(whole[0]);
    for (const size_t i : world.rank() == 0 ? std::array{1, 2} : std::array{2, 3})
      y = y + sum(whole[i]);
    backward(reaching({y}, whole)[0]);
    for (const Tensor& t : w)
      gradients[static_cast<size_t>(world.rank())].push_back(t.grad().values()[0]);
  });
  for (const auto& g : gradients) EXPECT_EQ(g, (std::vector<double>{2, 1, 2, 1}));
}

}  // namespace
}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// What hangs on modules: hooks, checkpoints, parameters in another precision, buffers, freezing,
// and weights that are multiplied as one. None of it changes a path or a handle.
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/fused_linear.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::nn {
namespace {

constexpr int64_t kDim = 16, kHeads = 4, kT = 6;

// A block of a transformer with a buffer that does nothing but be one.
class Block final : public Layer<Block> {
 public:
  explicit Block(bool fused = true)
      : norm(kDim, 1e-5),
        attention({.dim = kDim,
                   .n_heads = kHeads,
                   .n_kv_heads = 2,
                   .head_dim = kDim / kHeads,
                   .fused_qkv = fused}),
        feed_forward({.dim = kDim, .hidden = 24}),
        scale(empty({kDim}, DType::f32, kMeta)),
        scratch(empty({2}, DType::i64, kMeta)) {}
  void visit(Visitor& v) override {
    v.child("norm", norm);
    v.child("attention", attention);
    v.child("feed_forward", feed_forward);
    v.buffer("scale", scale, Init::constant(0.5));
    v.buffer("scratch", scratch, Init::constant(7), false);
  }
  [[nodiscard]] Tensor forward(const Tensor& x, const AttentionMetadata& metadata) const {
    const Tensor h = x + attention(norm(x), metadata);
    return h + feed_forward(h) * cast(scale, h.dtype());
  }
  RmsNorm norm;
  Attention attention;
  FeedForward feed_forward;
  Tensor scale, scratch;
};

class Net final : public Layer<Net> {
 public:
  explicit Net(bool fused = true) : head(kDim, 11, Init::normal(0.3)) {
    for (int i = 0; i < 3; ++i) blocks.emplace_back(fused);
  }
  void visit(Visitor& v) override {
    v.children("blocks", blocks);
    v.child("head", head);
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    const AttentionMetadata metadata = causal_metadata(kT, kDim / kHeads, 1e4);
    Tensor h = x;
    for (const Block& block : blocks) h = block(h, metadata);
    return head(h);
  }
  [[nodiscard]] std::vector<Module*> units() {
    std::vector<Module*> all;
    for (Block& block : blocks) all.push_back(&block);
    return all;
  }
  ModuleList<Block> blocks;
  Linear head;
};

Tensor input() { return normal({2, kT, kDim}, {5, 5}).set_requires_grad(); }

std::vector<std::vector<double>> gradients(Module& net, const Tensor& x) {
  std::vector<std::vector<double>> all{x.grad().values()};
  for (const auto& p : named_parameters(net)) all.push_back(p.tensor.grad().values());
  return all;
}

class Wrapping : public testing::Test {
 protected:
  Session session_;
};

TEST_F(Wrapping, PathsAndHandlesStay) {
  Net net;
  const auto names = [&] {
    std::vector<std::string> list;
    for (const auto& p : named_parameters(net)) list.push_back(p.name);
    for (const auto& m : named_modules(net)) list.push_back(m.name);
    return list;
  };
  const auto before = names();
  const Tensor handle = net.blocks[1].attention.wk.weight;
  apply_activation_checkpoint(net.units(), {.mode = ActivationCheckpointConfig::Mode::full});
  mixed_precision(net, net.units(), DType::bf16);
  net.blocks[0].register_forward_hook([](const Module&, Tensors, TensorList&) {});
  initialize(net, 1);
  (void)net(input());
  EXPECT_EQ(names(), before);
  EXPECT_TRUE(handle.device().is_cpu());
  EXPECT_EQ(handle.values(), named_parameters(net)[10].tensor.values());
  EXPECT_EQ(named_parameters(net)[10].name, "blocks.1.attention.wk.weight");
  EXPECT_EQ(handle.dtype(), DType::f32);
}

TEST_F(Wrapping, EveryCheckpointModeGivesTheSameBits) {
  using Mode = ActivationCheckpointConfig::Mode;
  const auto run = [](const ActivationCheckpointConfig& config) {
    Net net;
    initialize(net, 1);
    apply_activation_checkpoint(net.units(), config);
    const Tensor x = input();
    backward(sum(silu(net(x))));
    return gradients(net, x);
  };
  const auto expected = run({});
  for (const ActivationCheckpointConfig& config : {
           ActivationCheckpointConfig{.mode = Mode::full},
           {.mode = Mode::selective},
           {.mode = Mode::selective, .selective_option = "2"},
           {.mode = Mode::selective, .force_recompute_paths = {"w1"}},
           {.mode = Mode::memory_budget, .memory_budget = 0.4},
           {.mode = Mode::full, .debug = true, .early_stop = false},
       })
    EXPECT_EQ(run(config), expected);
  EXPECT_THROW(run({.mode = Mode::selective, .selective_option = "two"}), ValueError);
  EXPECT_THROW(run({.mode = Mode::selective, .selective_option = "0"}), ValueError);
  EXPECT_THROW(run({.mode = Mode::memory_budget, .memory_budget = -1}), ValueError);
}

TEST_F(Wrapping, EveryNthLayerIsEveryNth) {
  Net net;
  initialize(net, 1);
  apply_activation_checkpoint(
      net.units(), {.mode = ActivationCheckpointConfig::Mode::selective, .selective_option = "2"});
  const Tensor y = net(input());
  int attentions = 0;
  Context::current().op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
    attentions += row.name == "scaled_dot_product_attention";
  };
  backward(sum(y));
  Context::current().op_hook = nullptr;
  EXPECT_EQ(attentions, 1);  // the second block
}

TEST_F(Wrapping, HooksSeeAndReplace) {
  Linear layer(3, 3, Init::normal(1));
  initialize(layer, 1);
  const Tensor x = normal({2, 3}, {1, 1}).set_requires_grad();
  const auto plain = layer(x * 2.0).values();
  std::vector<std::string> order;
  HookHandle pre = layer.register_forward_pre_hook([&](const Module&, TensorList& in) {
    order.emplace_back("pre");
    in[0] = in[0] * 2.0;
  });
  layer.register_forward_hook([&](const Module&, Tensors, TensorList& out) {
    order.emplace_back("post");
    out[0] = out[0] + 1.0;
  });
  Grads seen_in, seen_out;
  layer.register_backward_hook([&](const Module&, const Grads& in, const Grads& out) {
    order.emplace_back("backward");
    seen_in = in;
    seen_out = out;
  });
  const Tensor y = layer(x);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(y.values()[i], plain[i] + 1);
  backward(sum(y * 3.0));
  EXPECT_EQ(order, (std::vector<std::string>{"pre", "post", "backward"}));
  EXPECT_EQ(seen_out[0].values(), std::vector<double>(6, 3.0));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(2 * seen_in[0].values()[i], x.grad().values()[i]);
  pre.remove();
  order.clear();
  (void)layer(x);
  EXPECT_EQ(order, (std::vector<std::string>{"post"}));
}

TEST_F(Wrapping, BackwardHooksRunWithoutAnInputThatNeedsGradients) {
  Embedding table(5, 3, Init::normal(1));
  initialize(table, 1);
  int calls = 0;
  table.register_backward_hook([&](const Module&, const Grads& in, const Grads& out) {
    ++calls;
    EXPECT_EQ(in.size(), 0u);
    EXPECT_EQ(out.size(), 1u);
  });
  backward(sum(table(tensor({1, 2}, DType::i64))));
  EXPECT_EQ(calls, 1);
}

TEST_F(Wrapping, BackwardHooksStandAroundTheBackwardOfTheirModule) {
  // Two outputs, of which one is used, and no input that needs a gradient.
  class Pair final : public Layer<Pair> {
   public:
    void visit(Visitor& v) override {
      v.child("used", used);
      v.child("unused", unused);
    }
    [[nodiscard]] std::array<Tensor, 2> forward(const Tensor& tokens) const {
      return {used(tokens), unused(tokens)};
    }
    Embedding used{5, 3, Init::normal(1)}, unused{5, 3, Init::normal(1)};
  };
  for (const bool checkpointed : {false, true}) {
    Pair pair;
    initialize(pair, 1);
    if (checkpointed) pair.set_checkpoint(CheckpointOptions{});
    std::vector<std::string> order;
    const auto note = [&](const std::string& what) {
      order.push_back(what + (pair.used.weight.grad().defined() ? " with gradient" : ""));
    };
    pair.register_pre_backward_hook([&](const Module&) { note("before"); });
    pair.register_backward_hook([&](const Module&, const Grads& in, const Grads& out) {
      note("after");
      EXPECT_EQ(in.size(), 0u);
      ASSERT_EQ(out.size(), 2u);
      EXPECT_TRUE(out[0].defined());
      EXPECT_FALSE(out[1].defined());
    });
    for (Embedding* table : {&pair.used, &pair.unused})
      table->register_pre_backward_hook([&](const Module& m) { note(m.name()); });
    backward(sum(pair(tensor({1, 2}, DType::i64))[0]));
    EXPECT_EQ(order, (std::vector<std::string>{"before", "used", "after with gradient"}));
    EXPECT_FALSE(pair.unused.weight.grad().defined());
  }
}

TEST_F(Wrapping, BackwardHooksOfAModuleThatIsGoneDoNotRun) {
  int calls = 0;
  Tensor loss, weight;
  {
    Linear layer(6, 4, Init::normal(1));
    initialize(layer, 1);
    layer.register_pre_backward_hook([&](const Module&) { ++calls; });
    layer.register_backward_hook([&](const Module&, const Grads&, const Grads&) { ++calls; });
    weight = layer.weight;
    loss = sum(layer(normal({3, 6}, RngKey{1, 2})));
  }
  backward(loss);
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(weight.grad().defined());
}

TEST_F(Wrapping, HooksOfModulesInACheckpointRunOnceInBackward) {
  Net net;
  initialize(net, 1);
  apply_activation_checkpoint(net.units(), {.mode = ActivationCheckpointConfig::Mode::full});
  int before = 0, after = 0;
  net.blocks[1].attention.wq.register_pre_backward_hook([&](const Module&) { ++before; });
  net.blocks[1].norm.register_backward_hook(
      [&](const Module&, const Grads& in, const Grads&) { after += in[0].defined(); });
  backward(sum(net(input())));
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 1);
}

TEST_F(Wrapping, HooksOfACheckpointedModuleRunOnce) {
  Net net;
  initialize(net, 1);
  apply_activation_checkpoint(net.units(), {.mode = ActivationCheckpointConfig::Mode::full});
  int forward = 0, backward_calls = 0;
  net.blocks[1].register_forward_hook([&](const Module&, Tensors, TensorList&) { ++forward; });
  net.blocks[1].register_backward_hook(
      [&](const Module&, const Grads&, const Grads&) { ++backward_calls; });
  backward(sum(net(input())));
  EXPECT_EQ(forward, 1);
  EXPECT_EQ(backward_calls, 1);
}

TEST_F(Wrapping, BuffersAreFilledListedAndLoaded) {
  Block block;
  initialize(block, 1);
  EXPECT_EQ(block.scale.values(), std::vector<double>(kDim, 0.5));
  EXPECT_EQ(block.scratch.values(), std::vector<double>(2, 7));
  EXPECT_FALSE(block.scale.requires_grad());
  EXPECT_EQ(named_buffers(block).size(), 2u);
  const auto persistent = named_buffers(block, true);
  ASSERT_EQ(persistent.size(), 1u);
  EXPECT_EQ(persistent[0].name, "scale");
  auto state = named_parameters(block);
  Block other;
  EXPECT_THROW(load(other, state), DataError);
  state.push_back({"scale", full({kDim}, 3)});
  load(other, state);
  EXPECT_EQ(other.scale.values(), std::vector<double>(kDim, 3));
  EXPECT_FALSE(other.scale.requires_grad());
}

TEST_F(Wrapping, FrozenParametersStayFrozen) {
  Net net;
  set_requires_grad(net.blocks[0], false);
  initialize(net, 1);
  const Tensor x = input();
  backward(sum(net(x)));
  for (const auto& p : named_parameters(net)) {
    const bool frozen = p.name.starts_with("blocks.0.");
    EXPECT_EQ(p.tensor.requires_grad(), !frozen) << p.name;
    EXPECT_EQ(p.tensor.grad().defined(), !frozen) << p.name;
  }
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(Wrapping, FusedProductsGiveWhatSeparateOnesGive) {
  const auto run = [](bool fused) {
    Net net(fused);
    initialize(net, 1);
    const Tensor x = input();
    backward(sum(silu(net(x))));
    return gradients(net, x);
  };
  const auto a = run(true), b = run(false);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j)
      EXPECT_NEAR(a[i][j], b[i][j], 1e-5 * (1 + std::abs(b[i][j]))) << i << ' ' << j;
  }
}

TEST_F(Wrapping, FusedProductsHaveSecondDerivativesAndUnusedOutputs) {
  const auto run = [](bool fused) {
    const Tensor x = normal({70, 4}, {1, 1}).set_requires_grad();
    const std::vector<Tensor> w{normal({2, 4}, {1, 2}).set_requires_grad(),
                                normal({5, 4}, {1, 3}).set_requires_grad()};
    const auto y = fused ? fused_linear(x, w) : std::vector{linear(x, w[0]), linear(x, w[1])};
    const Tensor g = grad({sum(silu(y[1]))}, {x}, {.create_graph = true})[0];
    backward(sum(g * g));
    return std::pair{x.grad().values(), w[1].grad().values()};
  };
  const auto a = run(true), b = run(false);
  for (size_t i = 0; i < a.first.size(); ++i) EXPECT_NEAR(a.first[i], b.first[i], 1e-4);
  for (size_t i = 0; i < a.second.size(); ++i)
    EXPECT_NEAR(a.second[i], b.second[i], 1e-4 * (1 + std::abs(b.second[i])));
}

TEST_F(Wrapping, HooksOnProjectionsRun) {
  Net net;
  initialize(net, 1);
  int calls = 0;
  net.blocks[0].attention.wk.register_forward_hook(
      [&](const Module&, Tensors, TensorList&) { ++calls; });
  (void)net(input());
  EXPECT_EQ(calls, 1);
}

TEST_F(Wrapping, AReplacedParameterIsTheOneComputedWith) {
  Linear layer(4, 3, Init::normal(1));
  initialize(layer, 1);
  mixed_precision(layer, {}, DType::bf16);
  const Tensor x = normal({2, 4}, {2, 2});
  (void)layer(x);
  layer.weight = zeros({3, 4}).set_requires_grad();
  EXPECT_EQ(layer(x).values(), std::vector<double>(6, 0));
  EXPECT_EQ(layer.weight.dtype(), DType::f32);
  initialize(layer, 2);
  EXPECT_NE(layer(x).values(), std::vector<double>(6, 0));
}

TEST_F(Wrapping, MixedPrecisionCastsOnceAStep) {
  Net net;
  initialize(net, 1);
  mixed_precision(net, net.units(), DType::bf16);
  apply_activation_checkpoint(net.units(), {.mode = ActivationCheckpointConfig::Mode::full});
  int casts = 0, hooks = 0;
  const Tensor weight = net.blocks[0].feed_forward.w1.weight;
  register_post_accumulate_hook(weight, [&](const Tensor& t) {
    ++hooks;
    EXPECT_EQ(t.grad().dtype(), DType::f32);
  });
  Context::current().op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
    casts += row.name == "assign_";
  };
  const int parameters = static_cast<int>(named_parameters(net).size());
  for (int micro = 0; micro < 2; ++micro) {
    const Tensor y = net(input());
    EXPECT_EQ(y.dtype(), DType::bf16);
    EXPECT_EQ(net.blocks[0].feed_forward.w1.weight.dtype(), DType::f32);
    backward(sum(y));
  }
  EXPECT_EQ(casts, parameters);
  EXPECT_EQ(hooks, 2);
  {
    const NoGrad guard;
    scale_({weight}, 2);
  }
  (void)net(input());
  EXPECT_EQ(casts, parameters + 1);
  Context::current().op_hook = nullptr;
}

TEST_F(Wrapping, MixedPrecisionComputesWithRoundedParameters) {
  // The same as a net whose parameters were rounded, computed in bf16 by hand.
  Linear layer(kDim, 8, Init::normal(1));
  initialize(layer, 1);
  const Tensor x = normal({4, kDim}, {2, 2}).set_requires_grad();
  const Tensor w = cast(layer.weight.detach(), DType::bf16).set_requires_grad();
  const Tensor y = linear(cast(x.detach(), DType::bf16), w);
  backward(sum(y * y));
  mixed_precision(layer, {}, DType::bf16);
  for (int twice = 1; twice <= 2; ++twice) {
    const Tensor z = layer(x);
    EXPECT_EQ(z.values(), y.values());
    backward(sum(z * z));
    const auto g = layer.weight.grad().values(), expected = w.grad().values();
    for (size_t i = 0; i < g.size(); ++i) EXPECT_EQ(g[i], twice * expected[i]);  // summed in f32
  }
  EXPECT_EQ(x.grad().dtype(), DType::f32);
  EXPECT_THROW(mixed_precision(layer, {}, DType::i64), DTypeError);
  EXPECT_EQ(test::error_of([&] { mixed_precision(layer, {}, MixedPrecision{}); }),
            "[mixed_precision] no dtype to compute in is given: set `param`");
}

}  // namespace
}  // namespace tessera::nn

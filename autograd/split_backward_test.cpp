// SPDX-License-Identifier: Apache-2.0
// Backward in two parts against the whole: the bits of all gradients, and that hooks, regions and
// recompute happen once.
#include "tessera/autograd/autograd.h"
#include "tessera/autograd/checkpoint.h"
#include "tessera/autograd/graph_root.h"
#include "tessera/core/draws.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kWidth = 8, kLayers = 3;

// Layers of a norm and two products with one weight, and a weight that every layer shares.
struct Net {
  Net() {
    const auto leaf = [this](const Shape& shape) {
      Tensor x = normal(shape, {7, next_++}, 0, 0.5, DType::f32);
      return x.set_requires_grad();
    };
    shared = leaf({kWidth, kWidth});
    for (int64_t i = 0; i < kLayers; ++i) {
      norms.push_back(leaf({kWidth}));
      weights.push_back(leaf({kWidth, kWidth}));
    }
  }
  [[nodiscard]] Tensor layer(const Tensor& x, size_t i) const {
    const Tensor h = rms_norm(x, norms[i]);
    const Tensor y = matmul(h, transpose(weights[i], 0, 1)) * sigmoid(matmul(h, shared));
    return x + matmul(y, weights[i]);
  }
  [[nodiscard]] Tensor forward(Tensor x, bool recompute = false) const {
    for (size_t i = 0; i < norms.size(); ++i) {
      if (!recompute) {
        x = layer(x, i);
        continue;
      }
      x = checkpoint([this, i](Tensors in) { return TensorList{layer(in[0], i)}; }, {x})[0];
    }
    return x;
  }
  [[nodiscard]] TensorList leaves() const {
    TensorList all{shared};
    for (const Tensor& t : norms) all.push_back(t);
    for (const Tensor& t : weights) all.push_back(t);
    return all;
  }
  // And forgets them.
  std::vector<std::vector<float>> gradients() {
    std::vector<std::vector<float>> all;
    for (Tensor t : leaves()) {
      all.push_back(t.grad().defined() ? t.grad().to_vector<float>() : std::vector<float>{});
      t.set_grad({});
    }
    return all;
  }
  Tensor shared;
  TensorList norms, weights;

 private:
  uint64_t next_ = 1;
};

Tensor input(uint64_t number, bool requires_grad = true) {
  Tensor x = normal({4, kWidth}, {9, number}, 0, 1, DType::f32);
  return requires_grad ? x.set_requires_grad() : x;
}
Tensor gradient_of_output() { return normal({4, kWidth}, {11, 1}, 0, 1, DType::f32); }

std::unique_ptr<SplitBackward> first_part(const Tensor& y, const Tensor& x) {
  const GraphRoot root(y);
  const TensorList gradient{gradient_of_output()}, inputs{x};
  return std::make_unique<SplitBackward>(std::span(&root, 1), gradient, inputs);
}
void whole(const Tensor& y) {
  const GraphRoot root(y);
  const TensorList gradient{gradient_of_output()};
  backward(std::span(&root, 1), gradient);
}

TEST(SplitBackward, GivesInputGradientsFirstAndTheBitsOfTheWhole) {
  const Session session;
  Net net;
  for (const bool recompute : {false, true}) {
    Tensor x = input(1);
    whole(net.forward(x, recompute));
    const auto want = net.gradients();
    const std::vector<float> want_input = x.grad().to_vector<float>();
    x = input(1);
    auto split = first_part(net.forward(x, recompute), x);
    EXPECT_EQ(x.grad().to_vector<float>(), want_input);
    for (const Tensor& t : net.leaves()) EXPECT_FALSE(t.grad().defined());
    split->finish();
    EXPECT_EQ(net.gradients(), want);
    EXPECT_EQ(x.grad().to_vector<float>(), want_input);
  }
}

// First parts of several passes, whole passes in between, then the rest of each.
TEST(SplitBackward, PassesThatWaitShareLeaves) {
  const Session session;
  Net net;
  for (const uint64_t i : {1, 2, 3, 4}) whole(net.forward(input(i), true));
  const auto want = net.gradients();
  std::vector<std::unique_ptr<SplitBackward>> waiting;
  for (const uint64_t i : {1, 2, 3}) {
    const Tensor x = input(i);
    waiting.push_back(first_part(net.forward(x, true), x));
  }
  for (auto& split : waiting) split->finish();
  whole(net.forward(input(4), true));
  EXPECT_EQ(net.gradients(), want);

  whole(net.forward(input(1)));
  const Tensor x = input(2);
  auto split = first_part(net.forward(x), x);
  const auto before = net.shared.grad().to_vector<float>();
  whole(net.forward(input(3)));
  EXPECT_NE(net.shared.grad().to_vector<float>(), before);
  split->finish();
}

TEST(SplitBackward, HooksRegionsAndRecomputeHappenOnce) {
  const Session session;
  Net net;
  int forwards = 0, gradient_hooks = 0, node_hooks = 0, leaf_hooks = 0, last = 0;
  std::string order;
  Tensor x = input(1), h;
  {
    const BackwardRegion region([&] { order += "begins "; }, [&] { order += "ends "; });
    h = checkpoint(
        [&](Tensors in) {
          ++forwards;
          return TensorList{net.layer(in[0], 0)};
        },
        {x})[0];
  }
  register_hook(h, [&](const Tensor&) {
    ++gradient_hooks;
    if (gradient_hooks == 1) queue_final_callback([&] { ++last; });
    return Tensor();
  });
  const Tensor y = matmul(h, net.weights[1]);
  register_node_hook(y, [&](const Grads& dx, const Grads&) {
    ++node_hooks;
    EXPECT_TRUE(dx[0].defined() && dx[1].defined());  // it sees all at once
  });
  register_post_accumulate_hook(net.norms[0], [&](const Tensor&) {
    ++leaf_hooks;
    order += "leaf ";
  });
  auto split = first_part(y, x);
  order += "| ";
  EXPECT_EQ(std::tuple(gradient_hooks, node_hooks, leaf_hooks, last), std::tuple(1, 1, 0, 0));
  split->finish();
  EXPECT_EQ(std::tuple(gradient_hooks, node_hooks, leaf_hooks, last), std::tuple(1, 1, 1, 1));
  EXPECT_EQ(forwards, 2);
  EXPECT_EQ(order, "begins | leaf ends ");
}

TEST(SplitBackward, WithoutInputsAllIsInTheSecondPart) {
  const Session session;
  Net net;
  whole(net.forward(input(1, false)));
  const auto want = net.gradients();
  const Tensor elsewhere = input(2);
  for (const Tensor& x : {input(1, false), elsewhere}) {
    auto split = first_part(net.forward(input(1, false)), x);
    EXPECT_FALSE(net.shared.grad().defined());
    split->finish();
    EXPECT_EQ(net.gradients(), want);
  }
}

TEST(SplitBackward, ForgottenAndFailedPassesLeaveNothing) {
  const Session session;
  Net net;
  const Tensor x = input(1);
  (void)first_part(net.forward(x), x);
  EXPECT_EQ(Tape::current().passes, 0);
  EXPECT_FALSE(net.shared.grad().defined());
  const Tensor y = net.forward(x);
  const HookHandle hook =
      register_hook(net.shared, [](const Tensor&) -> Tensor { fail<ValueError>("hook", "no"); });
  auto split = first_part(y, x);
  EXPECT_EQ(test::error_of([&] { split->finish(); }), "[hook] no");
  EXPECT_EQ(test::error_of([&] { split->finish(); }), "[backward] both parts have run");
  EXPECT_EQ(Tape::current().passes, 0);
  EXPECT_TRUE(Context::current().grad_enabled);
}

TEST(SplitBackward, IsRefusedInsideAnotherPass) {
  const Session session;
  Net net;
  const Tensor x = input(1), y = net.forward(x);
  const Tensor inner = net.forward(x);
  register_hook(y, [&](const Tensor&) {
    (void)first_part(inner, x);
    return Tensor();
  });
  const std::string refused =
      "[backward] runs inside another pass, where it cannot be in two parts";
  EXPECT_EQ(test::error_of([&] { whole(y); }), refused);
  auto waiting = first_part(net.forward(x), x);
  const Tensor z = net.forward(x);
  register_hook(z, [&](const Tensor&) {
    waiting->finish();
    return Tensor();
  });
  EXPECT_EQ(test::error_of([&] { whole(z); }), refused);
  EXPECT_EQ(Tape::current().passes, 0);
}

}  // namespace
}  // namespace tessera

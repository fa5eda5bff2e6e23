// SPDX-License-Identifier: Apache-2.0
// What the laws cannot say: equality with the two ops it stands for, what is made when, memory.
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/linear_cross_entropy/chunks_impl.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

Tensor some_targets(int64_t n, int64_t classes) {
  std::vector<double> t(static_cast<size_t>(n));
  for (size_t i = 0; i < t.size(); ++i)
    t[i] = i % 7 == 3 ? -100 : static_cast<double>(i * 31 % static_cast<size_t>(classes));
  return from_values(t, {n}, DType::i64);
}

double gap(const Tensor& a, const Tensor& b) {
  const auto x = a.values(), y = b.values();
  double off = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    off += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(off / size);
}

// 1400 tokens are more than one chunk.
TEST(LinearCrossEntropy, IsLinearThenCrossEntropy) {
  const Session session;
  const CrossEntropyOptions options{.label_smoothing = 0.1, .z_loss = 1e-3};
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor h = normal({1400, 24}, {1, 1}, 0, 1, t), w = normal({50, 24}, {1, 2}, 0, 0.5, t),
                 targets = some_targets(1400, 50);
    const auto run = [&](const Tensor& hidden, const Tensor& weight, bool fused) {
      const auto [sum, count] = fused ? linear_cross_entropy(hidden, weight, targets, options)
                                      : cross_entropy(linear(hidden, weight), targets, options);
      EXPECT_EQ(count.item(), 1200);
      const auto g = grad({sum}, {hidden, weight}, {.grad_outputs = {tensor(0.25)}});
      return std::vector<Tensor>{sum, g[0], g[1]};
    };
    const auto leaf = [](const Tensor& x) { return x.detach().set_requires_grad(); };
    const auto got = run(leaf(h), leaf(w), true);
    // The reference is f32 throughout.
    const auto want = run(leaf(cast(h, DType::f32)), leaf(cast(w, DType::f32)), false);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_LE(gap(got[i], want[i]), t == DType::f32 ? 2e-6 : 4e-3) << t << " " << i;
  }
}

TEST(LinearCrossEntropy, MakesOnlyTheGradientsThatAreWanted) {
  const Session session;
  Tensor h = normal({6, 5}, {1, 1}), w = normal({7, 5}, {1, 2}), targets = some_targets(6, 7);
  std::vector<std::vector<Shape>> made;
  Context::current().op_hook = [&](const OpRow&, const void*, Tensors, Tensors out) {
    if (out.size() == 4) made.push_back({out[2].shape(), out[3].shape()});
  };
  (void)linear_cross_entropy(h, w, targets);
  w.set_requires_grad();
  backward(linear_cross_entropy(h, w, targets).sum);
  EXPECT_FALSE(h.grad().defined());
  EXPECT_EQ(w.grad().shape(), (Shape{7, 5}));
  {
    const NoGrad guard;
    (void)linear_cross_entropy(h, w, targets);
  }
  Context::current().op_hook = nullptr;
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[0], (std::vector<Shape>{{}, {}}));
  EXPECT_EQ(made[1], (std::vector<Shape>{{}, {7, 5}}));
  EXPECT_EQ(made[2], (std::vector<Shape>{{}, {}}));
}

TEST(LinearCrossEntropy, AGradientThatWasNotMadeIsAnError) {
  const Session session;
  const Tensor h = normal({6, 5}, {1, 1}).set_requires_grad(),
               w = normal({7, 5}, {1, 2}).set_requires_grad(), targets = some_targets(6, 7);
  const auto error_of = [&](const op::LinearCrossEntropy& op, size_t output) {
    return test::error_of<AutogradError>([&] {
      const Tensor y = call(op, {h, w, targets})[output];
      backward(y, {.gradient = ones(y.shape())});
    });
  };
  EXPECT_EQ(error_of({.hidden_gradient = false}, 0),
            "[linear_cross_entropy] the gradient of hidden was not made in the forward pass: set "
            "hidden_gradient");
  EXPECT_EQ(error_of({.weight_gradient = false}, 0),
            "[linear_cross_entropy] the gradient of weight was not made in the forward pass: set "
            "weight_gradient");
  EXPECT_EQ(error_of({}, 3),
            "[linear_cross_entropy] the gradient of linear_cross_entropy is made in the forward "
            "pass and differentiated once only: given dy of f32[7, 5]");
}

TEST(LinearCrossEntropy, LargeLogitsKeepTheDigitsOfSmallLosses) {
  const Session session;
  const Tensor weight = tensor({{0}, {1e4 - 5}, {1e4}, {0}}), target = tensor({2}, DType::i64);
  const auto [sum, count] = linear_cross_entropy(tensor({{1}}), weight, target);
  EXPECT_NEAR(sum.item(), 0.0067153485, 1e-9);  // log(1 + exp(-5))
}

TEST(LinearCrossEntropy, NothingCounts) {
  const Session session;
  Tensor h = normal({3, 5}, {1, 1}).set_requires_grad(), w = normal({7, 5}, {1, 2});
  w.set_requires_grad();
  const auto [sum, count] = linear_cross_entropy(h, w, tensor({-100, -100, -100}, DType::i64));
  EXPECT_EQ(sum.item(), 0);
  EXPECT_EQ(count.item(), 0);
  backward(sum);
  for (const Tensor& g : {h.grad(), w.grad()}) {
    for (const double v : g.values()) EXPECT_EQ(v, 0);
  }
}

// An ignored token's NaN stays out of everything but its own logits.
TEST(LinearCrossEntropy, NanOfIgnoredTokensIsNotCounted) {
  const Session session;
  Tensor h = from_values({1, 2, std::numeric_limits<double>::quiet_NaN(), 0}, {2, 2});
  Tensor w = normal({5, 2}, {1, 2});
  h.set_requires_grad();
  const auto [sum, count] = linear_cross_entropy(h, w, tensor({1, -100}, DType::i64));
  EXPECT_TRUE(std::isfinite(sum.item()));
  backward(sum);
  EXPECT_EQ(h.grad().values()[2], 0);
}

// Probabilities that f32 could only hold as subnormals are 0 in the gradient.
TEST(LinearCrossEntropy, FarLogitsLeaveNoSubnormals) {
  const Session session;
  Tensor h = ones({1, 1}).set_requires_grad(), w = from_values({0, -40, -90, -100}, {4, 1});
  w.set_requires_grad();
  backward(linear_cross_entropy(h, w, tensor({0}, DType::i64)).sum);
  const auto g = w.grad().values();
  EXPECT_NEAR(g[1], std::exp(-40.0), 1e-22);
  EXPECT_EQ(g[2], 0);
  EXPECT_EQ(g[3], 0);
}

TEST(LinearCrossEntropy, ChunksAreEvenAndSmall) {
  EXPECT_EQ(chunk_tokens(0, 100, 0, 4), 0);
  EXPECT_EQ(chunk_tokens(1, 100, 0, 4), 1);
  EXPECT_EQ(chunk_tokens(4096, 2048, 0, 4), 1024);
  EXPECT_EQ(chunk_tokens(1025, 2048, 0, 4), 513);
  EXPECT_EQ(chunk_tokens(1024, 50257, 0, 4), 256);
  EXPECT_EQ(chunk_tokens(1024, 50257, 0, 2), 512);
  EXPECT_EQ(chunk_tokens(1024, 50257, 768, 4), 256);
  EXPECT_EQ(chunk_tokens(1024, 50257, 768, 2), 1024);
  EXPECT_EQ(chunk_tokens(100000, 1000000, 0, 4), 64);
}

TEST(LinearCrossEntropy, ATargetOutOfRangeIsNamed) {
  const Session session;
  try {
    (void)linear_cross_entropy(zeros({2, 3}), zeros({4, 3}), tensor({0, 4}, DType::i64));
    FAIL() << "expected IndexError";
  } catch (const IndexError& e) {
    EXPECT_NE(std::string(e.what()).find("target 4 at row 1 is out of range: expected 0 to 3"),
              std::string::npos)
        << e.what();
  }
}

TEST(LinearCrossEntropy, TakesTargetsOf32Bits) {
  Context context;
  const Tensor hidden = tensor({{1, 2}}), weight = tensor({{1, 0}, {0, 1}, {1, 1}});
  EXPECT_EQ(linear_cross_entropy(hidden, weight, tensor({2}, DType::i32)).sum.item(),
            linear_cross_entropy(hidden, weight, tensor({2}, DType::i64)).sum.item());
}

}  // namespace
}  // namespace tessera

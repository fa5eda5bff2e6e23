// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/adamw/adamw.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

TEST(AdamW, TwoStepsByHand) {
  Context context;
  const AdamWOptions o{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.5};
  Tensor p = tensor({2}, DType::f64), m = zeros({1}, DType::f64), v = zeros({1}, DType::f64);
  double ep = 2, em = 0, ev = 0;
  for (int step = 1; step <= 2; ++step) {
    const double g = 0.5 * step;
    adamw_({p}, {tensor({g}, DType::f64)}, {m}, {v}, step, o);
    ep *= 1 - o.lr * o.weight_decay;
    em = 0.9 * em + 0.1 * g;
    ev = 0.99 * ev + 0.01 * g * g;
    ep -= o.lr / (1 - std::pow(0.9, step)) * em /
          (std::sqrt(ev) / std::sqrt(1 - std::pow(0.99, step)) + o.eps);
    EXPECT_NEAR(p.item(), ep, 1e-12);
    EXPECT_NEAR(m.item(), em, 1e-12);
    EXPECT_NEAR(v.item(), ev, 1e-12);
  }
}

// Strides, list neighbours, chunks and threads leave an element's bits alone.
TEST(AdamW, BitsDoNotDependOnPlace) {
  const auto step = [](int threads, bool strided) {
    Context context({.threads = threads});
    const Tensor g = normal({7, 6001}, {1, 1});
    const auto lay = [&](Tensor t) {
      return strided ? transpose(contiguous(transpose(t, 0, 1)), 0, 1) : t;
    };
    const Tensor p = lay(normal({7, 6001}, {1, 2})), m = lay(normal({7, 6001}, {1, 3})),
                 v = lay(uniform({7, 6001}, {1, 4}));
    const Tensor q = ones({3}), r = zeros({3}), s = zeros({3});
    adamw_({q, p}, {ones({3}), g}, {r, m}, {s, v}, 3, {});
    return p.values();
  };
  const auto expected = step(1, false);
  EXPECT_EQ(step(2, false), expected);
  EXPECT_EQ(step(2, true), expected);
}

TEST(AdamW, Errors) {
  Context context;
  const Tensor p = zeros({3});
  try {
    adamw_({p, p}, {p, Tensor()}, {p, p}, {p, p}, 1, {});
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(),
                 "[adamw_] gradient 1 is undefined: step only parameters that have a gradient");
  }
  EXPECT_THROW(adamw_({p}, {}, {p}, {p}, 1, {}), UsageError);
  EXPECT_THROW(adamw_({p}, {p}, {p}, {p}, 0, {}), ValueError);
  EXPECT_THROW(adamw_({p}, {zeros({4})}, {p}, {p}, 1, {}), ShapeError);
  EXPECT_THROW(adamw_({p}, {p}, {p}, {p}, 1, {.beta1 = 1}), ValueError);
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/sgd/sgd.h"

#include "tessera/core/context.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace tessera {
namespace {

TEST(Sgd, PlainStepsByHand) {
  Context context;
  const Tensor p = tensor({2, -1}, DType::f64), g = tensor({0.5, 1}, DType::f64);
  sgd_({p}, {g}, {}, 1, {.lr = 0.1, .weight_decay = 0.5});
  EXPECT_DOUBLE_EQ(p.values()[0], 2 - 0.1 * (0.5 + 0.5 * 2));
  EXPECT_DOUBLE_EQ(p.values()[1], -1 - 0.1 * (1 - 0.5));
  sgd_({p}, {g}, {}, 2, {.lr = 1, .maximize = true});
  EXPECT_DOUBLE_EQ(p.values()[1], -1 - 0.1 * (1 - 0.5) + 1);
}

// Whatever a buffer holds before the first step is not read.
TEST(Sgd, MomentumByHand) {
  Context context;
  const Tensor p = tensor({2}, DType::f64),
               b = tensor({std::numeric_limits<double>::quiet_NaN()}, DType::f64);
  const SgdOptions options{.lr = 0.1, .momentum = 0.9, .dampening = 0.5};
  sgd_({p}, {tensor({1}, DType::f64)}, {b}, 1, options);
  EXPECT_DOUBLE_EQ(p.item(), 1.9);
  EXPECT_DOUBLE_EQ(b.item(), 1);
  sgd_({p}, {tensor({3}, DType::f64)}, {b}, 2, options);
  EXPECT_DOUBLE_EQ(b.item(), 0.9 + 0.5 * 3);
  EXPECT_DOUBLE_EQ(p.item(), 1.9 - 0.1 * 2.4);
  sgd_({p}, {tensor({1}, DType::f64)}, {b}, 3, {.lr = 1, .momentum = 0.5, .nesterov = true});
  EXPECT_DOUBLE_EQ(b.item(), 0.5 * 2.4 + 1);
  EXPECT_DOUBLE_EQ(p.item(), 1.9 - 0.24 - (1 + 0.5 * 2.2));
}

// Strides, list neighbours, chunks and threads leave an element's bits alone.
TEST(Sgd, BitsDoNotDependOnPlace) {
  for (const DType t : {DType::f32, DType::bf16}) {
    const auto step = [&](int threads, bool strided) {
      Context context({.threads = threads});
      const auto lay = [&](const Tensor& x) {
        const Tensor y = cast(x, t);
        return strided ? transpose(contiguous(transpose(y, 0, 1)), 0, 1) : y;
      };
      const Tensor p = lay(normal({7, 6001}, {1, 2})), g = lay(normal({7, 6001}, {1, 1})),
                   b = lay(normal({7, 6001}, {1, 3}));
      sgd_({ones({3}), p}, {ones({3}), g}, {zeros({3}), b}, 3,
           {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
      return p.values();
    };
    const auto expected = step(1, false);
    EXPECT_EQ(step(2, false), expected);
    EXPECT_EQ(step(2, true), expected);
  }
}

// Gradients that scale_ has written give the bits of those that the step multiplies, which stay.
TEST(Sgd, AFactorHasTheBitsOfScaledGradients) {
  Context context({.threads = 2});
  const auto stepped = [](std::array<DType, 3> types, int64_t n, bool in_step, SgdOptions options) {
    const auto drawn = [&](uint64_t stream, DType t) {
      return slice(cast(normal({n, 2}, {1, stream}, 0, 1, DType::f64), t), 1, {0, 1});
    };
    const Tensor p = drawn(1, types[0]), g = drawn(2, types[1]), b = drawn(3, types[2]);
    const Tensor by = tensor(0.3, DType::f64);
    const auto before = g.values();
    if (in_step) options.grad_factor = by;
    else scale_({g}, by);
    std::vector<Tensor> buffers;
    if (options.momentum > 0) buffers.push_back(b);
    sgd_({p}, {g}, buffers, 3, options);
    if (in_step) {
      EXPECT_EQ(g.values(), before);
    }
    return std::array{p.values(), b.values()};
  };
  using enum DType;
  for (const auto& types : {std::array{f64, f64, f64},
                            {f32, f32, f32},
                            {f32, f32, bf16},
                            {bf16, bf16, bf16},
                            {bf16, bf16, f32},
                            {bf16, f32, f32}}) {
    for (const int64_t n : {1, 37, 16400}) {
      for (const SgdOptions& options :
           {SgdOptions{.lr = 0.1, .weight_decay = 0.2},
            {.lr = 0.1, .momentum = 0.9, .maximize = true},
            {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.2, .nesterov = true}}) {
        EXPECT_EQ(stepped(types, n, true, options), stepped(types, n, false, options))
            << types[0] << ' ' << types[1] << ' ' << types[2] << ' ' << n;
      }
    }
  }
}

TEST(Sgd, Errors) {
  Context context;
  const Tensor p = zeros({3});
  for (const double momentum : {0.0, 0.9}) {
    const std::vector<Tensor> buffers =
        momentum > 0 ? std::vector{zeros({3})} : std::vector<Tensor>();
    const auto step = [&](const Tensor& factor) {
      sgd_({p}, {zeros({3})}, buffers, 1, {.momentum = momentum, .grad_factor = factor});
    };
    EXPECT_THROW(step(tensor(1, DType::f32)), DTypeError);
    EXPECT_THROW(step(ones({1}, DType::f64)), ShapeError);
    EXPECT_NO_THROW(step(tensor(1, DType::f64)));
  }
  EXPECT_THROW(sgd_({p}, {}, {}, 1, {}), UsageError);
  EXPECT_THROW(sgd_({p}, {p}, {p}, 1, {}), UsageError);
  EXPECT_THROW(sgd_({p}, {p}, {}, 1, {.momentum = 0.9}), UsageError);
  EXPECT_THROW(sgd_({p}, {p}, {}, 0, {}), ValueError);
  EXPECT_THROW(sgd_({p}, {p}, {}, 1, {.nesterov = true}), ValueError);
  EXPECT_THROW(sgd_({p}, {p}, {p}, 1, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
               ValueError);
  EXPECT_THROW(sgd_({p}, {zeros({4})}, {}, 1, {}), ShapeError);
}

}  // namespace
}  // namespace tessera

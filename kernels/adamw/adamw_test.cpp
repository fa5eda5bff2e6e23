// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/adamw/adamw.h"

#include "tessera/core/context.h"
#include "tessera/kernels/adamw/stochastic_rounding_impl.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <array>
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

Tensor bf16_of(const Tensor& x) { return cast(x, DType::bf16); }

// f32 moments beside bf16 parameters: what the same step in f32 gives, rounded.
TEST(AdamW, NarrowParametersAreSteppedInF32) {
  Context context;
  const Tensor p = bf16_of(normal({2000}, {1, 1})), g = bf16_of(normal({2000}, {1, 2}));
  const Tensor wide = cast(p, DType::f32), m = zeros({2000}), v = zeros({2000}),
               m_wide = zeros({2000}), v_wide = zeros({2000});
  adamw_({p}, {g}, {m}, {v}, 1, {.lr = 0.1});
  adamw_({wide}, {cast(g, DType::f32)}, {m_wide}, {v_wide}, 1, {.lr = 0.1});
  EXPECT_EQ(p.values(), bf16_of(wide).values());
  EXPECT_EQ(m.values(), m_wide.values());
  EXPECT_EQ(v.values(), v_wide.values());
}

// Gradients that scale_ has written give the bits of those that the step multiplies, which stay:
// of all dtypes, lengths of a last vector, strides, and of stochastic rounding.
TEST(AdamW, AFactorHasTheBitsOfScaledGradients) {
  Context context({.threads = 2});
  const auto stepped = [](std::array<DType, 3> types, int64_t n, double factor, bool in_step,
                          std::vector<uint64_t> streams) {
    const auto drawn = [&](uint64_t stream, DType t) {
      return slice(cast(normal({n, 2}, {1, stream}, 0, 1, DType::f64), t), 1, {0, 1});
    };
    const Tensor p = drawn(1, types[0]), g = drawn(2, types[1]), m = drawn(3, types[2]),
                 v = abs(drawn(4, types[2]));
    const Tensor by = tensor(factor, DType::f64);
    const auto before = g.values();
    if (!in_step) scale_({g}, by);
    adamw_({p}, {g}, {m}, {v}, 3,
           {.lr = 0.1,
            .seed = 2,
            .streams = std::move(streams),
            .grad_factor = in_step ? by : Tensor()});
    if (in_step) {
      EXPECT_EQ(g.values(), before);
    }
    return std::array{p.values(), m.values(), v.values()};
  };
  using enum DType;
  for (const auto& types : {std::array{f64, f64, f64},
                            {f32, f32, f32},
                            {f32, f32, bf16},
                            {bf16, bf16, f32},
                            {bf16, bf16, bf16},
                            {bf16, f32, f32},
                            {bf16, f32, bf16}}) {
    for (const int64_t n : {1, 37, 16400}) {
      for (const double factor : {1.0, 0.3, 1e-3}) {
        const auto alike = [&](const std::vector<uint64_t>& streams) {
          EXPECT_EQ(stepped(types, n, factor, true, streams),
                    stepped(types, n, factor, false, streams))
              << types[0] << ' ' << types[1] << ' ' << types[2] << ' ' << n << ' ' << factor;
        };
        alike({});
        alike({7});
      }
    }
  }
}

// A piece rounds as the whole does: bits belong to the element's place in the whole.
TEST(AdamW, StochasticRoundingIsKeyedByTheGlobalElement) {
  Context context({.threads = 2});
  const Shape whole{37, 90};
  const op::AdamW op{.seed = 7, .streams = {{11}}};
  const auto tensors = [&] {
    std::vector<Tensor> in{tensor(0.01, DType::f64), tensor(4, DType::f64), tensor(0, DType::bool_),
                           tensor(0.3, DType::f64)};
    for (uint64_t role = 0; role < 4; ++role)
      in.push_back(bf16_of(role == 3 ? uniform(whole, {1, role}) : normal(whole, {1, role})));
    return in;
  };
  const std::vector<Tensor> all = tensors();
  call(op, Tensors(all));
  for (const auto& [start, shape] : {std::pair<Shape, Shape>{{0, 0}, {20, 90}},
                                     {{20, 0}, {17, 90}},
                                     {{3, 13}, {30, 70}},
                                     {{5, 88}, {32, 2}}}) {
    Piece piece;
    piece.operands.resize(11);
    std::vector<Tensor> part = tensors();
    for (size_t i = 4; i < 11; ++i) {
      for (int d = 0; d < 2; ++d) piece.operands[i].push_back({start[d], shape[d], whole[d]});
      if (i >= 8) continue;
      for (int d = 0; d < 2; ++d)
        part[i] = contiguous(slice(part[i], d, {start[d], start[d] + shape[d]}));
    }
    call(op.local(piece), Tensors(part));
    for (const size_t role : {4u, 6u, 7u}) {
      Tensor want = all[role];
      for (int d = 0; d < 2; ++d) want = slice(want, d, {start[d], start[d] + shape[d]});
      EXPECT_EQ(part[role].values(), contiguous(want).values()) << role;
    }
  }
}

// An update of a tenth of the last place is lost to the nearest, and kept on average.
TEST(AdamW, StochasticRoundingKeepsTheMean) {
  Context context;
  const auto mean_after = [](std::vector<uint64_t> streams) {
    const int64_t n = 100000;
    const Tensor p = ones({n}, DType::bf16), g = ones({n}, DType::bf16), m = zeros({n}),
                 v = zeros({n});
    // 1 - lr: a bf16 below 1 is 1/256 away.
    adamw_({p}, {g}, {m}, {v}, 1,
           {.lr = 0.1 / 256, .weight_decay = 0, .seed = 1, .streams = std::move(streams)});
    double mean = 0;
    for (const double x : p.values()) mean += x / static_cast<double>(n);
    return mean;
  };
  EXPECT_NEAR(mean_after({}), 1, 1e-9);
  EXPECT_NEAR(mean_after({5}), 1 - 0.1 / 256, 0.002 / 256 * 5);
}

TEST(AdamW, StreamsAndStepsDrawDifferently) {
  Context context;
  const auto after = [](int64_t step, uint64_t stream, uint64_t seed) {
    const Tensor p = bf16_of(normal({64}, {1, 1})), m = zeros({64}), v = zeros({64});
    adamw_({p}, {bf16_of(normal({64}, {1, 2}))}, {m}, {v}, step,
           {.lr = 1e-3, .seed = seed, .streams = {stream}});
    return p.values();
  };
  EXPECT_EQ(after(2, 1, 1), after(2, 1, 1));
  EXPECT_NE(after(2, 1, 1), after(2, 2, 1));
  EXPECT_NE(after(2, 1, 1), after(2, 1, 2));
}

// Each bit of a word is set half of the time, and so is each bit of what two elements in a row, two
// steps or two streams differ in.
TEST(AdamW, WordsAreFair) {
  const auto shares = [](auto word) {
    constexpr int kWords = 1 << 16;
    std::array<int, 32> set{};
    for (uint64_t i = 0; i < kWords; ++i)
      for (size_t b = 0; b < 32; ++b) set[b] += static_cast<int>(word(i) >> b & 1);
    for (const int count : set) EXPECT_NEAR(count, kWords / 2, 5 * 128);  // 5 deviations
  };
  const auto of = [](RngKey key, uint64_t i) { return rng::word(rng::word_key(key, i), i); };
  const RngKey key{3, 5};
  shares([&](uint64_t i) { return of(key, i); });
  shares([&](uint64_t i) { return of(key, i) ^ of(key, i + 1); });
  shares([&](uint64_t i) { return of(key, i) ^ of(key, i + (uint64_t{1} << 32)); });
  shares([&](uint64_t i) { return of(rng::at_step(key, 1), i) ^ of(rng::at_step(key, 2), i); });
  shares([&](uint64_t i) { return of(key, i) ^ of({3, 6}, i); });
}

TEST(AdamW, AParameterMayNotComeTwice) {
  Context context;
  const auto zero = [] { return zeros({8}); };
  const Tensor w = ones({8}), g = ones({8});
  EXPECT_THROW(adamw_({w, w}, {g, g}, {zero(), zero()}, {zero(), zero()}, 1, {}), UsageError);
  EXPECT_EQ(w.values(), std::vector<double>(8, 1));
  const Tensor flat = ones({16});  // parts of one storage are no aliases
  adamw_({slice(flat, 0, {8, 16}), slice(flat, 0, {0, 8})}, {g, g}, {zero(), zero()},
         {zero(), zero()}, 1, {});
  EXPECT_LT(flat.values()[0], 1);
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
  try {
    adamw_({p}, {p}, {p}, {p}, 1, {.grad_factor = tensor(1, DType::f32)});
    FAIL();
  } catch (const DTypeError& e) {
    EXPECT_STREQ(e.what(), "[adamw_] grad_factor must be f64: given f32[]");
  }
  EXPECT_THROW(adamw_({p}, {p}, {p}, {p}, 1, {.grad_factor = ones({1}, DType::f64)}), ShapeError);
  EXPECT_THROW(adamw_({p}, {}, {p}, {p}, 1, {}), UsageError);
  EXPECT_THROW(adamw_({p}, {p}, {p}, {p}, 0, {}), ValueError);
  EXPECT_THROW(adamw_({p}, {zeros({4})}, {p}, {p}, 1, {}), ShapeError);
  EXPECT_THROW(adamw_({p}, {p}, {p}, {p}, 1, {.beta1 = 1}), ValueError);
}

}  // namespace
}  // namespace tessera

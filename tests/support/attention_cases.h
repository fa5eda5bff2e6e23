// SPDX-License-Identifier: Apache-2.0
// Attention on a device against f64 on the CPU, with operands that belong together: o and lse are
// of these q, k and v, which cuDNN relies on and no sample of the laws has.
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/device_path.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"

#include <cmath>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace tessera::test {

struct AttentionTest {
  std::string name;
  int64_t b, h, h_kv, t, s, d, dv;
  AttentionMask mask = AttentionMask::causal();
  DType dtype = DType::bf16;
  AttentionPath with_cudnn = AttentionPath::cudnn;  ///< the path if there is cuDNN
  double scores = 0;                                ///< added to all scores
  double spread = 1;  ///< of the scores; from 30 on rows are saturated
  bool heads_inner = true;
  int64_t first_query = 0;
  double scale = 0;  ///< 0: 1 / sqrt(d)
  double soft_cap = 0;
  friend std::ostream& operator<<(std::ostream& out, const AttentionTest& t) {
    return out << t.name;
  }
};

inline AttentionCase case_of(const AttentionTest& a) {
  return {.dtype = a.dtype,
          .batch = a.b,
          .heads = a.h,
          .kv_heads = a.h_kv,
          .queries = a.t,
          .keys = a.s,
          .d = a.d,
          .dv = a.dv,
          .mask = a.mask,
          .first_query = a.first_query,
          .soft_cap = a.soft_cap};
}

/// Every head size and mask of the table, T of every kind modulo 128, groups of 1 to 16, extreme
/// scores.
inline std::vector<AttentionTest> attention_tests() {
  using Mask = AttentionMask;
  const Mask causal = Mask::causal();
  constexpr auto kOwn = AttentionPath::tensor_cores, kScalar = AttentionPath::scalar;
  return {
      {"Causal", 2, 4, 2, 65, 65, 64, 64},
      {"WholeTiles", 1, 2, 2, 128, 128, 64, 64},
      {"OneMore", 1, 2, 1, 129, 129, 64, 64},
      {"HalfATile", 1, 2, 1, 192, 192, 64, 64},
      {"OneFewer", 1, 2, 1, 127, 127, 64, 64},
      {"Heads8", 2, 2, 2, 33, 33, 8, 8},
      {"Heads96", 1, 2, 1, 40, 40, 96, 96},
      {"Heads128", 1, 3, 1, 70, 70, 128, 128},
      {"Heads192And128", 1, 2, 2, 40, 40, 192, 128},
      {"Heads256", 1, 2, 1, 40, 40, 256, 256},
      {"Group16", 1, 16, 1, 37, 37, 32, 32},
      {"HeadsOuter", 2, 4, 2, 65, 65, 64, 64, causal, DType::bf16, AttentionPath::cudnn, 0, 1,
       false},
      {"F16", 2, 4, 2, 65, 65, 64, 64, causal, DType::f16},
      {"AllKeys", 2, 4, 2, 40, 77, 64, 64, Mask()},
      {"MoreKeys", 1, 2, 1, 40, 77, 64, 64},
      {"Window", 1, 4, 2, 150, 150, 64, 64, causal & Mask::window(17)},
      {"WindowAndFewerKeys", 1, 2, 1, 150, 40, 64, 64, causal & Mask::window(40), DType::bf16,
       kOwn},
      {"FewerKeys", 1, 2, 1, 150, 40, 64, 64},
      {"WindowOfAll", 1, 2, 1, 50, 50, 64, 64, causal & Mask::window(60)},
      {"ScoresOf100Below", 1, 2, 1, 70, 70, 64, 64, causal, DType::bf16, AttentionPath::cudnn,
       -100},
      {"ScoresOf100Above", 1, 2, 1, 70, 70, 64, 64, causal, DType::bf16, AttentionPath::cudnn, 100},
      {"Saturated", 1, 2, 1, 70, 70, 64, 64, causal, DType::bf16, AttentionPath::cudnn, 0, 40},
      // Over several steps of keys: the greatest score of a row rises a little, or by far.
      {"Rising", 1, 2, 1, 300, 300, 64, 64, causal, DType::bf16, AttentionPath::cudnn, 0, 4},
      {"RisingByFar", 1, 2, 1, 300, 300, 64, 64, causal, DType::bf16, AttentionPath::cudnn, 0, 25},
      {"RisingHeads128", 1, 2, 1, 300, 300, 128, 128, causal, DType::bf16, AttentionPath::cudnn, 0,
       15},
      {"RisingHeads256", 1, 1, 1, 200, 200, 256, 256, causal, DType::f16, AttentionPath::cudnn, 0,
       15},
      {"NegativeScale", 1, 2, 1, 200, 200, 64, 64, causal, DType::bf16, AttentionPath::cudnn, 0, 10,
       true, 0, -0.2},
      {"Chunks", 1, 2, 1, 70, 70, 64, 64, causal & Mask::chunk(16), DType::bf16, kOwn},
      {"Prefix", 1, 2, 1, 70, 70, 64, 64, causal | Mask::prefix(9), DType::bf16, kOwn},
      {"OneQuery", 2, 4, 2, 1, 40, 64, 64, causal, DType::bf16, kOwn, 0, 1, true, 39},
      {"OneKey", 2, 4, 2, 1, 1, 64, 64, causal, DType::bf16, kOwn},
      {"LaterQueries", 2, 4, 2, 10, 40, 64, 64, causal, DType::bf16, kOwn, 0, 1, true, 30},
      {"RowsThatSeeNothing", 1, 2, 1, 20, 20, 64, 64, causal, DType::bf16, kOwn, 0, 1, true, -3},
      {"OddHeads", 1, 2, 1, 40, 40, 20, 20, causal, DType::bf16, kOwn},
      {"F32", 1, 2, 1, 40, 40, 64, 64, causal, DType::f32, kScalar},
      {"Capped", 2, 4, 2, 150, 150, 64, 64, causal, DType::bf16, kOwn, 0, 4, true, 0, 0, 5},
      {"CappedFarBelow", 1, 2, 1, 70, 90, 128, 128, causal & Mask::window(40), DType::f16, kOwn, 0,
       10, true, 20, 0, 0.5},
      {"CappedFarAbove", 1, 2, 1, 130, 130, 256, 256, Mask(), DType::bf16, kOwn, 0, 1, true, 0, 0,
       50},
      {"CappedNegativeScale", 1, 4, 2, 70, 70, 64, 64, causal, DType::bf16, kOwn, 0, 4, true, 0,
       -0.2, 3},
      {"CappedF32", 1, 4, 2, 70, 70, 64, 64, causal, DType::f32, kScalar, 0, 2, true, 0, 0, 2},
  };
}

/// Relative errors; of the gradients of q and k relative to their terms too, since these cancel in
/// saturated rows.
struct AttentionErrors {
  double o, lse, dq, dk, dv;
  [[nodiscard]] double worst() const { return std::max({o, lse, dq, dk, dv}); }
};

namespace detail {
struct AttentionResults {
  std::vector<double> o, lse, dq, dk, dv;
};
inline AttentionResults run_attention(const AttentionTest& a, const std::vector<Tensor>& operands,
                                      DType dtype, Device device) {
  std::vector<Tensor> x;
  for (const Tensor& t : operands) x.push_back(to_device(cast(t, dtype), device));
  for (size_t i = 0; i < 3; ++i) x[i].set_requires_grad();
  const auto [o, lse] = scaled_dot_product_attention_with_lse(x[0], x[1], x[2],
                                                              {.mask = a.mask,
                                                               .heads_inner = a.heads_inner,
                                                               .scale = a.scale,
                                                               .soft_cap = a.soft_cap,
                                                               .query_start = a.first_query});
  backward(o, {.gradient = x[3]});
  const auto values = [](const Tensor& t) {
    return to_device(cast(t.detach(), DType::f64), kCpu).values();
  };
  return {values(o), values(lse), values(x[0].grad()), values(x[1].grad()), values(x[2].grad())};
}
inline double error_of(const std::vector<double>& got, const std::vector<double>& want,
                       double least = 0) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i]) && got[i] == want[i]) continue;  // lse of a row that sees nothing
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  if (std::isnan(error)) return error;
  return error == 0 ? 0 : std::sqrt(error) / std::max(std::sqrt(norm), least);
}
}  // namespace detail

/// Inputs from `seed`: q, k, v, dout in f64, rounded to the case's dtype.
inline std::vector<Tensor> attention_operands(const AttentionTest& a, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  const auto make = [&](int64_t heads, int64_t time, int64_t d, double scale, double first) {
    const Shape shape = a.heads_inner ? Shape{a.b, time, heads, d} : Shape{a.b, heads, time, d};
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = first != 0 && i % static_cast<size_t>(d) == 0 ? first : normal(engine) * scale;
    return cast(cast(from_values(values, shape, DType::f64), a.dtype), DType::f64);
  };
  // q's and k's first elements are the same everywhere: their product shifts all scores.
  const double shift = a.scores * std::sqrt(static_cast<double>(a.d)),
               each = std::sqrt(std::abs(shift));
  return {make(a.h, a.t, a.d, a.spread, each), make(a.h_kv, a.s, a.d, 1, shift < 0 ? -each : each),
          make(a.h_kv, a.s, a.dv, 1, 0), make(a.h, a.t, a.dv, 1, 0)};
}

inline AttentionErrors attention_errors(const AttentionTest& a, Device device, uint64_t seed) {
  const std::vector<Tensor> x = attention_operands(a, seed);
  const auto want = detail::run_attention(a, x, DType::f64, kCpu);
  const auto got = detail::run_attention(a, x, a.dtype, device);
  // A tenth of the gradients of rows that are not saturated.
  const auto least = [](const std::vector<double>& g) {
    return 0.1 * std::sqrt(static_cast<double>(g.size()));
  };
  return {detail::error_of(got.o, want.o), detail::error_of(got.lse, want.lse),
          detail::error_of(got.dq, want.dq, least(want.dq)),
          detail::error_of(got.dk, want.dk, least(want.dk)), detail::error_of(got.dv, want.dv)};
}

}  // namespace tessera::test

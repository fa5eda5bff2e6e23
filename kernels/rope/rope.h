// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding (Su et al., RoFormer, 2021) by tables of cos and sin, which are
// f32 whatever x is. Its gradient is the rotation by the opposite angle: the same op, `inverse`.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

namespace tessera {
namespace op {

/// x (..., t, h, d), cos and sin (t, r/2) f32 (f64 for f64 x) -> (..., t, h, d), where the first r
/// = `rotary` values of a head turn (0: all d) and the others are copied. Pair i is (x[2i], x[2i +
/// 1]), or (x[i], x[i + r/2]) with `halves` (Hugging Face's rotate_half; Qwen, gpt_oss). With
/// positions (..., t) i64 the tables may have any number of rows, and a token turns by the row of
/// its position. IndexError: a position beyond the tables; CUDA gives NaN there.
struct Rope {
  bool inverse = false, halves = false;
  int64_t rotary = 0;
  static constexpr std::string_view name = "rope";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(1, 2, 3);
  auto attributes() const { return std::tie(inverse, halves, rotary); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Rope>> samples();
};

using rope_ops = OpList<Rope>;

}  // namespace op

struct RopeOptions {
  bool halves = false;  ///< pairs (x[i], x[i + r/2]) instead of (x[2i], x[2i + 1])
  int64_t rotary = 0;   ///< how many values of a head turn; 0: all
  Tensor positions =
      {};  ///< (..., t) i64 or i32, the table row of each token; else token i has row i
};
/// The tables are constants: asking for their gradient is an AutogradError.
inline Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin,
                   const RopeOptions& o = {}) {
  const op::Rope op{false, o.halves, o.rotary};
  return o.positions.defined() ? call(op, {x, cos, sin, as_index(o.positions)})
                               : call(op, {x, cos, sin});
}

/// How frequencies are stretched to contexts longer than the model was trained on.
struct RopeScaling {
  enum class Kind : uint8_t { none, llama3, yarn, linear, longrope };
  Kind kind = Kind::none;
  /// Longer by this much, 1 or more. linear (Chen et al., Position Interpolation, 2023) divides all
  /// frequencies by it.
  double factor = 1;
  int64_t original_max_position = 8192;  ///< the context of the training

  /// llama3 (Llama 3.1's reference code, 2024): frequencies that turn at least high_freq_factor
  /// times in the original context stay, those that turn at most low_freq_factor times are divided
  /// by the factor, with a linear ramp by the number of turns between.
  double low_freq_factor = 1, high_freq_factor = 4;

  /// yarn (Peng et al., YaRN, 2023): the same with a linear ramp over the pairs, from the pair that
  /// turns beta_fast times to the one that turns beta_slow times, rounded outwards to whole pairs
  /// if `truncate`.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;

  /// longrope (Ding et al., LongRoPE, 2024): the frequency of each pair is divided by its own
  /// factor, one of two lists: the short one up to original_max_position tokens.
  std::vector<double> short_factors = {}, long_factors = {};
  bool is_long = false;  ///< which of them counts

  /// yarn and longrope multiply cos and sin by it. 0 is the default: for longrope sqrt(1 +
  /// ln(factor) / ln(original_max_position)); for yarn 1 + mscale ln(factor) / 10 with an mscale of
  /// 1 if it is not given, divided by the same with mscale_all_dim if both are given (DeepSeek).
  double attention_factor = 0;
  double mscale = 0, mscale_all_dim = 0;
};

/// Angle of each of the dim/2 pairs at position 1: theta^(-2i/dim), scaled. ValueError: an odd or
/// negative dim, a theta that is not positive, a scaling that contradicts itself.
TESSERA_API std::vector<double> rope_frequencies(int64_t dim, double theta,
                                                 const RopeScaling& scaling = {});
/// The factor of cos and sin; 1 unless yarn or longrope.
TESSERA_API double rope_attention_factor(const RopeScaling& scaling);

/// Tables for positions [start, start + length): {cos, sin} of (length, dim/2), angle = position *
/// frequency, times the attention factor. Errors as of rope_frequencies, and of a negative length.
TESSERA_API std::array<Tensor, 2> rope_tables(int64_t length, int64_t dim, double theta,
                                              int64_t start = 0, DType dtype = DType::f32,
                                              const RopeScaling& scaling = {});

}  // namespace tessera

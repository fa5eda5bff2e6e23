// SPDX-License-Identifier: Apache-2.0
// Attention sinks: a logit of each head that belongs to no key takes its share of every row's
// softmax (Xiao et al., 2023; gpt_oss, 2025). With the log-sum-exp of the scores known that is one
// factor for each row of attention's output.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// o (B, H, T, D), lse (B, H, T) and sink (H) in f32 (f64 for f64) -> o * sigmoid(lse - sink), like
/// o; heads_inner: o is (B, T, H, D).
struct AttentionSink {
  bool heads_inner = false;
  static constexpr std::string_view name = "attention_sink";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  auto attributes() const { return std::tie(heads_inner); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<AttentionSink>> samples();
};

/// o, lse, sink, dy -> do, dlse. The gradient of sink is -dlse, summed over batch and time.
struct AttentionSinkBackward {
  bool heads_inner = false;
  static constexpr std::string_view name = "attention_sink_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of attention_sink is differentiated once only"};
  auto attributes() const { return std::tie(heads_inner); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<AttentionSinkBackward>> samples();
};

}  // namespace op

/// o and lse as attention gave them, sink (H) of any float dtype. The gradient reaches sink, and q
/// and k through lse. A row that saw nothing stays 0. ShapeError, DTypeError.
TESSERA_API Tensor attention_sink(const Tensor& o, const Tensor& lse, const Tensor& sink,
                                  bool heads_inner = false);

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax along a dim and their gradients, each in one pass over a row held in
// cache; f32 inside for narrower floats.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// exp(x - m) / sum(exp(x - m)) with m = max(x).
struct Softmax {
  int dim = -1;
  static constexpr std::string_view name = "softmax";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::output();
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Softmax>> samples();
};

/// dx = y (dy - sum(dy y)) of y = softmax(x).
struct SoftmaxBackward {
  int dim = -1;
  static constexpr std::string_view name = "softmax_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<SoftmaxBackward>> samples();
};

/// x - logsumexp(x).
struct LogSoftmax {
  int dim = -1;
  static constexpr std::string_view name = "log_softmax";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::output();
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<LogSoftmax>> samples();
};

/// dx = dy - exp(y) sum(dy) of y = log_softmax(x).
struct LogSoftmaxBackward {
  int dim = -1;
  static constexpr std::string_view name = "log_softmax_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::inputs();
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<LogSoftmaxBackward>> samples();
};

using softmax_ops = OpList<Softmax, SoftmaxBackward, LogSoftmax, LogSoftmaxBackward>;

}  // namespace op

/// Along `dim`, which may count from the end; x itself has any rank. DTypeError unless floating.
inline Tensor softmax(const Tensor& x, int dim = -1) { return call(op::Softmax{dim}, {x}); }
/// log(softmax(x)), without the loss of digits; minus infinity where x is.
inline Tensor log_softmax(const Tensor& x, int dim = -1) { return call(op::LogSoftmax{dim}, {x}); }

}  // namespace tessera

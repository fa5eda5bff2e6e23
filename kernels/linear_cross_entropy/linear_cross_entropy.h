// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy: the model's head and its loss in one op, without the tensor of logits
// (Hsu et al., Liger Kernel, 2024). Tokens go through in chunks; the gradients of a chunk are made
// while its logits are there, kept as outputs, and multiplied by the arriving gradient in backward.
// The vocabulary may be sharded: each shard takes its own rows of the weight, joins a few numbers
// per token, and at the end the gradient of hidden.
#pragma once

#include "tessera/kernels/cross_entropy/cross_entropy.h"

#include <memory>

namespace tessera {
namespace op {

/// hidden (..., D), weight (V, D), targets i64 (...) -> sum () f32 (f64 for f64), count () i64,
/// d_hidden (..., D) and d_weight (V, D): the gradients of sum, each a zero () where it is not
/// asked for.
struct LinearCrossEntropy {
  int64_t ignore_index = -100;
  double label_smoothing = 0, z_loss = 0;
  bool hidden_gradient = true, weight_gradient = true;  // what is made in the forward pass
  // Of a piece: its first class, the global V (0: own), and who joins the pieces.
  int64_t begin = 0, vocabulary = 0;
  std::shared_ptr<Joiner> joiner = {};
  static constexpr std::string_view name = "linear_cross_entropy";
  static constexpr bool expensive = true;
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 4;
  static constexpr Saves saves = Saves::outputs(2, 3);
  auto attributes() const {
    return std::tie(ignore_index, label_smoothing, z_loss, hidden_gradient, weight_gradient);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  LinearCrossEntropy local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  Cost cost(Metas in, Metas out) const;
  int64_t workspace(Metas in, Device device) const;
  static std::vector<Sample<LinearCrossEntropy>> samples();
};

/// A gradient made in the forward pass (any shape), dsum () -> their product, in the gradient's
/// dtype. Two ops, since one gradient may be sharded where the other is partial.
struct LinearCrossEntropyBackward {
  static constexpr std::string_view name = "linear_cross_entropy_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{
      "the gradient of linear_cross_entropy is made in the forward pass and differentiated once "
      "only"};
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<LinearCrossEntropyBackward>> samples();
};

using linear_cross_entropy_ops = OpList<LinearCrossEntropy, LinearCrossEntropyBackward>;

}  // namespace op

/// cross_entropy(linear(hidden, weight), targets) without the logits: hidden (..., D) and weight
/// (V, D) of one floating dtype, targets (...) i64 or i32. Logits are rounded to that
/// dtype, sums over tokens are f32 or wider. Gradients are made only for operands
/// that require them while recording is on. IndexError for a target outside [0, V) that is not
/// ignored; ShapeError, DTypeError and ValueError as in cross_entropy.
TESSERA_API CrossEntropyResult linear_cross_entropy(const Tensor& hidden, const Tensor& weight,
                                                    const Tensor& targets,
                                                    const CrossEntropyOptions& options = {});

}  // namespace tessera

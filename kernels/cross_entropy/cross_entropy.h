// SPDX-License-Identifier: Apache-2.0
// cross_entropy: the sum of -log softmax(logits)[target] over the tokens that count, with smoothed
// labels and a z-loss (Chowdhery et al., PaLM, 2022) where asked for, and how many they are; the
// mean is left to whoever knows the global count (or to losses.h's functions). f32
// inside (f64 for f64). Backward reads the saved log-sum-exp of each row. The vocabulary may be
// cut: each piece takes its own logits, and a few numbers per row (maximum, sum, target's logit)
// are joined on the way.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

#include <memory>

namespace tessera {
namespace op {

/// logits (..., V), targets i64 (...), weight (V) (optional) -> sum () f32 (f64 for f64), count ()
/// i64, and per row, like sum, lse (...), loss (...) and the weight of its target (...), which is 0
/// where it is ignored and else 1 where no weights are given.
struct CrossEntropy {
  int64_t ignore_index = -100;
  double label_smoothing = 0, z_loss = 0;
  // Of a piece: its first class, the global V (0: own), and who joins the pieces.
  int64_t begin = 0, vocabulary = 0;
  std::shared_ptr<Joiner> joiner = {};
  static constexpr std::string_view name = "cross_entropy";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 5;
  static constexpr Saves saves = Saves::inputs() | Saves::outputs(2, 4);
  auto attributes() const { return std::tie(ignore_index, label_smoothing, z_loss); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  CrossEntropy local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<CrossEntropy>> samples();
};

/// logits, targets, lse, dsum, dlse (...), dloss (...), weight (V) and the targets' weights (...)
/// -> dlogits. The last five are optional, the last two come together. On a piece, `begin` is its
/// first class and `vocabulary` the global V (0: own); lse is of the whole row.
struct CrossEntropyBackward {
  int64_t ignore_index = -100;
  double label_smoothing = 0, z_loss = 0;
  int64_t begin = 0, vocabulary = 0;
  std::shared_ptr<Joiner> joiner = {};  // of the sum of all weights, which smoothed labels need
  static constexpr std::string_view name = "cross_entropy_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of cross_entropy is differentiated once only"};
  auto attributes() const {
    return std::tie(ignore_index, label_smoothing, z_loss, begin, vocabulary);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  CrossEntropyBackward local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<CrossEntropyBackward>> samples();
};

using cross_entropy_ops = OpList<CrossEntropy, CrossEntropyBackward>;

}  // namespace op

struct CrossEntropyResult {
  Tensor sum;    ///< () f32
  Tensor count;  ///< () i64: tokens whose target is not ignore_index
};
struct CrossEntropyOptions {
  int64_t ignore_index = -100;  ///< tokens of this target neither count nor have a gradient
  double label_smoothing = 0;   ///< share of the target that goes to all V classes evenly
  double z_loss = 0;   ///< factor of log-sum-exp squared, summed over the tokens that count
  Tensor weight = {};  ///< (V) f32 (f64 for f64), a constant: what each class counts; 1 without
};
/// logits (..., V) floating, targets (...) i64 or i32. IndexError for a target outside [0, V) that
/// is not ignore_index; ValueError unless 0 <= label_smoothing < 1 and z_loss >= 0.
/// `count` counts tokens, whatever their weights.
inline CrossEntropyResult cross_entropy(const Tensor& logits, const Tensor& targets,
                                        const CrossEntropyOptions& options = {}) {
  auto [sum, count, lse, losses, weights] =
      call(op::CrossEntropy{options.ignore_index, options.label_smoothing, options.z_loss},
           {logits, as_index(targets), options.weight});
  return {sum, count};
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The loss of one row of logits and its gradient, shared by cross_entropy and linear_cross_entropy:
//   loss = share lse - (1 - s) w[target] x[target] - s / V sum(w x) + z lse^2
// all but the last term with logits minus their maximum: large logits would round small losses off;
//   d loss / d x[i] = (share + 2 z lse) softmax(x)[i] - s / V w[i] - (1 - s) w[i] [i is the target]
// with label smoothing s, z-loss factor z, V classes, their weights w (1 where none are given) and
// share = (1 - s) w[target] + s / V sum(w), which is 1 where none are given.
#pragma once

#include "tessera/core/op_types.h"

#include <limits>

#ifdef __CUDACC__
#define TESSERA_LOSS __host__ __device__ __forceinline__
#else
#define TESSERA_LOSS TESSERA_INLINE
#endif

namespace tessera {

/// Below this, exp counts as 0 in gradients: no sum notices it, and subnormal numbers would slow
/// the products that follow a hundredfold.
template <class C> inline constexpr C kLeastExponent = sizeof(C) == 4 ? C(-70) : C(-600);

/// What is taken from the logits of a row, or a piece of one, with the maximum `top`: 0 where that
/// is -inf, since -inf less -inf would be NaN.
template <class C> TESSERA_LOSS C base_of(C top) {
  return top == -std::numeric_limits<C>::infinity() ? C(0) : top;
}

template <class C> struct RowLoss {
  C hit, each, z;  // shares of the target's logit and of every logit, factor of lse^2

  RowLoss(double label_smoothing, double z_loss, int64_t classes)
      : hit(static_cast<C>(1 - label_smoothing)),
        each(static_cast<C>(classes > 0 ? label_smoothing / static_cast<double>(classes) : 0)),
        z(static_cast<C>(z_loss)) {}
  /// The share of a row whose target has this weight, where all of them sum to `all`.
  TESSERA_LOSS C share(C weight, C all) const { return hit * weight + each * all; }
  /// `top` is the row's maximum, `log_sum` the logarithm of the sum of exp(x - top), `picked` x -
  /// top of the target times its weight, `total` the sum of all (read only where labels are
  /// smoothed).
  TESSERA_LOSS C value(C top, C log_sum, C picked, C total, C share = C(1)) const {
    C loss = share * log_sum - hit * picked;
    if (each != C(0)) loss -= each * total;
    if (z != C(0)) loss += z * (top + log_sum) * (top + log_sum);
    return loss;
  }
  /// What the softmax is multiplied by in the gradient.
  TESSERA_LOSS C softmax_share(C lse, C share = C(1)) const {
    return z == C(0) ? share : share + C(2) * z * lse;
  }
};

/// ValueError unless 0 <= label_smoothing < 1 and z_loss >= 0.
inline void check_loss_options(std::string_view name, double label_smoothing, double z_loss) {
  if (!(label_smoothing >= 0 && label_smoothing < 1) || !(z_loss >= 0)) {
    fail<ValueError>(name, "expected 0 <= label_smoothing < 1 and z_loss >= 0: given ",
                     label_smoothing, " and ", z_loss);
  }
}

/// Where a piece of the classes must lie; `classes` it holds, from `begin` on, of `vocabulary` (0:
/// its own).
inline void check_class_piece(std::string_view name, int64_t begin, int64_t classes,
                              int64_t vocabulary, const TensorMeta& operand) {
  if (begin < 0 || vocabulary < 0 || (vocabulary > 0 && begin > vocabulary - classes)) {
    fail<ValueError>(name, "the classes of ", operand, ", from ", begin,
                     " on, would not lie inside a vocabulary of ", vocabulary);
  }
}

/// `classes` are all of the vocabulary: a target of another piece is right, too.
inline void check_targets(std::string_view name, const Tensor& targets, int64_t classes,
                          int64_t ignore_index) {
  const int64_t* t = targets.data<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (t[i] != ignore_index && (t[i] < 0 || t[i] >= classes)) {
      fail<IndexError>(name, "target ", t[i], " at row ", i, " is out of range: expected 0 to ",
                       classes - 1, ", or ", ignore_index, " to ignore the row");
    }
  }
}

}  // namespace tessera

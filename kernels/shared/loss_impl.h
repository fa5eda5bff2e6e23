// SPDX-License-Identifier: Apache-2.0
// The loss of one row of logits and its gradient, shared by cross_entropy and linear_cross_entropy:
//   loss = lse - (1 - s) x[target] - s / V sum(x) + z lse^2
//   d loss / d x[i] = (1 + 2 z lse) softmax(x)[i] - s / V - (1 - s) [i is the target]
// with label smoothing s, z-loss factor z and V classes.
#pragma once

#include "tessera/core/op_types.h"

#ifdef __CUDACC__
#define TESSERA_LOSS __host__ __device__ __forceinline__
#else
#define TESSERA_LOSS TESSERA_INLINE
#endif

namespace tessera {

/// Below this, exp counts as 0 in gradients: no sum notices it, and subnormal numbers would slow
/// the products that follow a hundredfold.
template <class C> inline constexpr C kLeastExponent = sizeof(C) == 4 ? C(-70) : C(-600);

template <class C> struct RowLoss {
  C hit, each, z;  // shares of the target's logit and of every logit, factor of lse^2

  RowLoss(double label_smoothing, double z_loss, int64_t classes)
      : hit(static_cast<C>(1 - label_smoothing)),
        each(static_cast<C>(classes > 0 ? label_smoothing / static_cast<double>(classes) : 0)),
        z(static_cast<C>(z_loss)) {}
  /// `picked` is the target's logit, `total` the sum of all (read only where labels are smoothed).
  TESSERA_LOSS C value(C lse, C picked, C total) const {
    C loss = lse - hit * picked;
    if (each != C(0)) loss -= each * total;
    if (z != C(0)) loss += z * lse * lse;
    return loss;
  }
  /// What the softmax is multiplied by in the gradient.
  TESSERA_LOSS C softmax_share(C lse) const { return z == C(0) ? C(1) : C(1) + C(2) * z * lse; }
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
                     " on, do not lie inside a vocabulary of ", vocabulary);
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

// SPDX-License-Identifier: Apache-2.0
// Losses as PyTorch has them, of an input and a target: pointwise ops with fused gradients, then a
// mean or a sum. nll_loss and cross_entropy take classes from the last dim, as cross_entropy's room
// does. A mean is that of the whole tensor, also where its rows are sharded over ranks; those of
// classes then add up the count of their targets, one number, over the axes of the rows. Where a
// batch is spread over steps, take the sum and divide by the count of all of them.
#pragma once

#include "tessera/kernels/cross_entropy/cross_entropy.h"

namespace tessera {

enum class Reduction : uint8_t { none, mean, sum };

// Input and target broadcast and share one floating dtype (DTypeError). Reduction::none gives the
// loss of each pair, the others a 0-dim tensor.

/// (input - target)^2.
TESSERA_API Tensor mse_loss(const Tensor& input, const Tensor& target,
                            Reduction reduction = Reduction::mean);
/// |input - target|; the gradient is 0 where they are equal.
TESSERA_API Tensor l1_loss(const Tensor& input, const Tensor& target,
                           Reduction reduction = Reduction::mean);
/// d^2 / 2 where |d| = |input - target| <= delta, else delta (|d| - delta / 2). ValueError unless
/// delta > 0.
TESSERA_API Tensor huber_loss(const Tensor& input, const Tensor& target, double delta = 1,
                              Reduction reduction = Reduction::mean);
/// d^2 / (2 beta) where |d| <= beta, else |d| - beta / 2: l1_loss where beta is 0. ValueError below.
TESSERA_API Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta = 1,
                                  Reduction reduction = Reduction::mean);

struct BceOptions {
  Tensor weight = {};  ///< broadcasts to the loss of each pair: what it counts
  Tensor pos_weight =
      {};  ///< broadcasts too: what the term of the target, not of 1 - target, counts
  Reduction reduction = Reduction::mean;
};
/// -(pos_weight target log(s) + (1 - target) log(1 - s)) with s = sigmoid(input), stable far out.
TESSERA_API Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                                    const BceOptions& options = {});

struct KlDivOptions {
  bool log_target = false;  ///< the target is a logarithm, as the input always is
  Reduction reduction = Reduction::mean;
};
/// target (log(target) - input) of log-probabilities `input`, 0 where the target is 0. PyTorch's
/// "batchmean" is the sum divided by the batch.
TESSERA_API Tensor kl_div(const Tensor& input, const Tensor& target,
                          const KlDivOptions& options = {});

struct NllOptions {
  Tensor weight = {};           ///< (V) of the input's dtype: what each class counts
  int64_t ignore_index = -100;  ///< rows of this target count nothing
  Reduction reduction = Reduction::mean;
};
/// -weight[target] input[target] of log-probabilities input (..., V) and targets i64 (...). The
/// mean divides by the weights of the rows that count, so it is NaN where none does. IndexError for
/// a target outside [0, V).
TESSERA_API Tensor nll_loss(const Tensor& input, const Tensor& targets,
                            const NllOptions& options = {});

/// cross_entropy as one tensor: its sum, its mean over the weights of the tokens that count (NaN
/// where none does), or the loss of each token (...), 0 where it is ignored. On sharded rows the
/// mean is over those of all ranks, and a partial sum: full_tensor() gives its value.
TESSERA_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets, Reduction reduction,
                                 const CrossEntropyOptions& options = {});

}  // namespace tessera

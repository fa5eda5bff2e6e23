// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cross_entropy/losses.h"

#include "tessera/core/rank.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"

namespace tessera {
namespace {

Tensor reduced(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::none: return losses;
    case Reduction::sum: return sum(losses);
    default: return mean(losses);
  }
}

// The total over a count, or a sum of weights. Where the rows are sharded, a quotient of two
// partial sums is none, so the divisor, which has no gradient, is added up over the ranks: one
// number.
Tensor mean_over(const Tensor& total, const Tensor& divisor) {
  const bool apart = divisor.is_distributed() && !divisor.requires_grad();
  const Tensor whole =
      apart ? detail::distributor_of("cross_entropy", divisor).whole(divisor) : divisor;
  return div(total, cast(whole, total.dtype()));
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  return reduced(call(op::MseLoss{}, {input, target}), reduction);
}

Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  return reduced(call(op::L1Loss{}, {input, target}), reduction);
}

Tensor huber_loss(const Tensor& input, const Tensor& target, double delta, Reduction reduction) {
  return reduced(call(op::HuberLoss{{}, delta, false}, {input, target}), reduction);
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta, Reduction reduction) {
  if (beta == 0) return l1_loss(input, target, reduction);
  return reduced(call(op::HuberLoss{{}, beta, true}, {input, target}), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const BceOptions& options) {
  Tensor losses = call(op::BceWithLogits{}, {input, target});
  if (options.pos_weight.defined()) {  // what it counts beyond 1
    const Tensor more = mul(target, affine(options.pos_weight, 1, -1));
    losses = sub(losses, mul(more, logsigmoid(input)));
  }
  if (options.weight.defined()) losses = mul(losses, options.weight);
  return reduced(losses, options.reduction);
}

Tensor kl_div(const Tensor& input, const Tensor& target, const KlDivOptions& options) {
  return reduced(call(op::KlDiv{{}, options.log_target}, {input, target}), options.reduction);
}

Tensor nll_loss(const Tensor& input, const Tensor& targets, const NllOptions& options) {
  if (input.rank() < 1 || !(targets.shape() == input.shape().without(input.rank() - 1))) {
    fail<ShapeError>("nll_loss", "targets must hold one class per row of log-probabilities ",
                     "(..., V): input is ", input.meta(), ", targets are ", targets.meta());
  }
  const Tensor ignored = equal(targets, full({}, static_cast<double>(options.ignore_index),
                                             targets.dtype(), targets.device()));
  const Tensor classes = masked_fill(targets, ignored, 0);  // (...)
  const Tensor picked = reshape(gather(input, -1, unsqueeze(classes, -1)), targets.shape());
  Tensor weights;
  if (options.weight.defined()) {
    const Tensor each = index_select(options.weight, 0, reshape(classes, {-1}));
    weights = masked_fill(reshape(each, targets.shape()), ignored, 0);
  }
  const Tensor losses =
      neg(weights.defined() ? mul(picked, weights) : masked_fill(picked, ignored, 0));
  if (options.reduction != Reduction::mean) return reduced(losses, options.reduction);
  return mean_over(sum(losses),
                   weights.defined() ? sum(weights) : count_nonzero(logical_not(ignored)));
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, Reduction reduction,
                     const CrossEntropyOptions& options) {
  auto [total, count, lse, losses, weights] =
      call(op::CrossEntropy{options.ignore_index, options.label_smoothing, options.z_loss},
           {logits, as_index(targets), options.weight});
  if (reduction == Reduction::none) return losses;
  if (reduction == Reduction::sum) return total;
  return mean_over(total, options.weight.defined() ? sum(weights.detach()) : count);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// CUDA cross_entropy of a tensor of logits.
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/shared/loss_rows.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void backward_kernel(const T* logits, const int64_t* targets, const compute_t<T>* lse,
                                const compute_t<T>* dsum, const compute_t<T>* dlse,
                                RowLoss<compute_t<T>> shares, T* dlogits, int64_t n,
                                int64_t classes, int64_t begin, int64_t ignore_index) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const int64_t row = i / classes, target = targets[row];
    const bool counts = dsum && target != ignore_index;
    const C hit = counts ? *dsum : C(0),
            all =
                (counts ? hit * shares.softmax_share(lse[row]) : C(0)) + (dlse ? dlse[row] : C(0));
    C g = all == C(0) ? C(0) : vmath::exp(static_cast<C>(logits[i]) - lse[row]) * all;
    g -= hit * shares.each;
    if (target != ignore_index && i % classes == target - begin) g -= hit * shares.hit;
    dlogits[i] = static_cast<T>(g);
  }
}

}  // namespace

void CrossEntropy::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor logits = row_major(in[0], stream), targets = row_major(in[1], stream);
  const int64_t classes = logits.shape().back(), rows = targets.numel();
  dispatch<dtypes>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto scratch = [&](const Shape& s) { return empty(s, dtype_of<C>, logits.device()); };
    const Tensor losses = scratch({rows});
    if (rows > 0) {
      const Tensor own_top = scratch({rows}), top = scratch({rows}), sums = scratch({3, rows});
      const int64_t* target = targets.data<int64_t>();
      C* const sum = sums.data<C>();
      C* const totals = label_smoothing > 0 ? sum + 2 * rows : nullptr;
      const int64_t all_classes = vocabulary ? vocabulary : classes;
      row_parts<T><<<blocks_for(rows, 1), threads_for(classes, kRowThreads), 0, handle(stream)>>>(
          logits.data<T>(), target, own_top.data<C>(), top.data<C>(), sum, sum + rows, totals, rows,
          classes, begin, all_classes, ignore_index);
      check_launch(name);
      if (joiner) {
        joiner->all_reduce(top, Join::max);
        rescale<<<blocks_for(rows), kThreads, 0, handle(stream)>>>(own_top.data<C>(), top.data<C>(),
                                                                   sum, rows);
        check_launch(name);
        joiner->all_reduce(alias(sums, {totals ? 3 : 2, rows}, {rows, 1}, sums.offset()),
                           Join::sum);
      }
      row_losses<<<blocks_for(rows), kThreads, 0, handle(stream)>>>(
          target, top.data<C>(), sum, sum + rows, totals,
          RowLoss<C>(label_smoothing, z_loss, all_classes), y[2].data<C>(), losses.data<C>(), rows,
          ignore_index);
      check_launch(name);
    }
    sum_losses<<<1, kSumThreads, 0, handle(stream)>>>(losses.data<C>(), targets.data<int64_t>(),
                                                      y[0].data<C>(), y[1].data<int64_t>(), rows,
                                                      ignore_index);
    check_launch(name);
  });
}

void CrossEntropyBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor logits = row_major(in[0], stream), targets = row_major(in[1], stream),
               lse = row_major(in[2], stream);
  const bool has_sum = in.size() > 3 && in[3].defined(), has_lse = in.size() > 4 && in[4].defined();
  const Tensor dlse = has_lse ? row_major(in[4], stream) : Tensor();
  dispatch<dtypes>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    backward_kernel<<<blocks_for(n), kThreads, 0, handle(stream)>>>(
        logits.data<T>(), targets.data<int64_t>(), lse.data<C>(),
        has_sum ? in[3].data<C>() : nullptr, has_lse ? dlse.data<C>() : nullptr,
        RowLoss<C>(label_smoothing, z_loss, vocabulary ? vocabulary : logits.shape().back()),
        y[0].data<T>(), n, logits.shape().back(), begin, ignore_index);
  });
  check_launch(name);
}

}  // namespace tessera::op

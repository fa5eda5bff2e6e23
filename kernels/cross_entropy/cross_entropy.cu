// SPDX-License-Identifier: Apache-2.0
// CUDA cross_entropy of a tensor of logits.
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/shared/loss_rows.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void backward_kernel(const T* logits, const int64_t* targets, const compute_t<T>* lse,
                                const compute_t<T>* dsum, const compute_t<T>* dlse,
                                const compute_t<T>* dloss, const compute_t<T>* weight,
                                const compute_t<T>* hits, const compute_t<T>* all_weights,
                                RowLoss<compute_t<T>> shares, T* dlogits, int64_t n,
                                int64_t classes, int64_t begin, int64_t ignore_index) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const int64_t row = i / classes, target = targets[row];
    const bool counts = target != ignore_index;
    const C hit = counts ? (dsum ? *dsum : C(0)) + (dloss ? dloss[row] : C(0)) : C(0),
            share = weight ? shares.share(hits[row], all_weights ? *all_weights : C(0)) : C(1),
            all = (counts ? hit * shares.softmax_share(lse[row], share) : C(0)) +
                  (dlse ? dlse[row] : C(0));
    C g = all == C(0) ? C(0) : vmath::exp(static_cast<C>(logits[i]) - lse[row]) * all;
    g -= hit * shares.each * (weight ? weight[i % classes] : C(1));
    if (counts && i % classes == target - begin)
      g -= hit * shares.hit * (weight ? hits[row] : C(1));
    dlogits[i] = static_cast<T>(g);
  }
}

// 1 for each row that counts.
template <class C>
__global__ void mark_counted(const int64_t* targets, C* hits, int64_t rows, int64_t ignore_index) {
  for (int64_t row = first_item(); row < rows; row += item_step())
    hits[row] = targets[row] == ignore_index ? C(0) : C(1);
}

// One block, in a fixed order.
template <class C> __global__ void sum_weights(const C* weights, int64_t n, C* total) {
  auto& shared = block_shared<C[32]>();
  C sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += weights[i];
  sum = block_reduce(sum, SumOf{}, shared);
  if (threadIdx.x == 0) *total = sum;
}

/// The sum of all weights, also where `weights` are a piece.
template <class C>
Tensor sum_of_weights(std::string_view name, const Tensor& weights, Joiner* joiner, Stream stream) {
  const Tensor total = empty({1}, dtype_of<C>, weights.device());
  launch(sum_weights<C>, 1, kSumThreads, 0, stream, weights.device_data<C>(), weights.numel(),
         total.device_data<C>());
  if (joiner) joiner->all_reduce(total, Join::sum);
  return total;
}

}  // namespace

void CrossEntropy::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor logits = row_major(in[0], stream), targets = row_major(in[1], stream);
  const int64_t classes = logits.shape().back(), rows = targets.numel();
  dispatch<dtypes>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto scratch = [&](const Shape& s) { return empty(s, dtype_of<C>, logits.device()); };
    const bool weighted = in.size() > 2 && in[2].defined();
    const Tensor weights = weighted ? row_major(in[2], stream) : Tensor();
    const Tensor losses = y[3], hits = y[4];
    if (rows > 0) {
      const Tensor own_top = scratch({rows}), top = scratch({rows}), sums = scratch({3, rows});
      const int64_t* target = targets.device_data<int64_t>();
      C* const sum = sums.device_data<C>();
      C* const totals = label_smoothing > 0 ? sum + 2 * rows : nullptr;
      const int64_t all_classes = vocabulary ? vocabulary : classes;
      launch(row_parts<T, C>, blocks_for(rows, 1), threads_for(classes, kRowThreads), 0, stream,
             logits.device_data<T>(), target, own_top.device_data<C>(), top.device_data<C>(), sum,
             sum + rows, totals, rows, classes, classes, begin, all_classes, ignore_index,
             weighted ? weights.device_data<C>() : nullptr, hits.device_data<C>());
      if (joiner) {
        joiner->all_reduce(top, Join::max);
        const Tensor own =
            weighted && totals ? sum_of_weights<C>(name, weights, nullptr, stream) : Tensor();
        launch(rescale<C>, blocks_for(rows), kThreads, 0, stream, target, own_top.device_data<C>(),
               top.device_data<C>(), sum, sum + rows, totals, rows, classes, begin, ignore_index,
               own.defined() ? own.device_data<C>() : nullptr,
               weighted ? hits.device_data<C>() : nullptr);
        joiner->all_reduce(alias(sums, {totals ? 3 : 2, rows}, {rows, 1}, sums.offset()),
                           Join::sum);
        if (weighted) joiner->all_reduce(hits, Join::sum);
      }
      Tensor all;
      if (weighted && totals) all = sum_of_weights<C>(name, weights, joiner.get(), stream);
      if (!weighted) {
        launch(mark_counted<C>, blocks_for(rows), kThreads, 0, stream, target,
               hits.device_data<C>(), rows, ignore_index);
      }
      launch(row_losses<C>, blocks_for(rows), kThreads, 0, stream, target, top.device_data<C>(),
             sum, sum + rows, totals, RowLoss<C>(label_smoothing, z_loss, all_classes),
             y[2].device_data<C>(), losses.device_data<C>(), rows, ignore_index,
             weighted ? hits.device_data<C>() : nullptr,
             all.defined() ? all.device_data<C>() : nullptr);
    }
    launch(sum_losses<C>, 1, kSumThreads, 0, stream, losses.device_data<C>(),
           targets.device_data<int64_t>(), y[0].device_data<C>(), y[1].device_data<int64_t>(), rows,
           ignore_index);
  });
}

void CrossEntropyBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor logits = row_major(in[0], stream), targets = row_major(in[1], stream),
               lse = row_major(in[2], stream);
  const auto packed = [&](size_t i) {
    return in.size() > i && in[i].defined() ? row_major(in[i], stream) : Tensor();
  };
  const Tensor dsum = packed(3), dlse = packed(4), dloss = packed(5), weights = packed(6),
               hits = packed(7);
  dispatch<dtypes>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto pointer = [](const Tensor& t) -> const C* {
      return t.defined() ? t.device_data<C>() : nullptr;
    };
    Tensor all;
    if (weights.defined() && label_smoothing > 0)
      all = sum_of_weights<C>(name, weights, joiner.get(), stream);
    launch(backward_kernel<T>, blocks_for(n), kThreads, 0, stream, logits.device_data<T>(),
           targets.device_data<int64_t>(), lse.device_data<C>(), pointer(dsum), pointer(dlse),
           pointer(dloss), pointer(weights), pointer(hits), pointer(all),
           RowLoss<C>(label_smoothing, z_loss, vocabulary ? vocabulary : logits.shape().back()),
           y[0].device_data<T>(), n, logits.shape().back(), begin, ignore_index);
  });
}

}  // namespace tessera::op

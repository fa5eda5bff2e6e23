// SPDX-License-Identifier: Apache-2.0
// CUDA cross_entropy: a block takes a row; the rows' losses are summed by one block in f64, in a
// fixed order. A target out of range makes the loss NaN, since a kernel cannot throw.
#include "tessera/kernels/block_reduce.cuh"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/cross_entropy/loss_impl.h"
#include "tessera/kernels/launch.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {
namespace {

constexpr int kRowThreads = 512;
constexpr int kSumThreads = 1024;

// Of each row: its maximum (twice: one is joined with other pieces'), the sum of exp(x - maximum),
// the target's logit, and the sum of all logits where `totals` is given.
template <class T>
__global__ void row_parts(const T* logits, const int64_t* targets, compute_t<T>* own_top,
                          compute_t<T>* top, compute_t<T>* sums, compute_t<T>* picked,
                          compute_t<T>* totals, int64_t rows, int64_t classes, int64_t begin,
                          int64_t vocabulary, int64_t ignore_index) {
  using C = compute_t<T>;
  __shared__ C shared[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = logits + row * classes;
    C m = minus_infinity<C>(), sum = 0, total = 0;
    for (int64_t i = threadIdx.x; i < classes; i += blockDim.x) {
      m = MaxOf{}(m, static_cast<C>(x[i]));
      total += static_cast<C>(x[i]);
    }
    m = block_reduce(m, MaxOf{}, shared);
    if (totals) total = block_reduce(total, SumOf{}, shared);
    for (int64_t i = threadIdx.x; i < classes; i += blockDim.x)
      sum += vmath::exp(static_cast<C>(x[i]) - m);
    sum = block_reduce(sum, SumOf{}, shared);
    if (threadIdx.x == 0) {
      const int64_t target = targets[row], at = target - begin;
      own_top[row] = top[row] = m;
      sums[row] = m == minus_infinity<C>() ? C(0) : sum;
      if (totals) totals[row] = total;
      if (target == ignore_index) picked[row] = 0;
      else if (target < 0 || target >= vocabulary) picked[row] = not_a_number<C>();
      else picked[row] = at >= 0 && at < classes ? static_cast<C>(x[at]) : C(0);
    }
  }
}

// Sums of a piece, once the maximum of the whole row is known.
template <class C> __global__ void rescale(const C* own_top, const C* top, C* sums, int64_t rows) {
  for (int64_t row = first_item(); row < rows; row += item_step()) {
    if (sums[row] != C(0)) sums[row] *= vmath::exp(own_top[row] - top[row]);
  }
}

template <class C>
__global__ void row_losses(const int64_t* targets, const C* top, const C* sums, const C* picked,
                           const C* totals, RowLoss<C> shares, C* lse, C* losses, int64_t rows,
                           int64_t ignore_index) {
  for (int64_t row = first_item(); row < rows; row += item_step()) {
    lse[row] = top[row] + vmath::log(sums[row]);
    losses[row] = targets[row] == ignore_index
                      ? C(0)
                      : shares.value(lse[row], picked[row], totals ? totals[row] : C(0));
  }
}

// One block.
template <class C>
__global__ void sum_losses(const C* losses, const int64_t* targets, C* sum, int64_t* count,
                           int64_t rows, int64_t ignore_index) {
  __shared__ double sums[32];
  __shared__ int64_t counts[32];
  double loss = 0;
  int64_t counted = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    loss += static_cast<double>(losses[row]);
    counted += targets[row] != ignore_index;
  }
  loss = block_reduce(loss, SumOf{}, sums);
  counted = block_reduce(counted, SumOf{}, counts);
  if (threadIdx.x == 0) {
    *sum = static_cast<C>(loss);
    *count = counted;
  }
}

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
      row_parts<<<blocks_for(rows, 1), threads_for(classes, kRowThreads), 0, handle(stream)>>>(
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

// SPDX-License-Identifier: Apache-2.0
// What the CUDA losses do with rows of logits, stored or just computed: a block takes a row; one
// block sums the rows' losses. A target out of range makes the loss NaN, since a kernel cannot
// throw.
#pragma once

#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/shared/loss_impl.h"
#include "tessera/kernels/vector_math.h"

namespace tessera::op {

inline constexpr int kRowThreads = 512;
inline constexpr int kSumThreads = 1024;

// A logit rounded to T, the dtype that a tensor of logits has or would have.
template <class T, class C, class In> __device__ C logit_of(In logit) {
  return static_cast<C>(static_cast<T>(logit));
}

// Of each row: its maximum (twice: one is joined with other pieces'), the sum of exp(x - maximum),
// the target's logit, and the sum of all logits where `totals` is given.
template <class T, class In, class C>
__global__ void row_parts(const In* logits, const int64_t* targets, C* own_top, C* top, C* sums,
                          C* picked, C* totals, int64_t rows, int64_t classes, int64_t begin,
                          int64_t vocabulary, int64_t ignore_index) {
  __shared__ C shared[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const In* x = logits + row * classes;
    C m = minus_infinity<C>(), sum = 0, total = 0;
    for (int64_t i = threadIdx.x; i < classes; i += blockDim.x) {
      m = MaxOf{}(m, logit_of<T, C>(x[i]));
      total += logit_of<T, C>(x[i]);
    }
    m = block_reduce(m, MaxOf{}, shared);
    if (totals) total = block_reduce(total, SumOf{}, shared);
    for (int64_t i = threadIdx.x; i < classes; i += blockDim.x)
      sum += vmath::exp(logit_of<T, C>(x[i]) - m);
    sum = block_reduce(sum, SumOf{}, shared);
    if (threadIdx.x == 0) {
      const int64_t target = targets[row], at = target - begin;
      own_top[row] = top[row] = m;
      sums[row] = m == minus_infinity<C>() ? C(0) : sum;
      if (totals) totals[row] = total;
      if (target == ignore_index) picked[row] = 0;
      else if (target < 0 || target >= vocabulary) picked[row] = not_a_number<C>();
      else picked[row] = at >= 0 && at < classes ? logit_of<T, C>(x[at]) : C(0);
    }
  }
}

// Sums of a piece, once the maximum of the whole row is known.
template <class C> __global__ void rescale(const C* own_top, const C* top, C* sums, int64_t rows) {
  for (int64_t row = first_item(); row < rows; row += item_step()) {
    if (sums[row] != C(0)) sums[row] *= vmath::exp(own_top[row] - top[row]);
  }
}

// The loss of each row, and its log-sum-exp where that is asked for.
template <class C>
__global__ void row_losses(const int64_t* targets, const C* top, const C* sums, const C* picked,
                           const C* totals, RowLoss<C> loss, C* lse, C* losses, int64_t rows,
                           int64_t ignore_index) {
  for (int64_t row = first_item(); row < rows; row += item_step()) {
    const C of_row = top[row] + vmath::log(sums[row]);
    if (lse) lse[row] = of_row;
    losses[row] = targets[row] == ignore_index
                      ? C(0)
                      : loss.value(of_row, picked[row], totals ? totals[row] : C(0));
  }
}

// One block, in f64 and in a fixed order.
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

}  // namespace tessera::op

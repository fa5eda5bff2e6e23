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

// Of each row: its maximum (twice: one is joined with other pieces'), the sum of exp(x - maximum),
// x - maximum of the target, and the sum of x - maximum where `totals` is given. With weights of
// the classes, these two count by them, and the target's own goes to `hits`.
template <class T, class C>
__global__ void row_parts(const T* logits, const int64_t* targets, C* own_top, C* top, C* sums,
                          C* picked, C* totals, int64_t rows, int64_t classes, int64_t stride,
                          int64_t begin, int64_t vocabulary, int64_t ignore_index, const C* weights,
                          C* hits) {
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = logits + row * stride;
    C m = minus_infinity<C>(), sum = 0, total = 0;
    for (int64_t i = threadIdx.x; i < classes; i += blockDim.x)
      m = MaxOf{}(m, static_cast<C>(x[i]));
    m = block_reduce(m, MaxOf{}, shared);
    const C base = base_of(m);
    for (int64_t i = threadIdx.x; i < classes; i += blockDim.x) {
      const C below = static_cast<C>(x[i]) - base;
      sum += vmath::exp(below);
      if (totals) total += weights ? weights[i] * below : below;
    }
    sum = block_reduce(sum, SumOf{}, shared);
    if (totals) total = block_reduce(total, SumOf{}, shared);
    if (threadIdx.x == 0) {
      const int64_t target = targets[row], at = target - begin;
      own_top[row] = top[row] = m;
      sums[row] = sum;
      if (totals) totals[row] = total;
      if (target == ignore_index) picked[row] = 0;
      else if (target < 0 || target >= vocabulary) picked[row] = not_a_number<C>();
      else picked[row] = at >= 0 && at < classes ? static_cast<C>(x[at]) - base : C(0);
      if (weights) {
        const bool here = target != ignore_index && at >= 0 && at < classes;
        hits[row] = here ? weights[at] : C(0);
        if (here) picked[row] *= weights[at];
      }
    }
  }
}

// What row_parts gave for a piece, once the maximum of the whole row is known. `own_weights` is the
// sum of the piece's weights, where there are some.
template <class C>
__global__ void rescale(const int64_t* targets, const C* own_top, const C* top, C* sums, C* picked,
                        C* totals, int64_t rows, int64_t classes, int64_t begin,
                        int64_t ignore_index, const C* own_weights, const C* hits) {
  for (int64_t row = first_item(); row < rows; row += item_step()) {
    const C shift = base_of(own_top[row]) - top[row];
    if (sums[row] != C(0)) sums[row] *= vmath::exp(shift);
    const int64_t at = targets[row] - begin;
    if (targets[row] != ignore_index && at >= 0 && at < classes)
      picked[row] += hits ? hits[row] * shift : shift;
    if (totals && classes > 0)
      totals[row] += (own_weights ? *own_weights : static_cast<C>(classes)) * shift;
  }
}

// The loss of each row, and its log-sum-exp where that is asked for. `hits` are the weights of the
// targets and `all` the sum of all weights, where there are some.
template <class C>
__global__ void row_losses(const int64_t* targets, const C* top, const C* sums, const C* picked,
                           const C* totals, RowLoss<C> loss, C* lse, C* losses, int64_t rows,
                           int64_t ignore_index, const C* hits, const C* all) {
  for (int64_t row = first_item(); row < rows; row += item_step()) {
    const C log_sum = vmath::log(sums[row]);
    if (lse) lse[row] = top[row] + log_sum;
    losses[row] = targets[row] == ignore_index
                      ? C(0)
                      : loss.value(top[row], log_sum, picked[row], totals ? totals[row] : C(0),
                                   hits ? loss.share(hits[row], all ? *all : C(0)) : C(1));
  }
}

// One block, in f64 and in a fixed order.
template <class C>
__global__ void sum_losses(const C* losses, const int64_t* targets, C* sum, int64_t* count,
                           int64_t rows, int64_t ignore_index) {
  auto& sums = block_shared<double[32]>();
  auto& counts = block_shared<int64_t[32]>();
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

// SPDX-License-Identifier: Apache-2.0
// CUDA linear_cross_entropy: products by cuBLASLt with f32 sums, rows of a chunk's logits as
// cross_entropy takes them.
#include "tessera/kernels/linear_cross_entropy/chunks_impl.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/products/gemm_impl.h"
#include "tessera/kernels/shared/loss_rows.cuh"
#include "tessera/kernels/shared/pack.cuh"

namespace tessera::op {
namespace {

// Rows of logits, `stride` elements apart.
template <class T> struct LogitRows {
  T* at;
  int64_t rows, classes, stride;
};
constexpr int kThreadsOfARow = 1024;
constexpr int kBytes = 16;  // of a load

// What a thread has seen of a row: the maximum, the sum of exp(x - maximum) and that of x.
template <class C> struct Seen {
  C top = minus_infinity<C>(), sum = 0, total = 0;

  template <class T, int n> __device__ __forceinline__ void take(const Pack<T, n>& x) {
    C high = top;
#pragma unroll
    for (int e = 0; e < n; ++e) high = MaxOf{}(high, static_cast<C>(x.v[e]));
    const C base = base_of(high);
    if (high != top) sum *= vmath::exp(top - base);
    top = high;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      sum += vmath::exp(static_cast<C>(x.v[e]) - base);
      total += static_cast<C>(x.v[e]);
    }
  }
};

// f(first element, pack) of the packs of a row that are this thread's, then of single elements
// behind the last whole pack.
template <int kPack, class T, class F>
__device__ __forceinline__ void each_pack(const T* row, int64_t n, F f) {
  const int64_t whole = n / kPack * kPack;
  for (int64_t i = threadIdx.x * kPack; i < whole; i += blockDim.x * kPack)
    f(i, load_pack<kPack>(row + i));
  for (int64_t i = whole + threadIdx.x; i < n; i += blockDim.x) f(i, load_pack<1>(row + i));
}

// A row's logits become the loss's gradient. All threads of the block call it.
template <class C, int kPack, class T>
__device__ void write_gradient(const LogitRows<T>& x, int64_t row, int64_t target, C base, C scale,
                               const RowLoss<C>& loss, bool counts) {
  T* const at = x.at + row * x.stride;
  each_pack<kPack>(at, x.classes, [&]<int n>(int64_t i, Pack<T, n> g) {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      C slope = 0;
      if (counts) {
        slope = vmath::exp(static_cast<C>(g.v[e]) - base) * scale - loss.each;
        if (i + e == target) slope -= loss.hit;
      }
      g.v[e] = static_cast<T>(slope);
    }
    store_pack(at + i, g);
  });
}

// The loss of each row, and its gradient in the place of the logits: a block reads a row twice, of
// 16-bit logits the second time from the L2 cache.
template <class T, class C, int kPack, bool kGradient>
__global__ void __launch_bounds__(kThreadsOfARow, 1)
    whole_rows(LogitRows<T> x, const int64_t* targets, RowLoss<C> loss, C* losses, int64_t begin,
               int64_t vocabulary, int64_t ignore_index) {
  auto& shared = block_shared<C[32]>();
  for (int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const T* const at = x.at + row * x.stride;
    Seen<C> seen;
    each_pack<kPack>(at, x.classes, [&](int64_t, const auto& pack) { seen.take(pack); });
    const C top = block_reduce(seen.top, MaxOf{}, shared), base = base_of(top);
    // A thread that saw nothing, or -inf alone, has a sum of 0 and would multiply it by inf or NaN.
    const C own = seen.sum == C(0) ? C(0) : seen.sum * vmath::exp(seen.top - base);
    const C sum = block_reduce(own, SumOf{}, shared), log_sum = vmath::log(sum);
    C total = 0;
    if (loss.each != C(0))
      total = block_reduce(seen.total, SumOf{}, shared) - static_cast<C>(x.classes) * base;
    const int64_t target = targets[row], place = target - begin;
    const bool counts = target != ignore_index;
    if (threadIdx.x == 0) {
      C picked = place >= 0 && place < x.classes ? static_cast<C>(at[place]) - base : C(0);
      if (target < 0 || target >= vocabulary) picked = not_a_number<C>();
      losses[row] = counts ? loss.value(top, log_sum, picked, total) : C(0);
    }
    if constexpr (kGradient) {
      __syncthreads();  // the target's logit is read
      const C scale = loss.softmax_share(top + log_sum) / sum;
      write_gradient<C, kPack>(x, row, place, base, scale, loss, counts);
    }
  }
}

// The same gradient of a piece of each row, of which other pieces have a part of the sum.
template <class T, class C, int kPack>
__global__ void __launch_bounds__(kThreadsOfARow, 1)
    piece_gradients(LogitRows<T> x, const int64_t* targets, const C* top, const C* sums,
                    RowLoss<C> loss, int64_t begin, int64_t ignore_index) {
  for (int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const int64_t target = targets[row];
    const C scale = loss.softmax_share(top[row] + vmath::log(sums[row])) / sums[row];
    write_gradient<C, kPack>(x, row, target - begin, base_of(top[row]), scale, loss,
                             target != ignore_index);
  }
}

template <class From, class To> __global__ void convert(const From* x, To* y, int64_t n) {
  for (int64_t i = first_item(); i < n; i += item_step()) y[i] = static_cast<To>(x[i]);
}

template <class T, int kPack>
__global__ void multiply_all(const T* x, const compute_t<T>* factor, T* y, int64_t n) {
  const compute_t<T> by = *factor;
  for (int64_t i = first_item(); i < n / kPack; i += item_step()) {
    Pack<T, kPack> p = load_pack<kPack>(x + i * kPack);
#pragma unroll
    for (int e = 0; e < kPack; ++e) p.v[e] = static_cast<T>(static_cast<compute_t<T>>(p.v[e]) * by);
    store_pack(y + i * kPack, p);
  }
}

void write_zeros(const Tensor& x, Stream stream) {
  if (x.numel() == 0) return;
  check_cuda(cudaMemsetAsync(x.raw_device_data(), 0,
                             static_cast<size_t>(x.numel() * item_size(x.dtype())), handle(stream)),
             LinearCrossEntropy::name);
}

// The losses of rows of logits and, if some are asked for, their gradients in their place.
template <class T, class C>
void finish_rows(const LinearCrossEntropy& op, const LogitRows<T>& x, const int64_t* targets,
                 const RowLoss<C>& loss, C* losses, Device device, Stream stream) {
  constexpr int kPack = kPackOf<T, kBytes>;
  const bool gradient = op.hidden_gradient || op.weight_gradient;
  const int64_t vocabulary = op.vocabulary ? op.vocabulary : x.classes;
  const auto in_rows = [&](auto kernel, auto... more) {
    launch(kernel, blocks_for(x.rows, 1), threads_for(ceil_div(x.classes, kPack), kThreadsOfARow),
           0, stream, x, targets, more...);
  };
  if (!op.joiner) {
    const auto kernel = gradient ? whole_rows<T, C, kPack, true> : whole_rows<T, C, kPack, false>;
    return in_rows(kernel, loss, losses, op.begin, vocabulary, op.ignore_index);
  }
  const auto scratch = [&](const Shape& s) { return empty(s, dtype_of<C>, device); };
  const Tensor own_top = scratch({x.rows}), top = scratch({x.rows});
  const Tensor sums = scratch({op.label_smoothing > 0 ? 3 : 2, x.rows});
  C *const sum = sums.device_data<C>(), *const picked = sum + x.rows,
           *const totals = op.label_smoothing > 0 ? picked + x.rows : nullptr;
  const auto per_row = [&](auto kernel, auto... more) {
    launch(kernel, blocks_for(x.rows), kThreads, 0, stream, targets, more...);
  };
  launch(row_parts<T, C>, blocks_for(x.rows, 1), threads_for(x.classes, kRowThreads), 0, stream,
         x.at, targets, own_top.device_data<C>(), top.device_data<C>(), sum, picked, totals, x.rows,
         x.classes, x.stride, op.begin, vocabulary, op.ignore_index, nullptr, nullptr);
  op.joiner->all_reduce(top, Join::max);
  per_row(rescale<C>, own_top.device_data<C>(), top.device_data<C>(), sum, picked, totals, x.rows,
          x.classes, op.begin, op.ignore_index, nullptr, nullptr);
  op.joiner->all_reduce(sums, Join::sum);
  per_row(row_losses<C>, top.device_data<C>(), sum, picked, totals, loss, nullptr, losses, x.rows,
          op.ignore_index, nullptr, nullptr);
  if (gradient)
    in_rows(piece_gradients<T, C, kPack>, top.device_data<C>(), sum, loss, op.begin,
            op.ignore_index);
}

// Rows [from, from + rows) of a row-major matrix.
Tensor rows_of(const Tensor& x, int64_t from, int64_t rows, int64_t columns) {
  return alias(x, {rows, columns}, {columns, 1}, x.offset() + from * columns);
}

}  // namespace

void LinearCrossEntropy::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor hidden = row_major(in[0], stream), weight = row_major(in[1], stream),
               targets = row_major(in[2], stream);
  const int64_t tokens = targets.numel(), classes = weight.shape()[0], d = weight.shape()[1],
                all_classes = vocabulary ? vocabulary : classes,
                step = device_chunk_tokens(tokens, all_classes, item_size(hidden.dtype())),
                stride = device_row_stride(classes);
  dispatch<dtypes>(hidden.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto scratch = [&](const Shape& s, DType t = dtype_of<C>) {
      return empty(s, t, hidden.device());
    };
    const RowLoss<C> loss(label_smoothing, z_loss, all_classes);
    const bool narrow = dtype_of<T> != dtype_of<C>, gradient = hidden_gradient || weight_gradient;
    const bool hidden_aside = hidden_gradient && joiner && narrow,
               weight_aside = weight_gradient && narrow && step < tokens;
    // Logits are rounded to T, as a tensor of them would be, and become their gradient.
    const Tensor losses = scratch({tokens}), logits = scratch({step, stride}, dtype_of<T>);
    const Tensor d_hidden = hidden_aside ? scratch({tokens, d}) : y[2];
    const Tensor d_weight = weight_aside ? scratch({classes, d}) : y[3];
    if (!hidden_gradient) write_zeros(y[2], stream);
    if (!weight_gradient || tokens == 0) write_zeros(d_weight, stream);
    for (int64_t from = 0; from < tokens; from += step) {
      const int64_t rows = std::min(step, tokens - from);
      const Tensor h = rows_of(hidden, from, rows, d),
                   x = alias(logits, {rows, classes}, {stride, 1}, logits.offset());
      const LogitRows<T> of{x.device_data<T>(), rows, classes, stride};
      device_gemm(h, false, weight, true, x, false, stream);
      finish_rows(*this, of, targets.device_data<int64_t>() + from, loss,
                  losses.device_data<C>() + from, hidden.device(), stream);
      if (!gradient) continue;
      if (hidden_gradient)
        device_gemm(x, false, weight, false, rows_of(d_hidden, from, rows, d), false, stream);
      if (weight_gradient) device_gemm(x, true, h, false, d_weight, from > 0, stream);
    }
    if (hidden_gradient && joiner && tokens > 0) joiner->all_reduce(d_hidden, Join::sum);
    const auto round = [&](const Tensor& x, const Tensor& to) {
      if (to.numel() == 0) return;
      launch(convert<C, T>, blocks_for(to.numel()), kThreads, 0, stream, x.device_data<C>(),
             to.device_data<T>(), to.numel());
    };
    if (hidden_aside) round(d_hidden, y[2]);
    if (weight_aside) round(d_weight, y[3]);
    launch(sum_losses<C>, 1, kSumThreads, 0, stream, losses.device_data<C>(),
           targets.device_data<int64_t>(), y[0].device_data<C>(), y[1].device_data<int64_t>(),
           tokens, ignore_index);
  });
}

void LinearCrossEntropyBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor x = row_major(in[0], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* const from = x.device_data<T>();
    T* const to = y[0].device_data<T>();
    with_pack<kBytes>(
        n % kPackOf<T, kBytes> == 0,
        [&]<int kPack>() {
          launch(multiply_all<T, kPack>, blocks_for(n / kPack), kThreads, 0, stream, from,
                 in[1].device_data<compute_t<T>>(), to, n);
        },
        static_cast<const T*>(to), from);
  });
}

}  // namespace tessera::op

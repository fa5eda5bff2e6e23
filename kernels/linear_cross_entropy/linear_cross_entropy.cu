// SPDX-License-Identifier: Apache-2.0
// CUDA linear_cross_entropy: products by cuBLASLt with f32 sums, rows of a chunk's logits as
// cross_entropy takes them.
#include "tessera/kernels/linear_cross_entropy/chunks_impl.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/products/gemm_impl.h"
#include "tessera/kernels/shared/loss_rows.cuh"

namespace tessera::op {
namespace {

// Logits become the loss's gradient, in the dtype of the products.
template <class C, class T>
__global__ void row_gradients(const C* logits, const int64_t* targets, const C* top, const C* sums,
                              RowLoss<C> loss, T* gradients, int64_t n, int64_t classes,
                              int64_t begin, int64_t ignore_index) {
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const int64_t row = i / classes, target = targets[row];
    C g = 0;
    if (target != ignore_index) {
      const C scale = loss.softmax_share(top[row] + vmath::log(sums[row])) / sums[row];
      g = vmath::exp(logit_of<T, C>(logits[i]) - base_of(top[row])) * scale - loss.each;
      if (i % classes == target - begin) g -= loss.hit;
    }
    gradients[i] = static_cast<T>(g);
  }
}

template <class From, class To> __global__ void convert(const From* x, To* y, int64_t n) {
  for (int64_t i = first_item(); i < n; i += item_step()) y[i] = static_cast<To>(x[i]);
}

template <class T>
__global__ void multiply_all(const T* x, const compute_t<T>* factor, T* y, int64_t n) {
  for (int64_t i = first_item(); i < n; i += item_step())
    y[i] = static_cast<T>(static_cast<compute_t<T>>(x[i]) * *factor);
}

void write_zeros(const Tensor& x, Stream stream) {
  if (x.numel() == 0) return;
  check_cuda(cudaMemsetAsync(x.raw_device_data(), 0,
                             static_cast<size_t>(x.numel() * item_size(x.dtype())), handle(stream)),
             LinearCrossEntropy::name);
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
                step = chunk_tokens(tokens, all_classes, weight_gradient ? d : 0,
                                    item_size(hidden.dtype()));
  dispatch<dtypes>(hidden.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const auto scratch = [&](const Shape& s, DType t = dtype_of<C>) {
      return empty(s, t, hidden.device());
    };
    const RowLoss<C> loss(label_smoothing, z_loss, all_classes);
    const bool narrow = dtype_of<T> != dtype_of<C>, gradient = hidden_gradient || weight_gradient;
    const bool hidden_aside = hidden_gradient && joiner && narrow,
               weight_aside = weight_gradient && narrow && step < tokens;
    const Tensor losses = scratch({tokens}), logits = scratch({step, classes});
    const Tensor dlogits = gradient ? scratch({step, classes}, dtype_of<T>) : Tensor();
    const Tensor d_hidden = hidden_aside ? scratch({tokens, d}) : y[2];
    const Tensor d_weight = weight_aside ? scratch({classes, d}) : y[3];
    if (!hidden_gradient) write_zeros(y[2], stream);
    if (!weight_gradient || tokens == 0) write_zeros(d_weight, stream);
    for (int64_t from = 0; from < tokens; from += step) {
      const int64_t rows = std::min(step, tokens - from), n = rows * classes;
      const Tensor h = rows_of(hidden, from, rows, d), x = rows_of(logits, 0, rows, classes);
      const int64_t* target = targets.device_data<int64_t>() + from;
      device_gemm(h, false, weight, true, x, false, stream);
      const Tensor own_top = scratch({rows}), top = scratch({rows});
      const Tensor sums = scratch({label_smoothing > 0 ? 3 : 2, rows});
      C* const sum = sums.device_data<C>();
      C* const totals = label_smoothing > 0 ? sum + 2 * rows : nullptr;
      launch(row_parts<T, C, C>, blocks_for(rows, 1), threads_for(classes, kRowThreads), 0, stream,
             x.device_data<C>(), target, own_top.device_data<C>(), top.device_data<C>(), sum,
             sum + rows, totals, rows, classes, begin, all_classes, ignore_index, nullptr, nullptr);
      if (joiner) {
        joiner->all_reduce(top, Join::max);
        launch(rescale<C>, blocks_for(rows), kThreads, 0, stream, target, own_top.device_data<C>(),
               top.device_data<C>(), sum, sum + rows, totals, rows, classes, begin, ignore_index,
               nullptr, nullptr);
        joiner->all_reduce(sums, Join::sum);
      }
      launch(row_losses<C>, blocks_for(rows), kThreads, 0, stream, target, top.device_data<C>(),
             sum, sum + rows, totals, loss, nullptr, losses.device_data<C>() + from, rows,
             ignore_index, nullptr, nullptr);
      if (!gradient) continue;
      const Tensor dx = rows_of(dlogits, 0, rows, classes);
      if (n > 0) {
        launch(row_gradients<C, T>, blocks_for(n), kThreads, 0, stream, x.device_data<C>(), target,
               top.device_data<C>(), sum, loss, dx.device_data<T>(), n, classes, begin,
               ignore_index);
      }
      if (hidden_gradient)
        device_gemm(dx, false, weight, false, rows_of(d_hidden, from, rows, d), false, stream);
      if (weight_gradient) device_gemm(dx, true, h, false, d_weight, from > 0, stream);
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
    launch(multiply_all<T>, blocks_for(n), kThreads, 0, stream, x.device_data<T>(),
           in[1].device_data<compute_t<T>>(), y[0].device_data<T>(), n);
  });
}

}  // namespace tessera::op

// SPDX-License-Identifier: Apache-2.0
// CUDA matrix products. A product for which cuBLASLt has no algorithm is tried again on aligned
// copies of its matrices, and then done element by element.
#include "tessera/kernels/matmul/cublas_product.cuh"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/products/gemm_impl.h"

#include <type_traits>

namespace tessera::op {
namespace {

Matrices usable(const Tensor& x, bool transpose, Stream stream) {
  Matrices m(x, transpose);
  if (m.by_rows() || m.by_columns()) return m;
  return Matrices(row_major(x, stream), transpose);
}

// --- products without cuBLASLt -------------------------------------------------------------------------------------

// False, and nothing done, if that changes nothing or does not help.
bool run_on_copies(const Matrices& a, const Matrices& b, const Matrices& c, int64_t batch,
                   bool accumulate, Stream stream) {
  if (a.aligned() && b.aligned() && c.aligned()) return false;
  const auto place = [&](const Matrices& m) { return m.aligned() ? m : m.aligned_like(batch); };
  const Matrices to_a = place(a), to_b = place(b), to_c = place(c);
  if (!Library::of(stream.device).plan(Problem::of(to_a, to_b, to_c, batch, accumulate)))
    return false;
  const auto copy = [&](const Matrices& from, const Matrices& to) {
    if (from.data() != to.data()) copy_strided(from.view(batch), to.view(batch), stream);
  };
  copy(a, to_a);
  copy(b, to_b);
  if (accumulate) copy(c, to_c);
  (void)run(to_a, to_b, to_c, batch, accumulate, stream);
  copy(to_c, c);
  return true;
}

template <class T> struct Elements {
  T* p;
  int64_t row_stride, column_stride, step;

  explicit Elements(const Matrices& m)
      : p(reinterpret_cast<T*>(m.data())),
        row_stride(m.row_stride),
        column_stride(m.column_stride),
        step(m.step) {}
};

// A thread sums an element of c (batch, m, n), in the order of k.
template <class T, class Out>
__global__ void multiply_elements(Elements<T> a, Elements<T> b, Elements<Out> c, int64_t total,
                                  int64_t m, int64_t n, int64_t k, bool accumulate) {
  using Sum = std::conditional_t<sizeof(T) == 8, double, float>;
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t column = i % n, row = i / n % m, matrix = i / n / m;
    const T* left = a.p + matrix * a.step + row * a.row_stride;
    const T* right = b.p + matrix * b.step + column * b.column_stride;
    Sum sum = 0;
    for (int64_t p = 0; p < k; ++p)
      sum +=
          static_cast<Sum>(left[p * a.column_stride]) * static_cast<Sum>(right[p * b.row_stride]);
    Out& to = c.p[matrix * c.step + row * c.row_stride + column * c.column_stride];
    if (accumulate) sum += static_cast<Sum>(to);
    to = Out(sum);
  }
}

void run_by_elements(const Matrices& a, const Matrices& b, const Matrices& c, int64_t batch,
                     bool accumulate, Stream stream) {
  const int64_t total = batch * c.rows * c.columns;
  dispatch<MatMul::dtypes>(a.t.dtype(), [&]<class T>() {
    const auto into = [&]<class Out>(Elements<Out> to) {
      launch(multiply_elements<T, Out>, blocks_for(total), kThreads, 0, stream, Elements<T>(a),
             Elements<T>(b), to, total, c.rows, c.columns, a.columns, accumulate);
    };
    if (c.t.dtype() == a.t.dtype()) into(Elements<T>(c));
    else into(Elements<float>(c));
  });
}

void run_one(const Matrices& a, const Matrices& b, const Matrices& c, int64_t batch,
             bool accumulate, Stream stream) {
  if (run(a, b, c, batch, accumulate, stream)) return;
  if (run_on_copies(a, b, c, batch, accumulate, stream)) return;
  run_by_elements(a, b, c, batch, accumulate, stream);
}

// --- batches -------------------------------------------------------------------------------------------------------

// Batch dims of the output, with the strides of a and b over them (0 where broadcast), merged where
// both allow it.
struct Batch {
  Shape sizes, a, b;

  void add(int64_t size, int64_t stride_a, int64_t stride_b) {
    if (size == 1) return;
    const int last = sizes.rank() - 1;
    if (last >= 0 && a[last] == stride_a * size && b[last] == stride_b * size) {
      sizes[last] *= size;
      a[last] = stride_a;
      b[last] = stride_b;
    } else {
      sizes.push_back(size);
      a.push_back(stride_a);
      b.push_back(stride_b);
    }
  }
};

int64_t batch_stride(const Tensor& x, int dim, int rank) {
  const int d = dim - (rank - x.rank());
  return d < 0 || x.shape()[d] == 1 ? 0 : x.strides()[d];
}

void multiply(Matrices a, Matrices b, const Tensor& y, Stream stream, bool accumulate = false) {
  Matrices c(y, false);
  if (y.numel() == 0) return;
  if (a.columns == 0) {
    if (accumulate) return;
    TESSERA_CUDA_CALL(cudaMemsetAsync(y.raw_device_data(), 0,
                                      static_cast<size_t>(y.numel() * item_size(y.dtype())),
                                      handle(stream)));
    return;
  }
  Batch batch;
  for (int d = 0; d < y.rank() - 2; ++d)
    batch.add(y.shape()[d], batch_stride(a.t, d, y.rank()), batch_stride(b.t, d, y.rank()));
  // The innermost batch dim is one strided call, the outer ones a loop of such calls.
  const int last = batch.sizes.rank() - 1;
  const int64_t inner = last < 0 ? 1 : batch.sizes[last], calls = batch.sizes.numel() / inner;
  if (last >= 0) a.step = batch.a[last], b.step = batch.b[last];
  if (last >= 0) c.step = c.rows * c.columns;
  for (int64_t call = 0; call < calls; ++call) {
    a.at = b.at = 0;
    int64_t rest = call;
    for (int d = last - 1; d >= 0; --d) {
      const int64_t i = rest % batch.sizes[d];
      rest /= batch.sizes[d];
      a.at += i * batch.a[d];
      b.at += i * batch.b[d];
    }
    c.at = call * inner * c.rows * c.columns;
    run_one(a, b, c, inner, accumulate, stream);
  }
}

// (..., d) as (all, d), copied only where the leading dims cannot be merged.
Tensor merge_leading(const Tensor& x, Stream stream) {
  const int64_t d = x.shape().back(), rows = x.shape().without(x.rank() - 1).numel();
  const Tensor whole = row_major(x, stream);
  return alias(whole, {rows, d}, {d, 1}, whole.offset());
}

}  // namespace

void MatMul::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor &a = in[0], &b = in[1];
  if (y[0].numel() == 0) return;
  if (b.rank() == 2 && a.rank() > 2 && !transpose_a && a.is_contiguous()) {
    // One weight for all leading dims: one tall product.
    const int64_t k = a.shape().back(), n = y[0].shape().back();
    const Tensor flat_a = alias(a, {y[0].numel() / n, k}, {k, 1}, a.offset());        // (... m, k)
    const Tensor flat_y = alias(y[0], {y[0].numel() / n, n}, {n, 1}, y[0].offset());  // (... m, n)
    return multiply(Matrices(flat_a, false), usable(b, transpose_b, stream), flat_y, stream);
  }
  multiply(usable(a, transpose_a, stream), usable(b, transpose_b, stream), y[0], stream);
}

void ContractLeading::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor a = merge_leading(in[0], stream),
               b = merge_leading(in[1], stream);  // (l, m), (l, n)
  multiply(Matrices(a, true), Matrices(b, false), y[0], stream);
}

}  // namespace tessera::op

namespace tessera {

void device_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                 const Tensor& c, bool accumulate, Stream stream) {
  op::multiply(op::Matrices(a, transpose_a), op::Matrices(b, transpose_b), c, stream, accumulate);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// CUDA matrix products by cuBLASLt: strided and batched, transposed operands without copies, f32
// accumulation for the narrow floats and true f32 (no TF32). The algorithm of a shape is asked for
// once and kept, per rank thread. A product for which the library has no algorithm is tried again
// on aligned copies of its matrices, and then done element by element.
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/products/gemm_impl.h"
#include "tessera/kernels/shared/launch.cuh"

#include <cublasLt.h>

#include <map>
#include <memory>
#include <optional>
#include <type_traits>

namespace tessera::op {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail<DeviceError>("matmul", call, " failed: ", cublasLtGetStatusString(status));
}
#define TESSERA_CUBLAS_CALL(call) check_cublas(call, #call)

// --- operands ------------------------------------------------------------------------------------------------------

// A batch of matrices in a tensor's storage: element (b, r, c) lies at
// at + b * step + r * row_stride + c * column_stride, in elements.
struct Matrices {
  Tensor t;
  int64_t rows, columns, row_stride, column_stride;
  int64_t at = 0, step = 0;

  // The last two dims; the dims before them are the batch.
  Matrices(Tensor x, bool transpose) : t(std::move(x)) {
    const int last = t.rank() - 1;
    rows = t.shape()[last - 1], columns = t.shape()[last];
    row_stride = t.strides()[last - 1], column_stride = t.strides()[last];
    if (transpose) {
      std::swap(rows, columns);
      std::swap(row_stride, column_stride);
    }
  }
  // Rows lie one after the other, or columns do; where a size is 1 its stride says nothing.
  [[nodiscard]] bool by_rows() const {
    return (columns == 1 || column_stride == 1) && (rows == 1 || row_stride >= columns);
  }
  [[nodiscard]] bool by_columns() const {
    return (rows == 1 || row_stride == 1) && (columns == 1 || column_stride >= rows);
  }
  [[nodiscard]] int64_t leading() const {
    if (by_rows()) return rows == 1 ? columns : row_stride;
    return columns == 1 ? rows : column_stride;
  }
  [[nodiscard]] char* data() const {
    return static_cast<char*>(t.raw_device_data()) + at * item_size(t.dtype());
  }
  [[nodiscard]] int64_t alignment() const {
    const auto address = reinterpret_cast<uintptr_t>(data());
    return static_cast<int64_t>(std::min<uintptr_t>(256, address & (~address + 1)));
  }
  [[nodiscard]] bool aligned() const {
    const int64_t item = item_size(t.dtype());
    return alignment() % kVector == 0 && leading() * item % kVector == 0 &&
           step * item % kVector == 0;
  }
  // As a tensor (batch, rows, columns).
  [[nodiscard]] Tensor view(int64_t batch) const {
    return alias(t, {batch, rows, columns}, {step, row_stride, column_stride}, t.offset() + at);
  }
  // Uninitialized memory for as many, in which each row begins on kVector bytes.
  [[nodiscard]] Matrices aligned_like(int64_t batch) const {
    const int64_t per_vector = kVector / item_size(t.dtype());
    const int64_t padded = ceil_div(columns, per_vector) * per_vector;
    Matrices m(empty({batch, rows, padded}, t.dtype(), t.device()), false);
    m.columns = columns;
    m.step = rows * padded;
    return m;
  }

  static constexpr int64_t kVector = 16;  // bytes of the widest load
};

Matrices usable(const Tensor& x, bool transpose, Stream stream) {
  Matrices m(x, transpose);
  if (m.by_rows() || m.by_columns()) return m;
  return Matrices(row_major(x, stream), transpose);
}

// --- plans ---------------------------------------------------------------------------------------------------------

// Row-major C = A B is column-major C' = B' A', so cuBLASLt's first operand is b, with (n, m, k).
struct Problem {
  int64_t dtype, m, n, k, lda, ldb, ldc, a_by_rows, b_by_rows, batch, stride_a, stride_b, stride_c,
      align_a, align_b, align_c, c_dtype, accumulate;
  auto operator<=>(const Problem&) const = default;

  static Problem of(const Matrices& a, const Matrices& b, const Matrices& c, int64_t batch,
                    bool accumulate) {
    return {static_cast<int64_t>(a.t.dtype()),
            c.rows,
            c.columns,
            a.columns,
            a.leading(),
            b.leading(),
            c.leading(),
            a.by_rows(),
            b.by_rows(),
            batch,
            a.step,
            b.step,
            c.step,
            a.alignment(),
            b.alignment(),
            c.alignment(),
            static_cast<int64_t>(c.t.dtype()),
            accumulate};
  }
};

template <class T, cublasStatus_t (*kDestroy)(T)> struct Destroy {
  void operator()(T p) const { (void)kDestroy(p); }
};
template <class T, cublasStatus_t (*kDestroy)(T)>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, kDestroy>>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

struct Plan {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  int64_t workspace = 0;
};

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: fail<DTypeError>("matmul", "no CUDA kernel for ", t);
  }
}

Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t leading,
                   int64_t batch, int64_t stride) {
  cublasLtMatrixLayout_t raw = nullptr;
  TESSERA_CUBLAS_CALL(cublasLtMatrixLayoutCreate(&raw, type, static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(columns), leading));
  Layout layout(raw);
  const auto count = static_cast<int32_t>(batch);
  TESSERA_CUBLAS_CALL(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                       &count, sizeof(count)));
  TESSERA_CUBLAS_CALL(cublasLtMatrixLayoutSetAttribute(
      raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  return layout;
}

template <class V>
void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what,
            V value) {
  TESSERA_CUBLAS_CALL(
      cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value)));
}

// None if cuBLASLt has no algorithm.
std::optional<Plan> make_plan(cublasLtHandle_t cublas, const Problem& p) {
  const auto dtype = static_cast<DType>(p.dtype);
  const cudaDataType_t type = type_of(dtype);
  const bool f64 = dtype == DType::f64;
  Plan plan;
  cublasLtMatmulDesc_t product = nullptr;
  TESSERA_CUBLAS_CALL(cublasLtMatmulDescCreate(
      &product, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, f64 ? CUDA_R_64F : CUDA_R_32F));
  plan.product.reset(product);
  const cublasOperation_t op_b = p.b_by_rows ? CUBLAS_OP_N : CUBLAS_OP_T,
                          op_a = p.a_by_rows ? CUBLAS_OP_N : CUBLAS_OP_T;
  TESSERA_CUBLAS_CALL(
      cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof(op_b)));
  TESSERA_CUBLAS_CALL(
      cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof(op_a)));
  plan.b = make_layout(type, p.b_by_rows ? p.n : p.k, p.b_by_rows ? p.k : p.n, p.ldb, p.batch,
                       p.stride_b);
  plan.a = make_layout(type, p.a_by_rows ? p.k : p.m, p.a_by_rows ? p.m : p.k, p.lda, p.batch,
                       p.stride_a);
  plan.c =
      make_layout(type_of(static_cast<DType>(p.c_dtype)), p.n, p.m, p.ldc, p.batch, p.stride_c);

  cublasLtMatmulPreference_t raw = nullptr;
  TESSERA_CUBLAS_CALL(cublasLtMatmulPreferenceCreate(&raw));
  const Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(raw);
  prefer(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{32} << 20);
  // Split sums may not round to the narrow output type on the way.
  prefer(raw, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.align_b));
  prefer(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.align_a));
  prefer(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.align_c));
  prefer(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.align_c));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(cublas, product, plan.b.get(), plan.a.get(), plan.c.get(),
                                     plan.c.get(), raw, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0) return {};
  plan.algorithm = found.algo;
  plan.workspace = static_cast<int64_t>(found.workspaceSize);
  return plan;
}

// One handle and its plans per thread and device.
struct Library {
  static constexpr size_t kMostPlans = 4096;
  Owned<cublasLtHandle_t, cublasLtDestroy> cublas;
  std::map<Problem, std::optional<Plan>> plans;

  static Library& of(Device device) {
    thread_local std::map<int, Library> libraries;
    Library& library = libraries[device.index];
    if (!library.cublas) {
      cublasLtHandle_t raw = nullptr;
      TESSERA_CUBLAS_CALL(cublasLtCreate(&raw));
      library.cublas.reset(raw);
    }
    return library;
  }
  const std::optional<Plan>& plan(const Problem& p) {
    const auto found = plans.find(p);
    if (found != plans.end()) return found->second;
    if (plans.size() >= kMostPlans) plans.clear();
    return plans.emplace(p, make_plan(cublas.get(), p)).first->second;
  }
};

// False, and nothing done, if cuBLASLt has no algorithm.
bool run(const Matrices& a, const Matrices& b, const Matrices& c, int64_t batch, bool accumulate,
         Stream stream) {
  Library& library = Library::of(stream.device);
  const std::optional<Plan>& plan = library.plan(Problem::of(a, b, c, batch, accumulate));
  if (!plan) return false;
  const Tensor workspace = empty({plan->workspace}, DType::u8, stream.device);
  const double one = 1, kept = accumulate ? 1 : 0;
  const float one_f32 = 1, kept_f32 = accumulate ? 1 : 0;
  const bool f64 = a.t.dtype() == DType::f64;
  const void* alpha = f64 ? static_cast<const void*>(&one) : &one_f32;
  const void* beta = f64 ? static_cast<const void*>(&kept) : &kept_f32;
  TESSERA_CUBLAS_CALL(cublasLtMatmul(
      library.cublas.get(), plan->product.get(), alpha, b.data(), plan->b.get(), a.data(),
      plan->a.get(), beta, c.data(), plan->c.get(), c.data(), plan->c.get(), &plan->algorithm,
      workspace.raw_device_data(), static_cast<size_t>(plan->workspace), handle(stream)));
  return true;
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

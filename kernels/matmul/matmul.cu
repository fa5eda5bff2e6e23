// SPDX-License-Identifier: Apache-2.0
// CUDA matrix products by cuBLASLt: strided and batched, transposed operands without copies, f32
// accumulation for the narrow floats and true f32 (no TF32). The algorithm of a shape is asked for
// once and kept, per rank thread.
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/products/gemm_impl.h"
#include "tessera/kernels/shared/launch.cuh"

#include <cublasLt.h>

#include <map>
#include <memory>

namespace tessera::op {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail<DeviceError>("matmul", call, " failed: ", cublasLtGetStatusString(status));
}
#define TESSERA_CUBLAS_CALL(call) check_cublas(call, #call)

// --- operands ------------------------------------------------------------------------------------------------------

// Two dims of a tensor as rows and columns, the dims before them as the batch.
struct Matrix {
  Tensor t;
  int64_t rows, columns, row_stride, column_stride;

  Matrix(Tensor x, bool transpose) : t(std::move(x)) {
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
};

int64_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<int64_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

Matrix usable(const Tensor& x, bool transpose, Stream stream) {
  Matrix m(x, transpose);
  if (m.by_rows() || m.by_columns()) return m;
  return Matrix(row_major(x, stream), transpose);
}

// --- plans ---------------------------------------------------------------------------------------------------------

// Row-major C = A B is column-major C' = B' A', so cuBLASLt's first operand is b, with (n, m, k).
struct Problem {
  int64_t dtype, m, n, k, lda, ldb, a_by_rows, b_by_rows, batch, stride_a, stride_b, align_a,
      align_b, align_c, c_dtype, accumulate;
  auto operator<=>(const Problem&) const = default;
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

Plan make_plan(cublasLtHandle_t cublas, const Problem& p) {
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
  plan.c = make_layout(type_of(static_cast<DType>(p.c_dtype)), p.n, p.m, p.n, p.batch, p.m * p.n);

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
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    fail<DeviceError>("matmul", "cuBLASLt has no algorithm for ", dtype, " (", p.m, ", ", p.k,
                      ") x (", p.k, ", ", p.n, ") in batches of ", p.batch, ": ",
                      cublasLtGetStatusString(status));
  }
  plan.algorithm = found.algo;
  plan.workspace = static_cast<int64_t>(found.workspaceSize);
  return plan;
}

// One handle and its plans per thread and device.
struct Library {
  static constexpr size_t kMostPlans = 4096;
  Owned<cublasLtHandle_t, cublasLtDestroy> cublas;
  std::map<Problem, Plan> plans;

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
  const Plan& plan(const Problem& p) {
    const auto found = plans.find(p);
    if (found != plans.end()) return found->second;
    if (plans.size() >= kMostPlans) plans.clear();
    return plans.emplace(p, make_plan(cublas.get(), p)).first->second;
  }
};

void run(const Problem& p, const void* a, const void* b, void* c, Stream stream) {
  Library& library = Library::of(stream.device);
  const Plan& plan = library.plan(p);
  const Tensor workspace = empty({plan.workspace}, DType::u8, stream.device);
  const double one = 1, kept = p.accumulate ? 1 : 0;
  const float one_f32 = 1, kept_f32 = p.accumulate ? 1 : 0;
  const bool f64 = static_cast<DType>(p.dtype) == DType::f64;
  const void* alpha = f64 ? static_cast<const void*>(&one) : &one_f32;
  const void* beta = f64 ? static_cast<const void*>(&kept) : &kept_f32;
  TESSERA_CUBLAS_CALL(cublasLtMatmul(library.cublas.get(), plan.product.get(), alpha, b,
                                     plan.b.get(), a, plan.a.get(), beta, c, plan.c.get(), c,
                                     plan.c.get(), &plan.algorithm, workspace.raw_device_data(),
                                     static_cast<size_t>(plan.workspace), handle(stream)));
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

void multiply(Matrix a, Matrix b, const Tensor& y, Stream stream, bool accumulate = false) {
  const int64_t m = a.rows, k = a.columns, n = b.columns;
  if (y.numel() == 0) return;
  if (k == 0) {
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
  Problem p{static_cast<int64_t>(a.t.dtype()),
            m,
            n,
            k,
            a.leading(),
            b.leading(),
            a.by_rows(),
            b.by_rows(),
            inner,
            last < 0 ? 0 : batch.a[last],
            last < 0 ? 0 : batch.b[last],
            1,
            1,
            1,
            static_cast<int64_t>(y.dtype()),
            accumulate};
  for (int64_t call = 0; call < calls; ++call) {
    int64_t at_a = 0, at_b = 0, rest = call;
    for (int d = last - 1; d >= 0; --d) {
      const int64_t i = rest % batch.sizes[d];
      rest /= batch.sizes[d];
      at_a += i * batch.a[d];
      at_b += i * batch.b[d];
    }
    const auto at = [&](const Tensor& t, int64_t elements) {
      return static_cast<char*>(t.raw_device_data()) + elements * item_size(t.dtype());
    };
    char* const pa = at(a.t, at_a);
    char* const pb = at(b.t, at_b);
    char* const pc = at(y, call * inner * m * n);
    p.align_a = alignment(pa);
    p.align_b = alignment(pb);
    p.align_c = alignment(pc);
    run(p, pa, pb, pc, stream);
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
    return multiply(Matrix(flat_a, false), usable(b, transpose_b, stream), flat_y, stream);
  }
  multiply(usable(a, transpose_a, stream), usable(b, transpose_b, stream), y[0], stream);
}

void ContractLeading::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor a = merge_leading(in[0], stream),
               b = merge_leading(in[1], stream);  // (l, m), (l, n)
  multiply(Matrix(a, true), Matrix(b, false), y[0], stream);
}

}  // namespace tessera::op

namespace tessera {

void device_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                 const Tensor& c, bool accumulate, Stream stream) {
  op::multiply(op::Matrix(a, transpose_a), op::Matrix(b, transpose_b), c, stream, accumulate);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt: strided and batched, transposed operands without copies, f32 accumulation
// for the narrow floats and true f32 (no TF32). The algorithm of a shape is asked for once and
// kept, per rank thread.
#pragma once

#include "tessera/kernels/shared/launch.cuh"

#include <cublasLt.h>

#include <map>
#include <memory>
#include <optional>

namespace tessera::op {

/// Of cuBLASLt's algorithms for a shape, which it lists by the time that it expects.
inline constexpr int64_t kAlgorithm = 0;
inline constexpr int64_t kMostAlgorithms = 8;  // that are asked for

inline void check_cublas(cublasStatus_t status, const char* call) {
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

// --- plans ---------------------------------------------------------------------------------------------------------

// Row-major C = A B is column-major C' = B' A', so cuBLASLt's first operand is b, with (n, m, k).
struct Problem {
  int64_t dtype, m, n, k, lda, ldb, ldc, a_by_rows, b_by_rows, batch, stride_a, stride_b, stride_c,
      align_a, align_b, align_c, c_dtype, accumulate, algorithm;
  auto operator<=>(const Problem&) const = default;

  static Problem of(const Matrices& a, const Matrices& b, const Matrices& c, int64_t batch,
                    bool accumulate, int64_t algorithm = kAlgorithm) {
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
            accumulate,
            algorithm};
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

inline cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: fail<DTypeError>("matmul", "no CUDA kernel for ", t);
  }
}

inline Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t leading,
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

// None if cuBLASLt has no such algorithm.
inline std::optional<Plan> make_plan(cublasLtHandle_t cublas, const Problem& p) {
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
  cublasLtMatmulHeuristicResult_t found[kMostAlgorithms] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      cublas, product, plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(), raw,
      static_cast<int>(p.algorithm) + 1, found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count <= p.algorithm) return {};
  plan.algorithm = found[p.algorithm].algo;
  plan.workspace = static_cast<int64_t>(found[p.algorithm].workspaceSize);
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

// False, and nothing done, if cuBLASLt has no such algorithm.
inline bool run(const Matrices& a, const Matrices& b, const Matrices& c, int64_t batch,
                bool accumulate, Stream stream, int64_t algorithm = kAlgorithm) {
  Library& library = Library::of(stream.device);
  const std::optional<Plan>& plan =
      library.plan(Problem::of(a, b, c, batch, accumulate, algorithm));
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

}  // namespace tessera::op

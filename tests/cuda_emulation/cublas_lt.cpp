// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's product D = alpha op(A) op(B) + beta C of column-major batches, from the layouts
// alone. An algorithm is good for the problem that it was asked for: other layouts, less workspace
// or a worse alignment than was promised are refused, as the library may. Like the library on one
// device or another, it has no algorithm for some problems: vectors, operands that are not on 16
// bytes, and one shape in eight. It sums k in a number of parts that depends on the problem, so
// that results round otherwise than on the CPU.
#include "cublasLt.h"
#include "cuda_runtime.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace cuda_emulation {

struct Blas {};

struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
};

struct Layout {
  cudaDataType_t type;
  int64_t rows, columns, leading;
  int32_t batch = 1;
  int64_t step = 0;  // elements from one matrix of the batch to the next
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = ~0U;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

constexpr size_t kWorkspace = 1000;  // what an algorithm wants if it may
constexpr int kPoison = 0xff;

double load(const void* p, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_64F: return static_cast<const double*>(p)[i];
    case CUDA_R_32F: return static_cast<double>(static_cast<const float*>(p)[i]);
    case CUDA_R_16F: return static_cast<double>(static_cast<const _Float16*>(p)[i]);
    case CUDA_R_16BF: break;
  }
  return static_cast<double>(
      std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(p)[i]} << 16));
}

void store(void* p, cudaDataType_t type, int64_t i, double x) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(p)[i] = x; return;
    case CUDA_R_32F: static_cast<float*>(p)[i] = static_cast<float>(x); return;
    case CUDA_R_16F:
      static_cast<_Float16*>(p)[i] = static_cast<_Float16>(static_cast<float>(x));
      return;
    case CUDA_R_16BF: break;
  }
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  const bool nan = x != x;
  static_cast<uint16_t*>(p)[i] = static_cast<uint16_t>(
      nan ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

// op(X) of one matrix of the batch, by rows.
template <class C>
std::vector<C> gather(const void* p, const Layout& l, bool transpose, int64_t batch) {
  std::vector<C> values(static_cast<size_t>(l.rows * l.columns));
  for (int64_t c = 0; c < l.columns; ++c) {
    for (int64_t r = 0; r < l.rows; ++r) {
      const int64_t at = transpose ? c * l.rows + r : r * l.columns + c;
      values[static_cast<size_t>(at)] =
          static_cast<C>(load(p, l.type, batch * l.step + c * l.leading + r));
    }
  }
  return values;
}

// In C, the type of the arithmetic, as a sum of `parts` sums.
template <class C>
void multiply(const Product& product, int64_t parts, C alpha, const void* a, const Layout& al,
              const void* b, const Layout& bl, C beta, const void* c, const Layout& cl, void* d,
              const Layout& dl) {
  const bool ta = product.transpose_a == CUBLAS_OP_T, tb = product.transpose_b == CUBLAS_OP_T;
  const int64_t m = dl.rows, n = dl.columns, k = ta ? al.rows : al.columns;
  for (int64_t batch = 0; batch < dl.batch; ++batch) {
    // B by its columns, so that both operands are read along k.
    const std::vector<C> left = gather<C>(a, al, ta, batch), right = gather<C>(b, bl, !tb, batch);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        const C *x = left.data() + i * k, *y = right.data() + j * k;
        C sum = 0;
        for (int64_t part = 0; part < parts; ++part) {
          C own = 0;
          for (int64_t p = k * part / parts; p < k * (part + 1) / parts; ++p) own += x[p] * y[p];
          sum += own;
        }
        sum *= alpha;
        if (beta != 0)
          sum += beta * static_cast<C>(load(c, cl.type, batch * cl.step + j * cl.leading + i));
        store(d, dl.type, batch * dl.step + j * dl.leading + i, static_cast<double>(sum));
      }
    }
  }
}

bool fit(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool ta = p.transpose_a == CUBLAS_OP_T, tb = p.transpose_b == CUBLAS_OP_T;
  const int64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns;
  const bool alike = a.type == b.type && c.type == d.type &&
                     (c.type == a.type || c.type == CUDA_R_32F) &&
                     (a.type == CUDA_R_64F) == (p.compute == CUBLAS_COMPUTE_64F) &&
                     (p.scale == CUDA_R_64F) == (p.compute == CUBLAS_COMPUTE_64F);
  const auto batched = [&](const Layout& x) { return x.batch == d.batch && x.leading >= x.rows; };
  return alike && batched(a) && batched(b) && batched(c) && batched(d) &&
         k == (tb ? b.columns : b.rows) && d.rows == m && d.columns == (tb ? b.rows : b.columns) &&
         c.rows == d.rows && c.columns == d.columns && m > 0 && k > 0 && d.columns > 0;
}

uint64_t problem_of(const Product& p, const Layout& a, const Layout& b, const Layout& c,
                    const Layout& d) {
  uint64_t hash = static_cast<uint64_t>(p.compute);
  const auto mix = [&](int64_t x) {
    hash = (hash ^ static_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29;
  };
  mix(p.transpose_a), mix(p.transpose_b);
  for (const Layout* l : {&a, &b, &c, &d}) {
    for (const int64_t x :
         {int64_t{l->type}, l->rows, l->columns, l->leading, int64_t{l->batch}, l->step})
      mix(x);
  }
  return hash;
}

bool has_algorithm(const Product& p, const Layout& a, const Layout& d, const Preference& promised,
                   uint64_t problem) {
  const int64_t k = p.transpose_a == CUBLAS_OP_T ? a.rows : a.columns;
  const bool aligned =
      std::ranges::all_of(promised.alignment, [](uint32_t bytes) { return bytes >= 16; });
  return k > 1 && d.rows > 1 && aligned && problem / 2 % 8 != 0;
}

template <class T> cublasStatus_t set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T> cublasStatus_t destroy(T* x) {
  delete x;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace cuda_emulation

using namespace cuda_emulation;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "an unknown status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new Blas;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *product = new Product{compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return destroy(product); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  return set(what == CUBLASLT_MATMUL_DESC_TRANSA ? product->transpose_a : product->transpose_b,
             value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void* value, size_t bytes) {
  if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return set(layout->batch, value, bytes);
  return set(layout->step, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new Preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return set(preference->workspace, value, bytes);
  if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return set(preference->reductions, value, bytes);
  return set(preference->alignment[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
             bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  if (wanted < 1 || !fit(*product, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  cublasLtMatmulAlgo_t algorithm{};
  algorithm.problem = problem_of(*product, *a, *b, *c, *d);
  if (!has_algorithm(*product, *a, *d, *preference, algorithm.problem))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  // Some problems want a workspace, others none.
  algorithm.workspace =
      algorithm.problem % 2 ? std::min<size_t>(kWorkspace, preference->workspace) : 0;
  std::copy_n(preference->alignment, 4, algorithm.alignment);
  results[0] = {algorithm, algorithm.workspace};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (algorithm->problem != problem_of(*product, *a_layout, *b_layout, *c_layout, *d_layout) ||
      workspace_bytes < algorithm->workspace || (algorithm->workspace > 0 && !workspace))
    return CUBLAS_STATUS_INVALID_VALUE;
  const void* operands[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(operands[i]);
    if (address % algorithm->alignment[i] != 0) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto run = [&]<class C>(C) {
    C factors[2];  // the host's, taken at the call
    std::memcpy(&factors[0], alpha, sizeof(C));
    std::memcpy(&factors[1], beta, sizeof(C));
    return enqueue(stream, [=, p = *product, al = *a_layout, bl = *b_layout, cl = *c_layout,
                            dl = *d_layout, used = algorithm->workspace,
                            parts = static_cast<int64_t>(1 + algorithm->problem / 16 % 4)] {
      if (used > 0) std::memset(workspace, kPoison, used);
      multiply<C>(p, parts, factors[0], a, al, b, bl, factors[1], c, cl, d, dl);
    });
  };
  const cudaError_t status = product->compute == CUBLAS_COMPUTE_64F ? run(double{}) : run(float{});
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt's interface that Tessera calls, with NVIDIA's names and meanings.
#pragma once

#include "cuda_runtime_api.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_64F = 70 };
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};
enum cublasLtReductionScheme_t { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };

namespace cuda_emulation {
struct Blas;
struct Product;
struct Layout;
struct Preference;
}  // namespace cuda_emulation
using cublasLtHandle_t = cuda_emulation::Blas*;
using cublasLtMatmulDesc_t = cuda_emulation::Product*;
using cublasLtMatrixLayout_t = cuda_emulation::Layout*;
using cublasLtMatmulPreference_t = cuda_emulation::Preference*;

/// For one problem: what it was promised of the operands, and what it needs.
struct cublasLtMatmulAlgo_t {
  size_t workspace;
  uint32_t alignment[4];  // of A, B, C, D
  uint64_t problem;
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
};

extern "C" {
CUDA_EMULATION_API const char* cublasLtGetStatusString(cublasStatus_t status);
CUDA_EMULATION_API cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle);
CUDA_EMULATION_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
CUDA_EMULATION_API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product,
                                                           cublasComputeType_t compute,
                                                           cudaDataType_t scale);
CUDA_EMULATION_API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product);
CUDA_EMULATION_API cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what,
                               const void* value, size_t bytes);
CUDA_EMULATION_API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                                             cudaDataType_t type, uint64_t rows,
                                                             uint64_t columns, int64_t leading);
CUDA_EMULATION_API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
CUDA_EMULATION_API cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what, const void* value,
    size_t bytes);
CUDA_EMULATION_API cublasStatus_t
cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference);
CUDA_EMULATION_API cublasStatus_t
cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
CUDA_EMULATION_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what,
    const void* value, size_t bytes);
CUDA_EMULATION_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
    int* found);
CUDA_EMULATION_API cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
    cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
    const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
    cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
    size_t workspace_bytes, cudaStream_t stream);
}

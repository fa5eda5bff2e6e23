// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's C interface that Tessera calls, and ncclCommSplit, with NVIDIA's names and
// meanings, among ranks that are threads of this process, each with an emulated device of its own.
#pragma once

#include "cuda_runtime_api.h"

#include <climits>

#define NCCL_VERSION_CODE 22809
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR -1

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };
enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};
struct ncclConfig_t {
  size_t size;
  unsigned magic, version;
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, INT_MIN }

struct ncclComm;
using ncclComm_t = ncclComm*;

extern "C" {
CUDA_EMULATION_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
/// Of a rank on the current device.
CUDA_EMULATION_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                                       int rank, ncclConfig_t* config);
CUDA_EMULATION_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                                              ncclConfig_t* config);
CUDA_EMULATION_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state);
CUDA_EMULATION_API ncclResult_t ncclCommFinalize(ncclComm_t comm);
CUDA_EMULATION_API ncclResult_t ncclCommDestroy(ncclComm_t comm);
CUDA_EMULATION_API ncclResult_t ncclCommAbort(ncclComm_t comm);
CUDA_EMULATION_API const char* ncclGetErrorString(ncclResult_t code);
/// What went wrong, in words; of the communicator's last error.
CUDA_EMULATION_API const char* ncclGetLastError(ncclComm_t comm);

CUDA_EMULATION_API ncclResult_t ncclGroupStart();
CUDA_EMULATION_API ncclResult_t ncclGroupEnd();
CUDA_EMULATION_API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                                              ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                              cudaStream_t stream);
CUDA_EMULATION_API ncclResult_t ncclReduce(const void* from, void* to, size_t count,
                                           ncclDataType_t type, ncclRedOp_t op, int root,
                                           ncclComm_t comm, cudaStream_t stream);
CUDA_EMULATION_API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count,
                                              ncclDataType_t type, int root, ncclComm_t comm,
                                              cudaStream_t stream);
CUDA_EMULATION_API ncclResult_t ncclAllGather(const void* from, void* to, size_t count_each,
                                              ncclDataType_t type, ncclComm_t comm,
                                              cudaStream_t stream);
CUDA_EMULATION_API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count_each,
                                                  ncclDataType_t type, ncclRedOp_t op,
                                                  ncclComm_t comm, cudaStream_t stream);
CUDA_EMULATION_API ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type,
                                         int peer, ncclComm_t comm, cudaStream_t stream);
CUDA_EMULATION_API ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                                         ncclComm_t comm, cudaStream_t stream);
}

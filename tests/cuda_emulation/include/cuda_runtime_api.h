// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime's C interface that Tessera calls, with NVIDIA's names and meanings.
// Streams are queues on the host: what is enqueued runs when somebody waits, in an order in which
// only events bind one stream to another.
#pragma once

#include <cstddef>
#include <cstdint>

#define CUDA_EMULATION_API __attribute__((visibility("default")))
#define CUDART_VERSION 13000

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorCallRequiresNewerDriver = 36,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorInvalidPtx = 218,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorJitCompilerNotFound = 221,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorContained = 226,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemDriverMismatch = 803,
  cudaErrorCompatNotSupportedOnDevice = 804,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
  cudaErrorExternalDevice = 911,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated,
};
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 };

inline constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1;

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace cuda_emulation {
struct Stream;
struct Event;
struct Graph;
}  // namespace cuda_emulation
using cudaStream_t = cuda_emulation::Stream*;
using cudaEvent_t = cuda_emulation::Event*;
using cudaGraph_t = cuda_emulation::Graph*;
using cudaGraphExec_t = cuda_emulation::Graph*;

struct cudaDeviceProp {
  char name[256];
  int major, minor;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

extern "C" {
CUDA_EMULATION_API cudaError_t cudaGetDeviceCount(int* count);
CUDA_EMULATION_API cudaError_t cudaDriverGetVersion(int* version);
CUDA_EMULATION_API cudaError_t cudaGetDevice(int* device);
CUDA_EMULATION_API cudaError_t cudaSetDevice(int device);
CUDA_EMULATION_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
CUDA_EMULATION_API cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);
CUDA_EMULATION_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
CUDA_EMULATION_API cudaError_t cudaDeviceSynchronize();
/// Forgets what is enqueued and the error that a kernel left.
CUDA_EMULATION_API cudaError_t cudaDeviceReset();
CUDA_EMULATION_API cudaError_t cudaGetLastError();
CUDA_EMULATION_API cudaError_t cudaPeekAtLastError();
CUDA_EMULATION_API const char* cudaGetErrorName(cudaError_t status);
/// Of cudaErrorLaunchFailure: what the kernel did wrong, and where.
CUDA_EMULATION_API const char* cudaGetErrorString(cudaError_t status);
CUDA_EMULATION_API cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute what,
                                                    int value);
CUDA_EMULATION_API cudaError_t cudaFuncGetName(const char** name, const void* kernel);

CUDA_EMULATION_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
CUDA_EMULATION_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
CUDA_EMULATION_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                            int priority);
CUDA_EMULATION_API cudaError_t cudaStreamDestroy(cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaStreamQuery(cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                   unsigned flags);
CUDA_EMULATION_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
CUDA_EMULATION_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaEventQuery(cudaEvent_t event);
CUDA_EMULATION_API cudaError_t cudaEventSynchronize(cudaEvent_t event);
CUDA_EMULATION_API cudaError_t cudaEventDestroy(cudaEvent_t event);

CUDA_EMULATION_API cudaError_t cudaHostAlloc(void** block, size_t bytes, unsigned flags);
CUDA_EMULATION_API cudaError_t cudaFreeHost(void* block);
CUDA_EMULATION_API cudaError_t cudaMalloc(void** block, size_t bytes);
CUDA_EMULATION_API cudaError_t cudaFree(void* block);
CUDA_EMULATION_API cudaError_t cudaMallocAsync(void** block, size_t bytes, cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaFreeAsync(void* block, cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                               cudaMemcpyKind kind, cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from,
                                                   int from_device, size_t bytes,
                                                   cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaMemsetAsync(void* block, int value, size_t bytes,
                                               cudaStream_t stream);

/// A capture is of one stream: another one cannot join it.
CUDA_EMULATION_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                                      cudaStreamCaptureMode mode);
CUDA_EMULATION_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                                     cudaStreamCaptureStatus* status);
CUDA_EMULATION_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
CUDA_EMULATION_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph,
                                                    unsigned long long flags);
CUDA_EMULATION_API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
CUDA_EMULATION_API cudaError_t cudaGraphDestroy(cudaGraph_t graph);
CUDA_EMULATION_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
}

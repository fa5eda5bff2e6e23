// SPDX-License-Identifier: Apache-2.0
// libtessera_nccl.so, the only file that sees nccl.h. Includes nothing else of Tessera. CUDA's
// errors are told from NCCL's by an offset. Communicators connect their rings when they are made,
// under the deadline of a start: NCCL would do it in the first collective, and keep every rank's
// host there until the last one comes.
#include "tessera/dist/nccl/nccl_api_impl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

static_assert(sizeof(TesseraNcclId) == sizeof(ncclUniqueId));
constexpr int kCudaOffset = 1000;

// Pending is not an error: the caller polls `state`.
int of(ncclResult_t code) { return code == ncclInProgress ? 0 : static_cast<int>(code); }
int of(cudaError_t code) { return code == cudaSuccess ? 0 : kCudaOffset + static_cast<int>(code); }

ncclComm_t comm(void* communicator) { return static_cast<ncclComm_t>(communicator); }
cudaStream_t cuda(void* stream) { return static_cast<cudaStream_t>(stream); }

ncclDataType_t type_of(int type) {
  switch (static_cast<TesseraNcclType>(type)) {
    case kNcclF64: return ncclFloat64;
    case kNcclF32: return ncclFloat32;
    case kNcclBf16: return ncclBfloat16;
    case kNcclF16: return ncclFloat16;
    case kNcclI64: return ncclInt64;
    case kNcclI32: return ncclInt32;
    case kNcclU8: break;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(int op) {
  switch (static_cast<TesseraNcclOp>(op)) {
    case kNcclSum: return ncclSum;
    case kNcclAvg: return ncclAvg;
    case kNcclMax: return ncclMax;
    case kNcclMin: break;
  }
  return ncclMin;
}

int make_id(TesseraNcclId* id) {
  ncclUniqueId made;
  const ncclResult_t code = ncclGetUniqueId(&made);
  std::memcpy(id, &made, sizeof(made));
  return of(code);
}

int start(const TesseraNcclId* id, int rank, int size, void** communicator) {
  ncclUniqueId unique;
  std::memcpy(&unique, id, sizeof(unique));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  const ncclResult_t code = ncclCommInitRankConfig(&made, size, unique, rank, &config);
  *communicator = made;
  return of(code);
}

int state(void* communicator) {
  ncclResult_t now = ncclSuccess;
  if (const ncclResult_t code = ncclCommGetAsyncError(comm(communicator), &now)) return of(code);
  return now == ncclInProgress ? kNcclPending : static_cast<int>(now);
}

int abort_all(void* communicator) { return of(ncclCommAbort(comm(communicator))); }
int finish(void* communicator) { return of(ncclCommFinalize(comm(communicator))); }
int destroy(void* communicator) { return of(ncclCommDestroy(comm(communicator))); }
int group_start() { return of(ncclGroupStart()); }
int group_end() { return of(ncclGroupEnd()); }

int all_reduce(const void* in, void* out, size_t count, int type, int op, void* communicator,
               void* stream) {
  return of(
      ncclAllReduce(in, out, count, type_of(type), op_of(op), comm(communicator), cuda(stream)));
}
int reduce(const void* in, void* out, size_t count, int type, int op, int root, void* communicator,
           void* stream) {
  return of(
      ncclReduce(in, out, count, type_of(type), op_of(op), root, comm(communicator), cuda(stream)));
}
int broadcast(const void* in, void* out, size_t count, int type, int root, void* communicator,
              void* stream) {
  return of(ncclBroadcast(in, out, count, type_of(type), root, comm(communicator), cuda(stream)));
}
int all_gather(const void* in, void* out, size_t count_each, int type, void* communicator,
               void* stream) {
  return of(ncclAllGather(in, out, count_each, type_of(type), comm(communicator), cuda(stream)));
}
int reduce_scatter(const void* in, void* out, size_t count_each, int type, int op,
                   void* communicator, void* stream) {
  return of(ncclReduceScatter(in, out, count_each, type_of(type), op_of(op), comm(communicator),
                              cuda(stream)));
}
int send(const void* data, size_t count, int type, int to, void* communicator, void* stream) {
  return of(ncclSend(data, count, type_of(type), to, comm(communicator), cuda(stream)));
}
int receive(void* data, size_t count, int type, int from, void* communicator, void* stream) {
  return of(ncclRecv(data, count, type_of(type), from, comm(communicator), cuda(stream)));
}
int copy(void* to, const void* from, size_t bytes, void* stream) {
  return of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda(stream)));
}

int use_device(int device) { return of(cudaSetDevice(device)); }
int device_text(int device, char* text, size_t size) {
  return of(cudaDeviceGetPCIBusId(text, static_cast<int>(size), device));
}
int free_memory(size_t* bytes) {
  size_t all = 0;
  return of(cudaMemGetInfo(bytes, &all));
}

int event_make(void** event) {
  cudaEvent_t made = nullptr;
  const cudaError_t code = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  *event = made;
  return of(code);
}
int event_record(void* event, void* stream) {
  return of(cudaEventRecord(static_cast<cudaEvent_t>(event), cuda(stream)));
}
int event_done(void* event) {
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (code != cudaErrorNotReady) return of(code);
  (void)cudaGetLastError();  // it is no error, and who checks a launch of its own would find it
  return kNcclPending;
}
int stream_wait(void* stream, void* event) {
  return of(cudaStreamWaitEvent(cuda(stream), static_cast<cudaEvent_t>(event), 0));
}
void event_free(void* event) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

void error_text(int code, void* communicator, char* text, size_t size) {
  if (code >= kCudaOffset) {
    std::snprintf(text, size, "CUDA: %s",
                  cudaGetErrorString(static_cast<cudaError_t>(code - kCudaOffset)));
    return;
  }
  const char* last = communicator ? ncclGetLastError(comm(communicator)) : "";
  std::snprintf(text, size, "NCCL: %s%s%s", ncclGetErrorString(static_cast<ncclResult_t>(code)),
                last && *last ? ": " : "", last ? last : "");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TesseraNcclApi* tessera_nccl_api() {
  (void)setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  static constexpr TesseraNcclApi kApi{
      kTesseraNcclVersion,
      make_id,
      start,
      state,
      abort_all,
      finish,
      destroy,
      group_start,
      group_end,
      all_reduce,
      reduce,
      broadcast,
      all_gather,
      reduce_scatter,
      send,
      receive,
      copy,
      use_device,
      device_text,
      free_memory,
      event_make,
      event_record,
      event_done,
      stream_wait,
      event_free,
      error_text,
  };
  return &kApi;
}

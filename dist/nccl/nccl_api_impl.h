// SPDX-License-Identifier: Apache-2.0
// Interface of libtessera_nccl.so: NCCL's calls, and CUDA events for their completion, as a table
// of plain functions. The library does not depend on Tessera (see mpi_api_impl.h).
#pragma once

#include <cstddef>

extern "C" {

enum TesseraNcclType { kNcclF64, kNcclF32, kNcclBf16, kNcclF16, kNcclI64, kNcclI32, kNcclU8 };
enum TesseraNcclOp { kNcclSum, kNcclAvg, kNcclMax, kNcclMin };
struct TesseraNcclId {
  char bytes[128];
};

/// Functions that return int give 0, kNcclPending (state and event_done alone) or an error code
/// that `error_text` explains. Communicators are non-blocking: a call may return before it is
/// complete. `start`, `free_memory` and `event_make` are of the calling thread's current device,
/// which only `use_device` changes, for threads of which no other code keeps it in mind.
struct TesseraNcclApi {
  int version;  ///< kTesseraNcclVersion of the library's build
  int (*make_id)(TesseraNcclId* id);
  int (*start)(const TesseraNcclId* id, int rank, int size, void** communicator);
  int (*state)(void* communicator);   ///< of what was asked last
  int (*abort)(void* communicator);   ///< ends everything at once and frees it
  int (*finish)(void* communicator);  ///< flushes; poll `state`, then destroy
  int (*destroy)(void* communicator);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* in, void* out, size_t count, int type, int op, void* communicator,
                    void* stream);
  int (*reduce)(const void* in, void* out, size_t count, int type, int op, int root,
                void* communicator, void* stream);
  int (*broadcast)(const void* in, void* out, size_t count, int type, int root, void* communicator,
                   void* stream);
  int (*all_gather)(const void* in, void* out, size_t count_each, int type, void* communicator,
                    void* stream);
  int (*reduce_scatter)(const void* in, void* out, size_t count_each, int type, int op,
                        void* communicator, void* stream);
  int (*send)(const void* data, size_t count, int type, int to, void* communicator, void* stream);
  int (*receive)(void* data, size_t count, int type, int from, void* communicator, void* stream);
  int (*copy)(void* to, const void* from, size_t bytes, void* stream);  ///< on the device
  int (*use_device)(int device);
  int (*device_text)(int device, char* text, size_t size);  ///< tells the GPUs of a host apart
  int (*free_memory)(size_t* bytes);
  int (*event_make)(void** event);
  int (*event_record)(void* event, void* stream);  ///< after what is queued
  int (*event_done)(void* event);
  int (*stream_wait)(void* stream, void* event);  ///< what is queued from now on runs after it
  void (*event_free)(void* event);
  /// The code's meaning, and the communicator's last error where it is known (may be null).
  void (*error_text)(int code, void* communicator, char* text, size_t size);
};

const TesseraNcclApi* tessera_nccl_api();

}  // extern "C"

inline constexpr int kTesseraNcclVersion = 4;
inline constexpr int kNcclPending = -1;

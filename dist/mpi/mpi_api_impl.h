// SPDX-License-Identifier: Apache-2.0
// Interface of libtessera_mpi.so: the few MPI calls that the back end needs, as a table of plain
// functions. The library links MPI but not Tessera, so it works with the static archives and the
// shared library, and a run without MPI never loads it.
#pragma once

#include <cstddef>

extern "C" {

/// Functions that return int give 0 or an MPI error code, which `error_text` explains.
struct TesseraMpiApi {
  int version;  ///< kTesseraMpiVersion of the library's build
  /// MPI_Init_thread (serialized), errors returned instead of fatal, a communicator of our own.
  int (*start)(int* rank, int* size, int* largest_tag);
  /// Waits for all ranks inside, as `start` does: only to be called when all are known to arrive.
  int (*finish)();
  int (*send)(const void* data, int bytes, int to, int tag, void** request);
  int (*receive)(void* data, int bytes, int from, int tag, void** request);
  /// Advances MPI. Once *done is set the request no longer exists; the code is that of the message.
  int (*test)(void** request, int* done);
  /// Asks MPI to drop a receive that nothing has matched yet; test it until it is done.
  int (*cancel)(void* request);
  void (*error_text)(int code, char* text, size_t size);
  void (*library_name)(char* text, size_t size);  ///< "Open MPI 4.1.4"
};

const TesseraMpiApi* tessera_mpi_api();

}  // extern "C"

inline constexpr int kTesseraMpiVersion = 1;

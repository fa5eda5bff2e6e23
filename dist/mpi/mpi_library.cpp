// SPDX-License-Identifier: Apache-2.0
// libtessera_mpi.so, the only file that sees mpi.h. Includes nothing else of Tessera.
#include "tessera/dist/mpi/mpi_api_impl.h"

#include <mpi.h>

#include <cstdio>
#include <cstring>

namespace {

// MPI is one per process and so is this: MPI_Init cannot be called twice.
struct Communicator {
  MPI_Comm world = MPI_COMM_NULL;
};
Communicator& communicator() {
  static Communicator instance;
  return instance;
}

int start(int* rank, int* size, int* largest_tag) {
  int started = 0;
  if (int code = MPI_Initialized(&started)) return code;
  if (!started) {
    int level = 0;
    if (int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level)) return code;
    if (level < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
  }
  MPI_Comm& world = communicator().world;
  if (world == MPI_COMM_NULL) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (int code = MPI_Comm_dup(MPI_COMM_WORLD, &world)) return code;
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  }
  if (int code = MPI_Comm_rank(world, rank)) return code;
  if (int code = MPI_Comm_size(world, size)) return code;
  int* bound = nullptr;
  int found = 0;
  if (int code = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found))
    return code;
  *largest_tag = found ? *bound : 32767;
  return MPI_SUCCESS;
}

int finish() {
  int finished = 0;
  if (int code = MPI_Finalized(&finished)) return code;
  return finished ? MPI_SUCCESS : MPI_Finalize();
}

// A request is a pointer in Open MPI and an int in MPICH: both fit a heap cell of our own.
int send(const void* data, int bytes, int to, int tag, void** request) {
  auto* handle = new MPI_Request;
  const int code = MPI_Isend(data, bytes, MPI_BYTE, to, tag, communicator().world, handle);
  if (code) delete handle;
  *request = code ? nullptr : handle;
  return code;
}

int receive(void* data, int bytes, int from, int tag, void** request) {
  auto* handle = new MPI_Request;
  const int code = MPI_Irecv(data, bytes, MPI_BYTE, from, tag, communicator().world, handle);
  if (code) delete handle;
  *request = code ? nullptr : handle;
  return code;
}

int test(void** request, int* done) {
  auto* handle = static_cast<MPI_Request*>(*request);
  const int code = MPI_Test(handle, done, MPI_STATUS_IGNORE);
  if (code) *done = 1;
  if (*done) {
    delete handle;
    *request = nullptr;
  }
  return code;
}

int cancel(void* request) { return MPI_Cancel(static_cast<MPI_Request*>(request)); }

void error_text(int code, char* text, size_t size) {
  char full[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, full, &length);
  std::snprintf(text, size, "%s", full);
}

void library_name(char* text, size_t size) {
  char full[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(full, &length);
#ifdef OPEN_MPI
  std::snprintf(text, size, "Open MPI %d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                OMPI_RELEASE_VERSION);
#else
  full[std::strcspn(full, "\n")] = 0;
  std::snprintf(text, size, "%s", full);
#endif
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TesseraMpiApi* tessera_mpi_api() {
  static constexpr TesseraMpiApi kApi{
      kTesseraMpiVersion, start, finish, send, receive, test, cancel, error_text, library_name,
  };
  return &kApi;
}

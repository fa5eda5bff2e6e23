// SPDX-License-Identifier: Apache-2.0
// A driver without a device, in the place of libcuda.so.1. cuDNN looks its functions up by name
// when a plan is made, loads the kernel that it compiled, and asks nothing of a device that is
// described to it: what loads succeeds here, and all else says that it is a stub.
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

namespace {
constexpr int kSuccess = 0, kStub = 34;  // CUDA_ERROR_STUB_LIBRARY
int loaded;                              // what handles point to
}  // namespace

#define TESSERA_REFUSED(name) \
  int name() { return kStub; }
TESSERA_REFUSED(cuInit)
TESSERA_REFUSED(cuDriverGetVersion)
TESSERA_REFUSED(cuGetProcAddress)
TESSERA_REFUSED(cuGetProcAddress_v2)
TESSERA_REFUSED(cuGetErrorString)
TESSERA_REFUSED(cuGetErrorName)
TESSERA_REFUSED(cuCtxGetCurrent)
TESSERA_REFUSED(cuCtxGetLimit)
TESSERA_REFUSED(cuCtxPopCurrent)
TESSERA_REFUSED(cuCtxPushCurrent)
TESSERA_REFUSED(cuDeviceGet)
TESSERA_REFUSED(cuDeviceGetCount)
TESSERA_REFUSED(cuLaunchCooperativeKernel)
TESSERA_REFUSED(cuLaunchKernel)
TESSERA_REFUSED(cuLaunchKernelEx)
TESSERA_REFUSED(cuLibraryLoadFromFile)
TESSERA_REFUSED(cuLinkAddData)
TESSERA_REFUSED(cuLinkComplete)
TESSERA_REFUSED(cuLinkCreate)
TESSERA_REFUSED(cuLinkDestroy)
TESSERA_REFUSED(cuOccupancyMaxPotentialClusterSize)
TESSERA_REFUSED(cuStreamGetCtx)

#define TESSERA_GIVES_HANDLE(name) \
  int name(void** handle) {        \
    *handle = &loaded;             \
    return kSuccess;               \
  }
TESSERA_GIVES_HANDLE(cuLibraryLoadData)
TESSERA_GIVES_HANDLE(cuLibraryGetKernel)
TESSERA_GIVES_HANDLE(cuLibraryGetModule)
TESSERA_GIVES_HANDLE(cuModuleLoadData)
TESSERA_GIVES_HANDLE(cuModuleLoadDataEx)
TESSERA_GIVES_HANDLE(cuModuleGetFunction)
TESSERA_GIVES_HANDLE(cuKernelGetFunction)

#define TESSERA_DONE(name) \
  int name() { return kSuccess; }
TESSERA_DONE(cuLibraryUnload)
TESSERA_DONE(cuModuleUnload)
TESSERA_DONE(cuKernelSetAttribute)
TESSERA_DONE(cuFuncSetAttribute)
TESSERA_DONE(cuFuncLoad)

int cuLibraryGetKernelCount(unsigned* count) {
  *count = 1;
  return kSuccess;
}
int cuLibraryEnumerateKernels(void** kernels, unsigned count) {
  for (unsigned i = 0; i < count; ++i) kernels[i] = &loaded;
  return kSuccess;
}
int cuKernelGetAttribute(int* value) {
  *value = 0;
  return kSuccess;
}
int cuFuncGetAttribute(int* value) {
  *value = 0;
  return kSuccess;
}
}
#pragma GCC visibility pop

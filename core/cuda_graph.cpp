// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/cuda_graph.h"

#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/process.h"

namespace tessera {

CudaGraph::~CudaGraph() = default;

Ref<CudaGraph> capture_graph(Device device, int64_t reserve, const std::function<void()>& work) {
  if (!device.is_cuda())
    fail<DeviceError>("capture", "device ", device, " has no graphs: give a CUDA device");
  CudaBackend& cuda = Process::get().cuda();
  cuda.begin_capture(device.index, reserve);
  try {
    work();
  } catch (...) {
    try {
      (void)cuda.end_capture(device.index);
    } catch (const Error&) {  // the first error says why
    }
    throw;
  }
  return cuda.end_capture(device.index);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// What can be done about an error differs by its kind: after a fault of the device every later call
// of the process fails, a driver that is too old fits no program of this build, a device of another
// architecture has no code here. All others say what CUDA says.
#include "tessera/core/cuda/check_cuda_impl.h"

namespace tessera {
namespace {

// No call on the device succeeds any more, until another process uses it.
bool loses_device(cudaError_t status) {
  switch (status) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

bool lacks_code(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidPtx ||
         status == cudaErrorUnsupportedPtxVersion || status == cudaErrorJitCompilerNotFound;
}

bool wants_other_driver(cudaError_t status) {
  return status == cudaErrorInsufficientDriver || status == cudaErrorCallRequiresNewerDriver ||
         status == cudaErrorSystemDriverMismatch || status == cudaErrorCompatNotSupportedOnDevice;
}

// 13000 as "13.0".
std::string version(int number) { return concat(number / 1000, '.', number % 1000 / 10); }

std::string driver_text() {
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  if (driver == 0)
    return "there is no driver of NVIDIA here, and so no GPU that can be used: compute on the CPU";
  return concat("the driver here is for CUDA ", version(driver),
                ", and this library was built for ", version(CUDART_VERSION),
                ": update the driver, or build with an older toolkit");
}

std::string current_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess && device >= 0 ? concat("cuda:", device)
                                                              : "the CUDA device";
}

std::string name_of(std::string_view device) {
  int index = 0;
  cudaDeviceProp properties{};
  if (cudaGetDevice(&index) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, index) != cudaSuccess)
    return std::string(device);
  return concat(device, " (", properties.name, ", compute capability ", properties.major, '.',
                properties.minor, ')');
}

}  // namespace

void raise_cuda(cudaError_t status, std::string_view call) {
  (void)cudaGetLastError();  // or the next check would report it again
  const std::string device = current_device(),
                    what = concat(call, " failed: ", cudaGetErrorName(status), ", ",
                                  cudaGetErrorString(status));
  if (loses_device(status))
    fail<DeviceError>("cuda", device, " is lost, and with it what it held: ", what,
                      "; start the program again, which goes on from its last checkpoint");
  if (lacks_code(status))
    fail<DeviceError>("cuda", name_of(device), " is none that this library has code for, which is ",
                      TESSERA_CUDA_ARCHITECTURES,
                      ": build it with -DCMAKE_CUDA_ARCHITECTURES of "
                      "this device; ",
                      what);
  if (wants_other_driver(status)) fail<DeviceError>("cuda", driver_text(), "; ", what);
  fail<DeviceError>("cuda", what);
}

std::string why_no_device(cudaError_t status) {
  if (status == cudaSuccess || status == cudaErrorNoDevice)
    return "no CUDA device is visible (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)";
  if (wants_other_driver(status)) return driver_text();
  return concat(cudaGetErrorName(status), ", ", cudaGetErrorString(status));
}

}  // namespace tessera

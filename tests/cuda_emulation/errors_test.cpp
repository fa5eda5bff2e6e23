// SPDX-License-Identifier: Apache-2.0
// What users read of CUDA's errors, by kind.
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

std::string error_of_status(cudaError_t status) {
  return test::error_of<DeviceError>([&] { check_cuda(status, "cudaStreamSynchronize(stream)"); });
}

TEST(EmulatedErrors, SayWhatToDo) {
  EXPECT_NO_THROW(check_cuda(cudaSuccess, "nothing"));
  for (const cudaError_t status :
       {cudaErrorDevicesUnavailable, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
        cudaErrorContained, cudaErrorIllegalAddress, cudaErrorLaunchTimeout,
        cudaErrorContextIsDestroyed, cudaErrorAssert, cudaErrorHardwareStackError,
        cudaErrorIllegalInstruction, cudaErrorMisalignedAddress, cudaErrorInvalidAddressSpace,
        cudaErrorInvalidPc, cudaErrorLaunchFailure, cudaErrorExternalDevice, cudaErrorUnknown}) {
    const std::string text = error_of_status(status);
    EXPECT_NE(text.find(" is lost, and with it what it held: cudaStreamSynchronize(stream) failed"),
              std::string::npos)
        << status << ": " << text;
    EXPECT_NE(text.find("goes on from its last checkpoint"), std::string::npos) << text;
  }
  for (const cudaError_t status : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidPtx,
                                   cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilerNotFound}) {
    const std::string text = error_of_status(status);
    EXPECT_NE(text.find(" is none that this library has code for, which is 90a: build it with "
                        "-DCMAKE_CUDA_ARCHITECTURES"),
              std::string::npos)
        << status << ": " << text;
  }
  for (const cudaError_t status :
       {cudaErrorInsufficientDriver, cudaErrorCallRequiresNewerDriver,
        cudaErrorSystemDriverMismatch, cudaErrorCompatNotSupportedOnDevice}) {
    const std::string text = error_of_status(status);
    EXPECT_NE(text.find("the driver here is for CUDA 13.0, and this library was built for 13.0: "
                        "update the driver"),
              std::string::npos)
        << status << ": " << text;
  }
  EXPECT_EQ(error_of_status(cudaErrorInvalidValue),
            "[cuda] cudaStreamSynchronize(stream) failed: cudaErrorInvalidValue, invalid argument");
}

TEST(EmulatedErrors, SayWhyThereIsNoDevice) {
  for (const cudaError_t status : {cudaSuccess, cudaErrorNoDevice})
    EXPECT_TRUE(why_no_device(status).starts_with("no CUDA device is visible"));
  EXPECT_TRUE(
      why_no_device(cudaErrorInsufficientDriver).starts_with("the driver here is for CUDA"));
  EXPECT_EQ(why_no_device(cudaErrorInvalidValue), "cudaErrorInvalidValue, invalid argument");
}

}  // namespace
}  // namespace tessera

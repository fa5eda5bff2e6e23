// SPDX-License-Identifier: Apache-2.0
// Reading a tensor in two parts: the copy to the host begins at once and the host waits for it
// where it needs the values, so that a device has work to do meanwhile.
#pragma once

#include "tessera/core/tensor.h"

#include <memory>
#include <vector>

namespace tessera {

class HostCopy;

class TESSERA_API HostRead {
 public:
  /// Begins to read a contiguous tensor: values that ops write later are not seen. One of the CPU
  /// is read at once. UsageError: not contiguous. LayoutError: distributed.
  explicit HostRead(const Tensor& x);
  ~HostRead();
  HostRead(HostRead&&) noexcept;
  HostRead& operator=(HostRead&&) noexcept;

  /// The elements in row-major order as doubles, as of Tensor::values(). Waits for the copy, not
  /// for what the device was given after it. DeviceError: the device's.
  [[nodiscard]] std::vector<double> values() const;

 private:
  TensorMeta meta_;
  std::unique_ptr<HostCopy> copy_;  // of a device's bytes
  std::vector<double> values_;      // of the CPU
};

}  // namespace tessera

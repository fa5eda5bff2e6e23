// SPDX-License-Identifier: Apache-2.0
// cuDNN, opened at first use: the file that the variable TESSERA_CUDNN_LIBRARY names (`none`: do
// without); without it, the one beside the library or program that holds the core, then as the
// linker would.
#pragma once

#include "tessera/core/error.h"
#include "tessera/kernels/cudnn/api_impl.h"

#include <string>

namespace tessera::cudnn {

/// cuDNN does not take what it was asked to; nothing was done.
class TESSERA_API NotSupported : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

class TESSERA_API Library {
 public:
  /// Releases from 9.18 have no known fault that attention's table does not refuse; another major
  /// number is another interface.
  static constexpr int kOldest = 91800, kNewest = 99999;

  /// The process's, or null: there is none, or none of these versions.
  static const Library* get();
  /// Why get() is null.
  static const std::string& why_not();

  [[nodiscard]] const Functions* operator->() const { return &functions_; }
  [[nodiscard]] std::string version_text() const;  ///< "9.19.0"
  /// NotSupported or another DeviceError unless the call succeeded.
  void check(Status status, const char* call) const;

 private:
  friend struct Opened;
  Functions functions_;
  int version_ = 0;
};

}  // namespace tessera::cudnn

// SPDX-License-Identifier: Apache-2.0
// The StorageError of an allocator, for those who know what the memory holds and can say more.
#pragma once

#include "tessera/core/error.h"

namespace tessera {

/// The host or a device has no room for the bytes asked for.
class TESSERA_API OutOfMemory : public StorageError {
 public:
  using StorageError::StorageError;
};

}  // namespace tessera

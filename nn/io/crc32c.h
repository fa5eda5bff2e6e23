// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli): the checksum of checkpoints. It finds every burst of up to 32 flipped bits,
// and the processor's instruction for it is faster than any disk.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <string_view>

namespace tessera::io {

/// Of the bytes that gave `before` (0: none) followed by `bytes`.
[[nodiscard]] TESSERA_API uint32_t crc32c(std::string_view bytes, uint32_t before = 0);
/// The same without the processor's instruction.
[[nodiscard]] TESSERA_API uint32_t crc32c_portable(std::string_view bytes, uint32_t before = 0);

}  // namespace tessera::io

// SPDX-License-Identifier: Apache-2.0
// Fingerprint of a data set: size, modification time and a sampled checksum of each file. Ranks
// compare it before they train, and a checkpoint stores it, so that a run that resumes on other
// data says so. Files up to 256 KiB are read whole, larger ones in eight pieces, so the cost per
// file is bounded.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

struct DataFile {
  std::string name;  ///< path below the data folder, or the name of a single file
  uint64_t bytes = 0;
  int64_t modified = 0;  ///< nanoseconds since 1970; differs between copies
  uint32_t crc32c = 0;   ///< of the sampled bytes
  bool operator==(const DataFile&) const = default;
  /// Whether the checksum covers only a part of the file.
  [[nodiscard]] TESSERA_API bool sampled() const;
  /// `5000 bytes, checksum 1a2b3c4d`: what ranks compare.
  [[nodiscard]] TESSERA_API std::string text() const;
};
using DataFingerprint = std::vector<DataFile>;
/// Whether both are the same file, as far as is known: modification times count only where the
/// checksum is sampled.
[[nodiscard]] TESSERA_API bool same_data(const DataFile& a, const DataFile& b);

/// Of the data files of `path`, in their order. Errors as find_data, which name `field`; IoError: a
/// file cannot be read.
[[nodiscard]] TESSERA_API DataFingerprint fingerprint_data(const std::string& path,
                                                           const std::string& field);

/// What changed from `before` to `now`, a phrase per file. Modification times count only where the
/// checksum is sampled.
[[nodiscard]] TESSERA_API std::vector<std::string> data_differences(const DataFingerprint& before,
                                                                    const DataFingerprint& now);

}  // namespace tessera::train

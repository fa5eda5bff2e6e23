// SPDX-License-Identifier: Apache-2.0
// Files: whole or not at all. What is written goes to a neighbour first, is synced, and then takes
// its name.
#pragma once

#include "tessera/core/api.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::train {

/// The file's bytes; IoError if it cannot be read.
TESSERA_API std::string read_file(const std::string& path);
/// Writes what `produce` gives to `write`; readers see the old file or the whole new one. IoError
/// names the cause.
TESSERA_API void write_file_atomically(
    const std::string& path,
    const std::function<void(const std::function<void(std::string_view)>& write)>& produce);
TESSERA_API void write_file_atomically(const std::string& path, std::string_view bytes);
/// Makes the folder and proves that files can be written in it; IoError otherwise.
TESSERA_API void require_writable_folder(const std::string& path, std::string_view field);

}  // namespace tessera::train

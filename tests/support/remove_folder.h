// SPDX-License-Identifier: Apache-2.0
// For tests: removes a folder in which ranks that are dying may still write.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

namespace tessera::test {

/// Fails the test if the folder is still there after 5 seconds.
inline void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  for (int turns = 0; turns < 500; ++turns) {
    std::filesystem::remove_all(folder, error);
    if (!error) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << folder << ": " << error.message();
}

}  // namespace tessera::test

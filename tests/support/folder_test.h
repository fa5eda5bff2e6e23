// SPDX-License-Identifier: Apache-2.0
// A test with an empty folder of its own, named after it, gone when it ends. Processes in
// namespaces of their own may have one number, so the name is not made of that.
#pragma once

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

namespace tessera::test {

class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = concat(test->test_suite_name(), '.', test->name(), ".XXXXXX");
    std::ranges::replace(name, '/', '.');  // of parameterised tests
    folder_ = testing::TempDir() + name;
    if (!::mkdtemp(folder_.data())) fail<IoError>("test", "cannot make a folder like ", folder_);
  }
  // Ranks that a test leaves behind may still write for a moment.
  ~FolderTest() override {
    constexpr int kMostTries = 50;
    std::error_code error;
    for (int tries = 0; tries < kMostTries; ++tries) {
      std::filesystem::remove_all(folder_, error);
      if (!error) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  /// Writes a file below the folder; its path.
  [[nodiscard]] std::string put(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::filesystem::create_directories(path.parent_path());
    io::write_file_atomically(path.string(), bytes);
    return path.string();
  }

  std::string folder_;
};

}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
// A test with an empty folder of its own, named after it, gone when it ends. Processes in
// namespaces of their own may have one number, so the name is not made of that.
#pragma once

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/remove_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

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
  ~FolderTest() override { remove_folder(folder_); }

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

// SPDX-License-Identifier: Apache-2.0
// A text under review, checked in: TESSERA_UPDATE_GOLDENS=1 writes the file anew.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace tessera::test {

inline void expect_golden(const std::string& path, const std::string& text) {
  if (const char* update = std::getenv("TESSERA_UPDATE_GOLDENS"); update && *update == '1') {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path
                    << " is missing: run from the source folder, or with TESSERA_UPDATE_GOLDENS=1";
  std::ostringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str())
      << path << " differs; if it should, run with TESSERA_UPDATE_GOLDENS=1 and review the change";
}

}  // namespace tessera::test

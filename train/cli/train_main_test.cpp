// SPDX-License-Identifier: Apache-2.0
// The program's main: its tests, or, for tests that stop and kill whole runs, `tessera` itself.
#include "tessera/train/cli/cli.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--as-tessera") {
    return tessera::train::run_program(std::vector<std::string>(argv + 2, argv + argc));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

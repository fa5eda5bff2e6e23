// SPDX-License-Identifier: Apache-2.0
// main() of test programs that start runs as processes: their tests, or, where the first argument
// is
// `--as-tessera`, the program `tessera` itself.
#pragma once

#include "tessera/train/cli/cli.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera::test {

inline int tessera_main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--as-tessera")
    return train::run_program(std::vector<std::string>(argv + 2, argv + argc));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace tessera::test

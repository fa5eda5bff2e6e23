// SPDX-License-Identifier: Apache-2.0
// The `tessera` program.
#include "tessera/train/cli.h"

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  return tessera::train::run_cli(std::vector<std::string>(argv + 1, argv + argc), std::cout,
                                 std::cerr);
}

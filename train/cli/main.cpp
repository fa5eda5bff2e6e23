// SPDX-License-Identifier: Apache-2.0
// The `tessera` program.
#include "tessera/train/cli/cli.h"

#include <cstdlib>
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

// Threads that wait spin for milliseconds by default, which halves the speed on a machine that has
// anything else to do. OpenMP's library reads its settings before main, so the program starts over
// with a shorter spin unless the user has chosen one.
void limit_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("GOMP_SPINCOUNT", "10000", 1);
  execv("/proc/self/exe", argv);  // where this fails, the default stays
}

}  // namespace

int main(int argc, char** argv) {
  limit_spinning(argv);
  return tessera::train::run_cli(std::vector<std::string>(argv + 1, argv + argc), std::cout,
                                 std::cerr);
}

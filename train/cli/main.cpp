// SPDX-License-Identifier: Apache-2.0
// The `tessera` program.
#include "tessera/train/cli/cli.h"

#include <cstdlib>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

// By default, waiting threads spin for milliseconds, which halves the speed on a busy machine.
// OpenMP reads its settings before main, so the program restarts itself with a shorter spin unless
// the user has set one.
void limit_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("GOMP_SPINCOUNT", "10000", 1);
  execv("/proc/self/exe", argv);  // if this fails, the default applies
}

}  // namespace

int main(int argc, char** argv) {
  limit_spinning(argv);
  return tessera::train::run_program(std::vector<std::string>(argv + 1, argv + argc));
}

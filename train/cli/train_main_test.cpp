// SPDX-License-Identifier: Apache-2.0
// The program's main; where the environment names a fault, it is a rank of `tessera` that has it.
#include "tessera/tests/support/tessera_main.h"
#include "tessera/tests/support/trainer_faults.h"

int main(int argc, char** argv) {
  if (const char* fault = std::getenv(tessera::train::kFaultVariable))
    return tessera::train::train_with_fault({argv + 2, argv + argc}, fault);
  return tessera::test::tessera_main(argc, argv);
}

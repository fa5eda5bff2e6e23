// SPDX-License-Identifier: Apache-2.0
// The tests run on devices of host memory, unless TESSERA_CUDA_LIBRARY names another library or
// emulated devices are asked for.
#include "tessera/tests/support/tessera_main.h"

#include <cstdlib>

int main(int argc, char** argv) {
  if (!std::getenv("TESSERA_EMULATED_DEVICES") && !std::getenv("TESSERA_CUDA_LIBRARY")) {
    (void)setenv("TESSERA_CUDA_LIBRARY", TESSERA_HOST_DEVICE, 0);
    (void)setenv("TESSERA_CUDNN_LIBRARY", "none", 0);  // no kernel of host memory calls it
  }
  return tessera::test::tessera_main(argc, argv);
}

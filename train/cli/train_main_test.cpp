// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/support/tessera_main.h"

int main(int argc, char** argv) { return tessera::test::tessera_main(argc, argv); }

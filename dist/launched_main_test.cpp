// SPDX-License-Identifier: Apache-2.0
// The program's main: its tests run on threads, or on the processes of a launcher.
#include "tessera/tests/support/launched_main.h"

int main(int argc, char** argv) { return tessera::test::launched_main(argc, argv); }

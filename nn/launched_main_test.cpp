// SPDX-License-Identifier: Apache-2.0
// The program's main: tests that run on_ranks have threads, or the processes of a launcher.
#include "tessera/tests/support/launched_main.h"

int main(int argc, char** argv) { return tessera::test::launched_main(argc, argv); }

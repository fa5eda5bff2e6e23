// SPDX-License-Identifier: Apache-2.0
// The program's main: its tests run on threads, or on the processes of a launcher; or it is one
// rank of a world that the fault tests start.
#include "tessera/tests/support/launched_main.h"

#include <string_view>

namespace tessera::test {
int fault_rank(char** arguments);
int stopped_rank();
int start_rank(const std::string& what);
void register_failing_fixture();
}  // namespace tessera::test

int main(int argc, char** argv) {
  if (argc == 8 && std::string_view(argv[1]) == "--fault-rank")
    return tessera::test::fault_rank(argv + 2);
  if (argc == 2 && std::string_view(argv[1]) == "--stopped-rank")
    return tessera::test::stopped_rank();
  if (argc == 3 && std::string_view(argv[1]) == "--start-rank")
    return tessera::test::start_rank(argv[2]);
  if (argc > 1 && std::string_view(argv[1]) == "--failing-fixture")
    tessera::test::register_failing_fixture();
  return tessera::test::launched_main(argc, argv);
}

// SPDX-License-Identifier: Apache-2.0
// Some of torchtitan's integration tests under mpirun, over shared memory, messages or both: the
// bits of thread ranks.
#include "tessera/tests/mesh/integration.h"
#include "tessera/tests/support/trials.h"

#include <cstdlib>

namespace tessera::mesh_tests {
namespace {

std::vector<Item> chosen() {
  std::vector<Item> some = items();
  std::erase_if(some, [](const Item& item) { return !item.transport; });
  return some;
}

class IntegrationUnderMpirun : public IntegrationTest, public testing::WithParamInterface<Item> {
 protected:
  void run_on_processes(const Item& item, const std::string& dump) const {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    for (const Words& words : commands(item, dump)) {
      std::string line = *item.transport ? concat("TESSERA_TRANSPORT=", item.transport, ' ') : "";
      line += concat("./dev mpirun -n ", item.ranks, " '", program, "' --as-tessera");
      for (const std::string& word : words) line += concat(" '", word, "'");
      line += concat(" >'", path("log"), "' 2>&1");
      EXPECT_EQ(std::system(line.c_str()), 0) << line;
      const std::string log = io::read_file(path("log"));
      TESSERA_EXPECT_HOLDS(log, concat("world: ", item.ranks, " ranks by mpirun"));
      TESSERA_EXPECT_HOLDS(log, concat(", ", *item.transport ? "messages" : "shared memory"));
    }
  }
};

TEST_P(IntegrationUnderMpirun, HasTheBitsOfThreads) {
  const Item& item = GetParam();
  run_on_threads(item, "threads");
  run_on_processes(item, "processes");
  EXPECT_EQ(figures("processes"), figures("threads"));
  expect_results(item, "processes");
}

INSTANTIATE_TEST_SUITE_P(Torchtitan, IntegrationUnderMpirun, testing::ValuesIn(chosen()),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace tessera::mesh_tests

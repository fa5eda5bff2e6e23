// SPDX-License-Identifier: Apache-2.0
// torchtitan's integration tests on thread ranks, by the command line.
#include "tessera/tests/mesh/integration.h"

namespace tessera::mesh_tests {
namespace {

class Integration : public IntegrationTest, public testing::WithParamInterface<Item> {};

TEST_P(Integration, Runs) {
  const Item& item = GetParam();
  run_on_threads(item, "a");
  expect_results(item, "a");
}

INSTANTIATE_TEST_SUITE_P(Torchtitan, Integration, testing::ValuesIn(items()),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace tessera::mesh_tests

// SPDX-License-Identifier: Apache-2.0
// Memory that processes share: what each of them is told if it cannot be made. The ranks are
// threads that meet as processes do.
#include "tessera/dist/shared_memory/mapped_segments_impl.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/rendezvous_world.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using test::error_of;

// What the ranks of a world of two are told, each of which makes a segment of this name.
void expect_told(const std::vector<std::string>& names, size_t bytes,
                 const std::vector<std::string>& errors) {
  test::in_client_world(2, [&](RendezvousClient& client) {
    const auto rank = static_cast<size_t>(client.rank());
    EXPECT_EQ(error_of([&] {
                (void)shared_memory(client, test::first_ranks(2), "segment", names[rank], bytes,
                                    deadline_after(10s));
              }),
              errors[rank]);
    client.barrier(test::first_ranks(2), "end", deadline_after(10s));
  });
}

TEST(SharedMemory, RanksThatMakeDifferentGroupsAreTold) {
  expect_told({"dp", "tp"}, 4096,
              {"[process_group] ranks disagree on the group they make: rank 0: 'dp', rank 1: 'tp'; "
               "make groups in the same order on all ranks",
               "[process_group] ranks disagree on the group they make: rank 1: 'tp', rank 0: 'dp'; "
               "make groups in the same order on all ranks"});
}

TEST(SharedMemory, AllRanksLearnThatThereIsNone) {
  const std::string none =
      "[process_group] rank 0 got no shared memory of 18446744073709551615 bytes for group 'dp': "
      "Invalid argument";
  expect_told({"dp", "dp"}, SIZE_MAX, {none, none});
}

TEST(SharedMemory, AllRanksLearnWhoCannotMapIt) {
  const std::string unmapped =
      "[process_group] rank 0 cannot map the memory of group 'dp' that rank 0 shares: mmap: "
      "Invalid argument; run all ranks of a host as one user, or set TESSERA_TRANSPORT=messages";
  expect_told({"dp", "dp"}, 0, {unmapped, unmapped});  // no bytes cannot be mapped
}

TEST(SharedMemory, AGroupHasAsManyRanksAsItsSlotsHaveSlices) {
  constexpr int kRanks = 1025;
  EXPECT_EQ(error_of([&] {
              (void)make_shared_group({.ranks = test::first_ranks(kRanks),
                                       .name = "world",
                                       .backend = "threads",
                                       .segment = {},
                                       .source = {},
                                       .comm = std::make_shared<CommState>(0, nullptr)});
            }),
            "[process_group] group world has 1025 ranks; at most 1024 share memory");
}

}  // namespace
}  // namespace tessera

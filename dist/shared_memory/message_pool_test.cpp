// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/shared_memory/message_pool_impl.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

constexpr size_t kPage = 4096;

TEST(MessagePool, GivesTheLowestRoomAndJoinsWhatComesBack) {
  struct alignas(kPage) Page {
    std::byte bytes[kPage];
  };
  std::vector<Page> memory(8);
  MessagePool pool(memory[0].bytes, 8 * kPage);
  EXPECT_EQ(pool.take(1), 0u);
  EXPECT_EQ(pool.take(2 * kPage), kPage);
  EXPECT_EQ(pool.take(kPage + 1), 3 * kPage);
  EXPECT_EQ(pool.take(4 * kPage), std::nullopt);
  EXPECT_EQ(pool.take(3 * kPage), 5 * kPage);
  EXPECT_EQ(pool.take(1), std::nullopt);
  pool.give_back(kPage);
  EXPECT_EQ(pool.take(1), kPage);
  pool.give_back(3 * kPage);
  EXPECT_EQ(pool.take(3 * kPage), 2 * kPage);  // beside what came back before
  for (const size_t offset : {size_t{0}, 2 * kPage, kPage, 5 * kPage}) pool.give_back(offset);
  EXPECT_EQ(pool.take(8 * kPage), 0u);
}

TEST(MessagePool, MayBeEmpty) {
  MessagePool pool(nullptr, 0);
  EXPECT_EQ(pool.take(1), std::nullopt);
}

}  // namespace
}  // namespace tessera

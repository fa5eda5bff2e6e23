// SPDX-License-Identifier: Apache-2.0
// Maker and taker in turn on one thread, so that each order of events is tried on purpose.
#include "tessera/train/data/ahead_queue.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace tessera::train {
namespace {

constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

using Queue = AheadQueue<int64_t>;  // of the rows themselves

Queue::Order ordered(Queue& queue, int64_t end = kNoEnd) { return queue.order({}, end).value(); }
// Whether the maker would have to wait.
bool is_full(Queue& queue, int64_t end = kNoEnd) {
  std::stop_source stopped;
  stopped.request_stop();
  return !queue.order(stopped.get_token(), end);
}
void make(Queue& queue) {
  const Queue::Order order = ordered(queue);
  queue.put(order, order.row);
}

TEST(AheadQueue, GivesItemsInTheirOrder) {
  Queue queue(3, 4);
  for (int i = 0; i < 3; ++i) make(queue);
  EXPECT_TRUE(is_full(queue));
  for (const int64_t row : {0, 4, 8}) {
    EXPECT_EQ(queue.next_row(), row);
    EXPECT_EQ(queue.take(), row);
  }
  make(queue);
  EXPECT_EQ(queue.take(), 12);
}

TEST(AheadQueue, ASeekDropsWhatIsMadeAndWhatIsBeingMade) {
  for (const int64_t to : {4, 8, 100}) {  // the row in progress, the one after it, another
    Queue queue(3, 4);
    make(queue);
    const Queue::Order in_progress = ordered(queue);
    queue.seek(to);
    EXPECT_EQ(queue.next_row(), to);
    queue.put(in_progress, -1);
    make(queue);
    EXPECT_EQ(queue.take(), to);
    EXPECT_EQ(queue.next_row(), to + 4);
  }
}

// Though it begins at the same row: another seek came between.
TEST(AheadQueue, ASeekBackDropsIt) {
  Queue queue(3, 4);
  const Queue::Order in_progress = ordered(queue);
  queue.seek(100);
  queue.seek(0);
  queue.put(in_progress, -1);
  make(queue);
  EXPECT_EQ(queue.take(), 0);
}

TEST(AheadQueue, ASeekToTheNextRowDropsNothing) {
  Queue queue(3, 4);
  make(queue);
  const Queue::Order in_progress = ordered(queue);
  queue.seek(0);
  queue.put(in_progress, in_progress.row);
  EXPECT_EQ(queue.take(), 0);
  EXPECT_EQ(queue.take(), 4);
}

TEST(AheadQueue, EndsBeforeTheEnd) {
  Queue queue(9, 4);
  EXPECT_EQ(ordered(queue, 5).row, 0);
  EXPECT_EQ(ordered(queue, 5).row, 4);
  EXPECT_TRUE(is_full(queue, 5));
  queue.seek(4);
  EXPECT_EQ(ordered(queue, 5).row, 4);
}

TEST(AheadQueue, WaitsForEachOther) {
  Queue queue(1, 2);
  const std::jthread maker([&](const std::stop_token& stop) {
    while (const auto order = queue.order(stop, kNoEnd)) queue.put(*order, order->row);
  });
  for (int64_t row = 0; row < 200; row += 2) EXPECT_EQ(queue.take(), row);
  queue.seek(1000);
  EXPECT_EQ(queue.take(), 1000);
}

}  // namespace
}  // namespace tessera::train

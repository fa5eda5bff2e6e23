// SPDX-License-Identifier: Apache-2.0
// AheadQueue: micro-batches that one thread makes in order before another takes them. A seek drops
// those that are made, and the one that is being made: an order from before the seek is known by
// its generation.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

namespace tessera::train {

template <class Item> class AheadQueue {
 public:
  /// An item to make: the one that begins at `row`.
  struct Order {
    int64_t row = 0, generation = 0;
  };

  /// Holds at most `most` items; each is `rows` rows after the one before it, the first at row 0.
  AheadQueue(int64_t most, int64_t rows) : most_(most), rows_(rows) {}

  /// For the maker: waits for room, then says what to make; nothing after a stop request. No item
  /// begins at `end` or later.
  [[nodiscard]] std::optional<Order> order(const std::stop_token& stop, int64_t end) {
    std::unique_lock lock(mutex_);
    const auto room = [&] { return std::ssize(made_) < most_ && next_made_ < end; };
    if (!changed_.wait(lock, stop, room)) return std::nullopt;
    return Order{std::exchange(next_made_, next_made_ + rows_), generation_};
  }
  /// For the maker: what was ordered.
  void put(const Order& order, Item item) {
    {
      const std::scoped_lock lock(mutex_);
      if (order.generation == generation_) made_.push_back(std::move(item));
    }
    changed_.notify_all();
  }

  /// For the taker: the row at which the next item begins.
  [[nodiscard]] int64_t next_row() const { return next_taken_; }
  /// For the taker: waits for the next item.
  [[nodiscard]] Item take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !made_.empty(); });
    Item item = std::move(made_.front());
    made_.pop_front();
    next_taken_ += rows_;
    lock.unlock();
    changed_.notify_all();
    return item;
  }
  /// For the taker: the next item begins at `row`.
  void seek(int64_t row) {
    {
      const std::scoped_lock lock(mutex_);
      if (row == next_taken_) return;
      made_.clear();
      next_taken_ = next_made_ = row;
      ++generation_;
    }
    changed_.notify_all();
  }

 private:
  int64_t most_, rows_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Item> made_;
  int64_t next_made_ = 0, next_taken_ = 0;  // first rows of items
  int64_t generation_ = 0;                  // seeks so far
};

}  // namespace tessera::train

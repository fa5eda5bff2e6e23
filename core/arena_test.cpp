// SPDX-License-Identifier: Apache-2.0
// Blocks of an arena lie apart in its segments, and freed memory serves any size: checked against
// lists of blocks and segments, with random sizes and orders, and a source that may run out.
#include "tessera/core/arena_impl.h"
#include "tessera/core/context.h"
#include "tessera/core/error.h"
#include "tessera/core/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace {

constexpr int64_t kMiB = 1 << 20;

uint64_t seed() {
  const char* const given = std::getenv("TESSERA_TEST_SEED");
  return given ? std::stoull(given) : std::random_device{}();
}

// Addresses without memory behind them, as a device's look from the host.
class Addresses final : public SegmentSource {
 public:
  explicit Addresses(int64_t most) : left_(most) {}
  std::byte* obtain(int64_t bytes) override {
    EXPECT_EQ(bytes % kSegmentUnit, 0);
    ++asked;
    if (bytes > left_) return nullptr;
    left_ -= bytes;
    // Side by side, so that ranges of two segments touch.
    const uintptr_t begin = std::exchange(next_, next_ + static_cast<uintptr_t>(bytes));
    auto* const segment = std::bit_cast<std::byte*>(begin);
    segments[segment] = bytes;
    return segment;
  }
  void give_back(std::byte* segment, int64_t bytes) noexcept override {
    const auto it = segments.find(segment);
    ASSERT_TRUE(it != segments.end() && it->second == bytes);
    left_ += bytes;
    segments.erase(it);
  }
  /// Whether it could give a segment for a block of this size.
  [[nodiscard]] bool has(int64_t size) const {
    return (size + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit <= left_;
  }
  [[nodiscard]] int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [begin, size] : segments) sum += size;
    return sum;
  }
  /// Whether [begin, begin + size) lies in one segment.
  [[nodiscard]] bool holds(std::byte* begin, int64_t size) const {
    auto it = segments.upper_bound(begin);
    if (it == segments.begin()) return false;
    --it;
    return begin + size <= it->first + it->second;
  }

  std::map<std::byte*, int64_t> segments;
  int asked = 0;

 private:
  int64_t left_;
  uintptr_t next_ = static_cast<uintptr_t>(kSegmentUnit);
};

TEST(Arena, RandomBlocksLieApartInTheirSegments) {
  for (int trial = 0; trial < 30; ++trial) {
    const uint64_t drawn = seed();
    SCOPED_TRACE(drawn);
    std::mt19937_64 random(drawn);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    Addresses source(trial % 3 == 0 ? 40 * kMiB : 1000 * kMiB);
    {
      Arena arena(source, 1 + below(16));
      std::map<std::byte*, int64_t> blocks;
      int64_t used = 0;
      for (int i = 0; i < 2000; ++i) {
        const int64_t most = int64_t{1} << (1 + below(24));
        const int64_t bytes = 1 + below(most);
        if (below(100) < 45 && !blocks.empty()) {
          auto it = blocks.lower_bound(std::bit_cast<std::byte*>(random() % (1u << 30)));
          if (it == blocks.end()) it = blocks.begin();
          used -= rounded_block(it->second);
          arena.free(it->first, it->second);
          blocks.erase(it);
        } else if (std::byte* const block = arena.allocate(bytes)) {
          EXPECT_EQ(std::bit_cast<uintptr_t>(block) % 64, 0u);
          EXPECT_TRUE(source.holds(block, rounded_block(bytes)));
          const auto next = blocks.upper_bound(block);
          EXPECT_TRUE(next == blocks.end() || block + rounded_block(bytes) <= next->first);
          if (next != blocks.begin()) {
            const auto [before, size] = *std::prev(next);
            EXPECT_LE(before + rounded_block(size), block);
          }
          blocks[block] = bytes;
          used += rounded_block(bytes);
        } else {
          EXPECT_FALSE(source.has(rounded_block(bytes)));
        }
        ASSERT_EQ(arena.reserved(), source.bytes());
        ASSERT_LE(used, source.bytes());
      }
      for (const auto& [block, bytes] : blocks) arena.free(block, bytes);
    }
    EXPECT_TRUE(source.segments.empty());
  }
}

TEST(Arena, FreedNeighboursServeAnySize) {
  Addresses source(16 * kMiB);
  Arena arena(source, 1);
  std::vector<std::byte*> blocks;
  while (std::byte* const block = arena.allocate(kMiB / 8)) blocks.push_back(block);
  EXPECT_EQ(static_cast<int64_t>(blocks.size()), 16 * 8);  // not a byte is lost
  std::mt19937_64 random(seed());
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (std::byte* const block : blocks) arena.free(block, kMiB / 8);
  std::vector<std::byte*> large;
  for (const auto& [begin, bytes] : std::map(source.segments)) {
    large.push_back(arena.allocate(bytes));
    EXPECT_NE(large.back(), nullptr);
  }
  EXPECT_EQ(arena.allocate(1), nullptr);
  for (std::byte* const block : large) {
    const auto segment = source.segments.find(block);
    ASSERT_NE(segment, source.segments.end());
    arena.free(block, segment->second);
  }
}

TEST(Arena, SmallBlocksAreJoinedWhereNothingElseFits) {
  Addresses source(4 * kMiB);
  Arena arena(source, 1);
  std::vector<std::pair<std::byte*, int64_t>> blocks;
  for (int64_t bytes = 64;; bytes = bytes % kSmallLimit + 64) {
    std::byte* const block = arena.allocate(bytes);
    if (!block) break;
    blocks.emplace_back(block, bytes);
  }
  for (const auto& [block, bytes] : blocks) arena.free(block, bytes);
  std::byte* const all = arena.allocate(2 * kMiB);
  EXPECT_NE(all, nullptr);
  arena.free(all, 2 * kMiB);
}

// A source that has run out gets back what is free, also where no range fits.
TEST(Arena, FreeSegmentsGoBackBeforeMemoryHasRunOut) {
  Addresses source(64 * kMiB);
  Arena arena(source, 1);
  std::byte* const small = arena.allocate(100);
  for (int64_t size = 1; size <= 40; ++size) arena.free(arena.allocate(size * kMiB), size * kMiB);
  std::byte* const large = arena.allocate(61 * kMiB);
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(arena.allocate(3 * kMiB), nullptr);
  arena.free(large, 61 * kMiB);
  arena.free(small, 100);
  EXPECT_GT(arena.release(), 0);
  EXPECT_EQ(arena.reserved(), 0);
  EXPECT_EQ(arena.release(), 0);
}

// Counts that change from step to step fit in the memory of the first steps.
TEST(Arena, StepsThatVaryNeedNoNewSegments) {
  std::mt19937_64 random(seed());
  Addresses source(int64_t{1} << 40);
  Arena arena(source, 2);
  const auto step = [&] {
    std::vector<std::pair<std::byte*, int64_t>> blocks;
    for (int layer = 0; layer < 12; ++layer) {
      for (const int64_t width : {64, 1024, 4096, 512, 1}) {
        const int64_t bytes = (200 + static_cast<int64_t>(random() % 100)) * width;
        blocks.emplace_back(arena.allocate(bytes), bytes);
      }
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (const auto& [block, bytes] : blocks) arena.free(block, bytes);
  };
  for (int i = 0; i < 5; ++i) step();
  const int before = source.asked;
  for (int i = 0; i < 100; ++i) step();
  EXPECT_LE(source.asked - before, 1);  // a peak that is higher by a part: once, then for long
}

TEST(CpuAllocator, ThreadsFreeEachOthersBlocks) {
  Context context;
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    std::vector<Tensor> given;
    for (int64_t n : {1, 63, 1000, 100'000, 1'000'003}) given.push_back(empty({n}, DType::u8));
    others.emplace_back([given = std::move(given)]() mutable {
      Context own;
      for (Tensor& x : given) {
        std::memset(x.raw_data(), 1, static_cast<size_t>(x.numel()));
        x = empty({x.numel()}, DType::u8);
        std::memset(x.raw_data(), 2, static_cast<size_t>(x.numel()));
      }
      given.clear();
    });
  }
  for (std::thread& t : others) t.join();
  (void)empty({1});  // takes what came home
  EXPECT_LE(context.allocator(kCpu)->stats().live, 64);
}

TEST(CpuAllocator, WhatNoMachineHasIsAnError) {
  Context context;
  const Tensor x = empty({1000});
  EXPECT_THROW((void)empty({int64_t{1} << 59}, DType::u8), StorageError);
  EXPECT_EQ(context.allocator(kCpu)->stats().live, rounded_block(4000));
  (void)empty({1000});
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Sums of the bits that tests compute on ranks, so that a run on threads and one on processes can
// be held against each other: every op's outputs are taken by themselves, other tensors by
// note_bits. With TESSERA_TEST_BITS=<file> a line per test is written at the end.
#pragma once

#include "tessera/dist/world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

namespace tessera::test {

/// Of one rank in one call of on_ranks, on its Context.
struct RankBits {
  uint64_t hash = 0;
  void take(const void* data, int64_t bytes) {
    const auto* from = static_cast<const unsigned char*>(data);
    uint64_t word = 0;
    int64_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
      std::memcpy(&word, from + i, 8);
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    word = static_cast<uint64_t>(bytes) << 56;
    std::memcpy(&word, from + i, static_cast<size_t>(bytes - i));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
};

/// Takes a contiguous tensor of the CPU.
inline void note_bits(const Tensor& x) {
  if (!x.device().is_cpu() || !x.is_contiguous() || x.is_distributed() || x.storage().released())
    return;
  const int64_t bytes = x.numel() * item_size(x.dtype());
  if (bytes > 0) Context::current().state<RankBits>().take(x.raw_data(), bytes);
}

/// Of this process, by test. Sums, so that it does not matter which process had which rank.
class BitLog {
 public:
  static BitLog& get() {
    static BitLog log;
    return log;
  }
  [[nodiscard]] const char* path() const { return std::getenv("TESSERA_TEST_BITS"); }
  /// A new call of on_ranks in the running test; its number.
  uint64_t next_call() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    const std::lock_guard lock(mutex_);
    const std::string name =
        test ? concat(test->test_suite_name(), '.', test->name()) : std::string("outside tests");
    if (name != test_) calls_ = 0;
    test_ = name;
    sums_[test_] += 0;
    return ++calls_;
  }
  void add(uint64_t call, int rank, uint64_t hash) {
    const uint64_t mixed = (hash ^ call << 32 ^ static_cast<uint64_t>(rank)) * 0x9e3779b97f4a7c15u;
    const std::lock_guard lock(mutex_);
    sums_[test_] += mixed ^ mixed >> 31;
  }
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& [test, sum] : sums_) all += concat(test, ' ', sum, '\n');
    return all;
  }
  /// Adds another process's text().
  void merge(const std::string& text) {
    std::istringstream lines(text);
    std::string test;
    for (uint64_t sum = 0; lines >> test >> sum;) sums_[test] += sum;
  }
  void write() const {
    if (path()) std::ofstream(path()) << text();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, uint64_t> sums_;
  std::string test_;
  uint64_t calls_ = 0;
};

}  // namespace tessera::test

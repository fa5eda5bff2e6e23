// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera::train {
namespace {

using Lengths = std::vector<int64_t>;
using Rows = std::vector<Lengths>;

Rows rows_of(const Packing& packing) {
  Rows rows;
  for (int64_t r = 0; r < packing.rows(); ++r)
    rows.emplace_back(packing.row(r).begin(), packing.row(r).end());
  return rows;
}

// The rule as it is told, with every row looked at.
Rows by_brute_force(const Lengths& lengths, int64_t capacity) {
  Lengths order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto length = [&](int64_t i) { return lengths[static_cast<size_t>(i)]; };
  std::ranges::stable_sort(order, std::greater<>(), length);
  Rows rows;
  Lengths room;
  for (const int64_t example : order) {
    size_t best = rows.size();
    for (size_t r = 0; r < rows.size(); ++r) {
      if (room[r] >= length(example) && (best == rows.size() || room[r] < room[best])) best = r;
    }
    if (best == rows.size()) rows.emplace_back(), room.push_back(capacity);
    rows[best].push_back(example);
    room[best] -= length(example);
  }
  for (Lengths& row : rows) std::ranges::sort(row);
  std::ranges::sort(rows);
  return rows;
}

TEST(Packing, IsBestFitOfTheLongestFirst) {
  EXPECT_EQ(rows_of(pack_best_fit({}, 4)), Rows());
  EXPECT_EQ(rows_of(pack_best_fit(Lengths{1}, 1)), (Rows{{0}}));
  EXPECT_EQ(rows_of(pack_best_fit(Lengths{1, 3, 2, 4, 1}, 4)), (Rows{{0, 1}, {2, 4}, {3}}));
  std::mt19937 random(std::random_device{}());
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t capacity = 1 + random() % 60;
    Lengths lengths(random() % 80);
    for (int64_t& length : lengths) length = 1 + random() % capacity;
    ASSERT_EQ(rows_of(pack_best_fit(lengths, capacity)), by_brute_force(lengths, capacity));
  }
}

}  // namespace
}  // namespace tessera::train

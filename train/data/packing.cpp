// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace tessera::train {

Packing pack_best_fit(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto length_of = [&](int64_t example) { return lengths[static_cast<size_t>(example)]; };
  std::ranges::stable_sort(order, std::greater<>(), length_of);

  std::vector<int64_t> row_of(lengths.size()), firsts;  // firsts: the first example of each row
  std::set<std::pair<int64_t, int64_t>> open;           // room that is left, and row
  for (const int64_t example : order) {
    const int64_t length = length_of(example);
    const auto fullest = open.lower_bound({length, 0});
    auto [room, row] =
        fullest != open.end() ? *fullest : std::pair(capacity, static_cast<int64_t>(firsts.size()));
    if (fullest != open.end()) open.erase(fullest);
    else firsts.push_back(example);
    firsts[static_cast<size_t>(row)] = std::min(firsts[static_cast<size_t>(row)], example);
    row_of[static_cast<size_t>(example)] = row;
    if (room > length) open.emplace(room - length, row);
  }

  // By the first example of the row, then by example.
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto first_of = [&](int64_t example) {
    return firsts[static_cast<size_t>(row_of[static_cast<size_t>(example)])];
  };
  std::ranges::stable_sort(order, {}, first_of);
  Packing packing;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i + 1 == order.size() || first_of(order[i]) != first_of(order[i + 1]))
      packing.ends.push_back(static_cast<int64_t>(i) + 1);
  }
  packing.examples = std::move(order);
  return packing;
}

}  // namespace tessera::train

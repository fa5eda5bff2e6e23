// SPDX-License-Identifier: Apache-2.0
// How attention on the CPU cuts its work: blocks of queries and of keys, and tasks of blocks.
#pragma once

#include "tessera/kernels/attention/attention_cpu_impl.h"

#include <algorithm>

namespace tessera::op::attention {

struct RowBlock {
  int64_t row = 0, rows = 0;
};

inline std::vector<RowBlock> even_blocks(int64_t rows) {
  std::vector<RowBlock> blocks;
  for (int64_t i = 0; i < rows; i += kBlock) blocks.push_back({i, std::min(kBlock, rows - i)});
  return blocks;
}
// Blocks of queries; they start where documents do.
inline std::vector<RowBlock> row_blocks(const SeenKeys& seen, int64_t batch, int64_t queries) {
  if (!seen.documents()) return even_blocks(queries);
  std::vector<RowBlock> blocks;
  for (int64_t i = 0; i < queries; ++i) {
    const bool fresh =
        i == 0 || blocks.back().rows == kBlock || seen.start(batch, i) != seen.start(batch, i - 1);
    if (fresh) blocks.push_back({i, 0});
    ++blocks.back().rows;
  }
  return blocks;
}

struct KeyBlock {
  int64_t key, keys;
};
// Blocks of keys, for the gradient; they start where documents do.
inline std::vector<KeyBlock> key_blocks(const Problem& p, const SeenKeys& seen, int64_t batch) {
  std::vector<int64_t> starts{0};
  for (int64_t i = 0; seen.documents() && i < p.t; ++i) {
    const int64_t start = seen.start(batch, i);
    if (start > starts.back() && start < p.s) starts.push_back(start);
  }
  starts.push_back(p.s);
  std::vector<KeyBlock> blocks;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    for (int64_t key = starts[i]; key < starts[i + 1]; key += kBlock)
      blocks.push_back({key, std::min(kBlock, starts[i + 1] - key)});
  }
  return blocks;
}

// The first of these blocks that ends behind `key`.
inline auto block_of_key(const std::vector<KeyBlock>& blocks, int64_t key) {
  return std::partition_point(blocks.begin(), blocks.end(),
                              [&](const KeyBlock& b) { return b.key + b.keys <= key; });
}

// Calls f(key, keys, hidden) for each block of keys that `rows` see, for the gradient.
template <class F>
TESSERA_INLINE void for_seen(const SeenKeys& seen, const Rows& rows,
                             const std::vector<KeyBlock>& keys, int64_t all_keys, F&& f) {
  if (!seen.in_ranges()) return for_blocks(seen, rows, all_keys, 0, all_keys, f);
  // Rows of a group see the same keys, so that nothing is masked.
  const KeyRange* own = seen.ranges(rows.batch) + rows.query;
  const BlockRange range(own, rows.packed ? 1 : rows.rows);
  for (auto b = block_of_key(keys, range.any.first); b != keys.end() && b->key <= range.any.last;
       ++b) {
    const int64_t key = std::max(b->key, range.any.first),
                  count = std::min(b->key + b->keys, range.any.last + 1) - key;
    f(key, count, Hidden{range.sees_all(key, count) ? nullptr : own});
  }
}

// delta (width) += the sum over keys of p dp, both (keys, width). An infinity that is not seen adds
// nothing.
template <int64_t width, class C>
TESSERA_INLINE void add_deltas(const C* p, const C* dp, int64_t keys, C* delta) {
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) {
      const C weight = p[j * width + i];
      delta[i] += weight == C(0) ? C(0) : weight * dp[j * width + i];
    }
  }
}
// dp (keys, width) becomes the gradient of scores before they are capped, by `slopes`, if they are,
// and scaled.
template <int64_t width, class C>
TESSERA_INLINE void score_gradients(const C* p, C* dp, int64_t keys, const C* delta, C scale,
                                    const C* slopes) {
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i)
      dp[j * width + i] = p[j * width + i] * (dp[j * width + i] - delta[i]) * scale;
  }
  if (!slopes) return;
#pragma GCC ivdep
  for (int64_t i = 0; i < keys * width; ++i) dp[i] *= slopes[i];
}

// A part of one head's row blocks (of one key head's, if its group is packed into rows) over a part
// of the keys.
struct Task {
  int64_t batch, head, block, blocks, split, first_key, end_key;
};

struct Plan {
  bool packed = false;  // one query: row r is query head r of the group
  int64_t splits = 1, panel = kBlock;
  std::vector<std::vector<RowBlock>> blocks;  // one list, or one for each batch
  std::vector<Task> tasks;

  Plan(const Problem& p, const SeenKeys& seen) {
    packed = p.t == 1;
    for (int64_t b = 0; b < seen.lists(); ++b) {
      if (packed) blocks.push_back(even_blocks(p.group));
      else blocks.push_back(row_blocks(seen, b, p.t));
    }
    const int64_t heads = packed ? p.h_kv : p.h;
    if (packed && p.b * heads < 16)
      splits = std::clamp<int64_t>(micro::round_up(p.s, 512) / 512, 1, 16);
    const int64_t part = micro::round_up((p.s + splits - 1) / splits, kBlock);
    for (int64_t b = 0; b < p.b; ++b) {
      const auto n = static_cast<int64_t>(blocks_of(b).size());
      // Few heads: their query blocks become tasks of their own.
      const int64_t cuts = p.b * heads >= 8 ? 1 : std::min<int64_t>(n, 4);
      const int64_t per_cut = cuts ? (n + cuts - 1) / cuts : 0;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t block = 0; block < n; block += per_cut) {
          const int64_t count = std::min(per_cut, n - block);
          for (int64_t s = 0; s < splits; ++s)
            tasks.push_back({b, h, block, count, s, s * part, std::min((s + 1) * part, p.s)});
          if (count > 1) panel = std::max(panel, p.s);
        }
      }
    }
  }
  [[nodiscard]] const std::vector<RowBlock>& blocks_of(int64_t batch) const {
    return blocks[blocks.size() > 1 ? static_cast<size_t>(batch) : 0];
  }
};

}  // namespace tessera::op::attention

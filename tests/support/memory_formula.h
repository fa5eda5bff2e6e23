// SPDX-License-Identifier: Apache-2.0
// For tests of memory: what one rank needs under fully_shard, from shapes alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::test {

/// Of a llama3 without grouped queries; degrees divide all dims, so that shards have no padding.
struct MemorySizes {
  int ranks;
  int64_t layers, dim, heads, hidden, vocabulary, length;
};

/// Bytes by kind, f32, of one row per rank.
struct MemoryFormula {
  explicit MemoryFormula(const MemorySizes& s)
      : ranks(s.ranks),
        layers(s.layers),
        block(4 * (4 * s.dim * s.dim + 3 * s.dim * s.hidden + 2 * s.dim)),
        embedding(4 * s.vocabulary * s.dim),
        last(4 * (s.vocabulary + 1) * s.dim),
        // Of a token: the residual stream before both norms, both norms' results, queries, keys,
        // values and what attention gives; gate, up and their product; a number for each head and
        // norm.
        of_block(4 * s.length * (8 * s.dim + 3 * s.hidden + s.heads + 2)),
        // The loss keeps the gradients of its features and of the head.
        of_last(4 * s.length * (2 * s.dim + 1) + 4 * s.vocabulary * s.dim) {}
  [[nodiscard]] int64_t parameters() const { return (layers * block + embedding + last) / ranks; }
  [[nodiscard]] int64_t activations() const { return layers * of_block + of_last; }
  // At the end of the backward of a block: gradients of what lies above it, activations of what
  // lies below, the whole gradients and the buffer that sums them, with its result. The block below
  // is gathered; this one, too, until the buffer is made.
  [[nodiscard]] int64_t backward_of(int64_t i) const {
    const int64_t above = (layers - 1 - i) * block + last;
    return above / ranks + i * of_block + (i > 0 ? block : embedding) + 2 * block + block / ranks;
  }
  /// The most beside parameters and optimizer states.
  [[nodiscard]] int64_t backward() const {
    int64_t most = 0;
    for (int64_t i = 0; i < layers; ++i) most = std::max(most, backward_of(i));
    return most;
  }
  int64_t ranks, layers, block, embedding, last, of_block, of_last;
};

}  // namespace tessera::test

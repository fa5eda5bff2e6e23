// SPDX-License-Identifier: Apache-2.0
// How many tokens linear_cross_entropy takes at a time: few, so that their logits stay small, but
// enough that reading and writing the weight's gradient once per chunk costs little beside the
// products. A function of sizes that all pieces of a cut vocabulary share, because they join chunk
// by chunk.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

inline int64_t chunk_tokens(int64_t tokens, int64_t vocabulary) {
  constexpr int64_t kMost = 512, kLeast = 64, kLogits = 16 << 20;  // logits of a chunk: 64 MB in f32
  const int64_t fit =
      std::clamp(kLogits / std::max<int64_t>(1, vocabulary) / kLeast * kLeast, kLeast, kMost);
  const int64_t chunks = (tokens + fit - 1) / fit;
  return chunks == 0 ? 0 : (tokens + chunks - 1) / chunks;
}

}  // namespace tessera

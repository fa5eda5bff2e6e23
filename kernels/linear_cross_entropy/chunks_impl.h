// SPDX-License-Identifier: Apache-2.0
// How many tokens linear_cross_entropy takes at a time: few, so that their logits stay small, but
// enough that reading and writing the weight's gradient once per chunk costs little beside the
// products. Several chunks of a narrow dtype need sums of the weight's gradient in f32; where the
// logits of all tokens take less, there is one chunk. A function of sizes that all pieces of a cut
// vocabulary share, because they join chunk by chunk.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

/// `summed`: the width of the weight's gradient, 0 where it is not asked for; `item` in bytes.
inline int64_t chunk_tokens(int64_t tokens, int64_t vocabulary, int64_t summed, int64_t item) {
  if (item < 4 && tokens * item <= 4 * summed) return tokens;
  constexpr int64_t kMost = 1024, kLeast = 64, kBytes = 64 << 20;
  const int64_t fit =
      std::clamp(kBytes / std::max<int64_t>(1, vocabulary * item) / kLeast * kLeast, kLeast, kMost);
  const int64_t chunks = (tokens + fit - 1) / fit;
  return chunks == 0 ? 0 : (tokens + chunks - 1) / chunks;
}

/// The same of a device, whose products want more rows at a time: as many as have 2.2 GB of logits,
/// at most 8192.
inline int64_t device_chunk_tokens(int64_t tokens, int64_t vocabulary, int64_t item) {
  constexpr int64_t kMost = 8192, kLeast = 64, kBytes = 2'200'000'000;
  const int64_t fit =
      std::clamp(kBytes / std::max<int64_t>(1, vocabulary * item) / kLeast * kLeast, kLeast, kMost);
  const int64_t chunks = (tokens + fit - 1) / fit;
  return chunks == 0 ? 0 : (tokens + chunks - 1) / chunks;
}
/// Elements from one row of a device's logits to the next: an odd vocabulary would have the
/// products load an element at a time.
inline int64_t device_row_stride(int64_t classes) { return (classes + 63) / 64 * 64; }

}  // namespace tessera

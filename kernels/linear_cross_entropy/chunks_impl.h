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

/// Tokens of a chunk, if as few chunks as possible of equal size have at most `most` tokens and
/// `bytes` of logits each.
inline int64_t even_chunk(int64_t tokens, int64_t bytes_of_token, int64_t most, int64_t bytes) {
  constexpr int64_t kLeast = 64;
  const int64_t fit =
      std::clamp(bytes / std::max<int64_t>(1, bytes_of_token) / kLeast * kLeast, kLeast, most);
  const int64_t chunks = (tokens + fit - 1) / fit;
  return chunks == 0 ? 0 : (tokens + chunks - 1) / chunks;
}

/// On the CPU. `summed`: the width of the weight's gradient, 0 where it is not asked for; `item` in
/// bytes.
inline int64_t chunk_tokens(int64_t tokens, int64_t vocabulary, int64_t summed, int64_t item) {
  if (item < 4 && tokens * item <= 4 * summed) return tokens;
  return even_chunk(tokens, vocabulary * item, 1024, 64 << 20);
}

/// On a device, whose products want more rows at a time.
inline int64_t device_chunk_tokens(int64_t tokens, int64_t vocabulary, int64_t item) {
  return even_chunk(tokens, vocabulary * item, 8192, 2'200'000'000);
}
/// Elements from one row of a device's logits to the next: an odd vocabulary would have the
/// products load an element at a time.
inline int64_t device_row_stride(int64_t classes) { return (classes + 63) / 64 * 64; }

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// A list of tensors as one range of chunks, so that one parallel loop serves a hundred small
// tensors or one large one. Chunks depend on the sizes alone, so the thread count changes no bit.
#pragma once

#include "tessera/core/parallel.h"

#include <algorithm>

namespace tessera {

inline constexpr int64_t kListChunk = 16384;  // elements

class ListChunks {
 public:
  /// Tensors that are not row-major are one chunk each: `whole(i)` says so.
  template <class Whole> ListChunks(Tensors tensors, Whole&& whole) {
    int64_t chunks = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      first_.push_back(chunks);
      const int64_t n = tensors[i].numel();
      chunks += n == 0 ? 0 : whole(i) ? 1 : (n + kListChunk - 1) / kListChunk;
    }
    first_.push_back(chunks);
  }
  [[nodiscard]] int64_t count() const { return first_.data()[first_.size() - 1]; }
  /// Calls f(chunk, tensor, begin, end): in chunk order on each thread; `end` is beyond the last
  /// chunk's elements.
  template <class F> void for_each(F&& f) const {
    const int64_t* first = first_.data();
    const int64_t* last = first + first_.size();
    parallel_for(count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t tensor = std::upper_bound(first, last, chunk) - first - 1;
        const int64_t from = (chunk - first[tensor]) * kListChunk;
        f(chunk, static_cast<size_t>(tensor), from, from + kListChunk);
      }
    });
  }

 private:
  SmallVector<int64_t, 64> first_;
};

}  // namespace tessera

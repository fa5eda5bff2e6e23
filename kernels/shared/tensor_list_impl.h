// SPDX-License-Identifier: Apache-2.0
// Lists of tensors: one range of chunks, so that one parallel loop serves a hundred small tensors
// or one large one (chunks depend on the sizes alone, so the thread count changes no bit), and the
// factors of the tensors.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/core/parallel.h"
#include "tessera/core/rule.h"

#include <algorithm>
#include <vector>

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
      elements_ += n;
    }
    first_.push_back(chunks);
  }
  [[nodiscard]] int64_t count() const { return first_.data()[first_.size() - 1]; }
  /// Calls f(chunk, tensor, begin, end): in chunk order on each thread; `end` is beyond the last
  /// chunk's elements.
  template <class F> void for_each(F&& f) const {
    const int64_t* first = first_.data();
    const int64_t* last = first + first_.size();
    const int64_t grain = elements_ <= kListChunk ? std::max<int64_t>(1, count()) : 1;
    parallel_for(count(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t tensor = std::upper_bound(first, last, chunk) - first - 1;
        const int64_t from = (chunk - first[tensor]) * kListChunk;
        f(chunk, static_cast<size_t>(tensor), from, from + kListChunk);
      }
    });
  }

 private:
  SmallVector<int64_t, 64> first_;
  int64_t elements_ = 0;
};

using DimFactors = SmallVector<DimFactor, kMaxRank>;

/// Each dim of in[first .. first + n) as a factor of its own. Ops in place change no layout, so the
/// other tensors of the list stay as they are when one is cut.
inline std::vector<DimFactors> own_factors(ShardingRule& r, Metas in, size_t first, size_t n) {
  std::vector<DimFactors> lists(n);
  for (size_t i = 0; i < n; ++i) {
    for (int64_t size : in[first + i].shape) {
      lists[i].push_back({static_cast<int16_t>(r.add_factor(size)), 1});
    }
  }
  return lists;
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The masks of attention as what they are for a kernel: the range of keys that a query sees. From
// one query to the next neither end of the range falls, so the first and last query of a tile bound
// the keys of all.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>

namespace tessera::op {

struct KeyRange {
  int64_t first, last;  // both seen; none if last < first
};

struct AttentionMask {
  int64_t keys, offset, window, chunk, key_start;
  bool causal;

  template <class Op>
  AttentionMask(const Op& op, int64_t n)
      : keys(n),
        offset(op.offset),
        window(op.window),
        chunk(op.chunk),
        key_start(op.key_start),
        causal(op.causal) {}

  /// What `query` sees. position: its place in its document, -1 where there are no documents;
  /// document_end: the document's last query, read only if not causal.
  TESSERA_HD KeyRange range(int64_t query, int64_t position, int64_t document_end) const {
    const int64_t at = query + offset;
    KeyRange r{0, keys - 1};
    if (causal && at < r.last) r.last = at;
    if (window > 0 && at - window + 1 > r.first) r.first = at - window + 1;
    if (chunk > 0) {
      const int64_t start = (at + key_start) / chunk * chunk - key_start;
      if (start > r.first) r.first = start;
    }
    if (position >= 0) {
      if (at - position > r.first) r.first = at - position;
      if (!causal && document_end + offset < r.last) r.last = document_end + offset;
    }
    return r;
  }
  /// Whether a position can be: the document starts at a key of the whole sequence.
  TESSERA_HD bool possible(int64_t query, int64_t position) const {
    return position >= 0 && position <= query + offset + key_start;
  }
};

}  // namespace tessera::op

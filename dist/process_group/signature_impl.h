// SPDX-License-Identifier: Apache-2.0
// Signature: what all members must say alike of a collective, as plain data that back ends compare
// before a byte of the payload moves.
#pragma once

#include "tessera/dist/process_group/process_group.h"

namespace tessera {

/// What ranks must agree on.
struct Signature {
  int64_t count;
  uint64_t counts_hash;  // of the counts of all members; 0 where the kind has none in common
  int32_t root;
  CollectiveKind kind;
  ReduceOp op;  // sum where nothing is reduced
  DType dtype;

  explicit Signature(const Collective& c);
  Signature() = default;
  bool operator==(const Signature&) const = default;
  /// `all_reduce sum f32[10]`
  [[nodiscard]] std::string text() const;
};

}  // namespace tessera

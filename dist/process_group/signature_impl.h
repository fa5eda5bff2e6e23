// SPDX-License-Identifier: Apache-2.0
// Signature: the properties of a collective that must be equal on all members, as plain data that
// back ends compare before any payload is transferred.
#pragma once

#include "tessera/dist/process_group/process_group.h"

namespace tessera {

/// Properties that must be equal on all ranks.
struct Signature {
  int64_t count;
  uint64_t counts_hash;  // of the counts of all members; 0 if the kind has no common counts
  int32_t root;
  CollectiveKind kind;
  ReduceOp op;  // sum if nothing is reduced
  DType dtype;

  explicit Signature(const Collective& c);
  Signature() = default;
  bool operator==(const Signature&) const = default;
  /// `all_reduce sum f32[10]`
  [[nodiscard]] std::string text() const;
};

}  // namespace tessera

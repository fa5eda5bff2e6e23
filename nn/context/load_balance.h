// SPDX-License-Identifier: Apache-2.0
// Load balance of context parallelism: in which order the tokens of a sequence lie, so that the
// ranks that hold its parts have equal work. An order is a permutation made on the host; parts have
// the sizes that the layout gives them, whatever these are, and tokens are in order inside a part.
#pragma once

#include "tessera/core/tensor.h"

#include <iosfwd>
#include <span>

namespace tessera::nn {

enum class LoadBalancer : uint8_t {
  none,                ///< the sequence as it is
  head_tail,           ///< each part has as much of the beginning as of the end: causal masks
  document_head_tail,  ///< the same in each document: causal masks within documents
  /// Blocks of 64 queries by falling work, dealt to the parts to and fro (PTRR of torchtitan): any
  /// mask.
  round_robin,
};
TESSERA_API std::ostream& operator<<(std::ostream&, LoadBalancer);

struct LoadBalance {
  LoadBalancer balancer = LoadBalancer::none;
  Tensor documents = {};  ///< (T) or (B, T) i64 on the CPU, for document_head_tail
  Tensor work = {};       ///< (1 or B, T / 64), rounded up, i64: count_seen_blocks; for round_robin
};

/// The token at each place, (T) or (B, T) i64, where parts of these sizes follow each other;
/// undefined where that is the place. ValueError: documents or work that the balancer needs are
/// missing or do not fit the parts.
[[nodiscard]] TESSERA_API Tensor balanced_order(const LoadBalance& balance,
                                                std::span<const int64_t> parts);

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// Context parallelism in generation. A prompt is cut as a batch of training is, by any method, and
// each rank keeps the keys and values of its own tokens alone. Later tokens are on all ranks, and
// their keys stay with one rank each, in turn. Queries are not sent: each rank attends to the keys
// that it has, and what the ranks found is merged by its log-sum-exp (flash decoding; Dao et al.,
// 2023), by one collective of a layer whose size does not depend on the length of the text.
#pragma once

#include "tessera/nn/context/context_parallel.h"

#include <optional>
#include <span>
#include <vector>

namespace tessera::nn {

/// Which tokens of a text a rank keeps: those of its part of the prompt, and of the later ones each
/// that its turn comes to.
struct TESSERA_API KeptTokens {
  Tensor prompt = {};         ///< (t) i64: its part of the prompt, in order
  int64_t prompt_length = 0;  ///< of all parts
  int ranks = 1, rank = 0;    ///< that share the text, and which of them
  /// How many of the first `tokens` of the text it keeps; no fewer than the prompt.
  [[nodiscard]] int64_t count(int64_t tokens) const;
  /// Which they are, in order: (count) i64.
  [[nodiscard]] Tensor positions(int64_t tokens) const;
};

/// The cut of texts that are generated, alike on all ranks: `next` for each forward, in order.
class TESSERA_API GenerationCut {
 public:
  /// A prompt is one document: to document_head_tail it is as to head_tail.
  explicit GenerationCut(ContextParallelOptions options);

  /// What a model takes for a forward.
  struct Step {
    Tensor tokens;                         ///< the prompt's cut, later ones as they were
    std::vector<AttentionMetadata> kinds;  ///< whose `cut` fills the caches
  };
  /// For tokens (B, T) that follow `seen` others, which lie alike on the ranks of the axes, and
  /// metadata of each kind of layers. At 0 a text begins, and the one before is forgotten. Errors
  /// of SequenceCut; ValueError: metadata with documents, token_positions or a block map, which
  /// caches do not store, or `seen` without a prompt.
  [[nodiscard]] Step next(const Tensor& tokens, int64_t seen,
                          std::span<const AttentionMetadata> kinds);
  /// What the model makes of the tokens of a step, (B, T, ...) -> (B, 1, ...) of the last of them,
  /// on each rank.
  [[nodiscard]] Tensor last(const Tensor& h) const;

 private:
  [[nodiscard]] AttentionMetadata prompt_metadata(const AttentionMetadata& whole) const;
  [[nodiscard]] AttentionMetadata later_metadata(const AttentionMetadata& whole, int64_t count,
                                                 int64_t seen) const;

  ContextParallelOptions options_;
  std::optional<SequenceCut> prompt_;
  KeptTokens kept_;
};

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// Context parallel: the sequences of a batch are cut over the ranks of a mesh axis, and attention
// alone exchanges what its queries need (Liu et al., Ring Attention, 2023; Jacobs et al.,
// DeepSpeed-Ulysses, 2023). Positions, documents and block maps are data of the whole batch, which
// the ranks of the axis hold alike. So each rank works out on the host, once per batch, what its
// queries see of whose keys; layers then send keys and values, and nothing about masks.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/context/load_balance.h"

#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {
struct AttentionOptions;
}

namespace tessera::nn {

/// How queries meet the keys of other ranks. All give the same result but for rounding, for any
/// mask.
enum class ContextMethod : uint8_t {
  /// Keys and values are gathered, and put in the order of the sequence; their gradients are summed
  /// where they belong. A rank holds all keys of one layer at a time: backward gathers them again.
  all_gather,
  /// Keys and values go round, one part at a time, while attention runs on the last; gradients go
  /// round in backward and end at home. What parts give is added in f32 (f64 for f64), but each
  /// part rounds its own to the dtype.
  ring,
  /// Heads are exchanged for the sequence and back: each rank has whole sequences of some heads.
  /// Key heads that are too few are repeated.
  ulysses,
  /// Both, on two axes: heads are exchanged on the second, keys go round the first.
  ring_ulysses,
};
TESSERA_API std::ostream& operator<<(std::ostream&, ContextMethod);

struct ContextParallelOptions {
  ContextMethod method = ContextMethod::all_gather;
  LoadBalancer balancer = LoadBalancer::head_tail;
  /// The mesh axes that cut the sequence: one, or ring and heads of ring_ulysses, which unflatten
  /// makes of one.
  std::vector<std::string> axes = {"cp"};
  Device device = kCpu;  ///< of the tokens
};

/// How often key heads are repeated, so that `ranks` ranks that exchange heads have equal shares of
/// them and of the query heads that use them; 0: no number does. The heads are those of one rank of
/// tensor parallelism.
[[nodiscard]] TESSERA_API int64_t key_head_copies(int64_t heads, int64_t key_heads, int64_t ranks);
/// Why attention below `root` cannot exchange heads over `ranks` ranks where `tensor` ranks of
/// tensor parallelism share them; empty: it can. Other layers of attention are not looked at.
[[nodiscard]] TESSERA_API std::string exchanged_heads_fault(Module& root, int64_t ranks,
                                                            int64_t tensor);

struct AttentionPlan;

/// The cut of one batch: which tokens each rank has, and in which order. Made alike on all ranks,
/// without communication.
class TESSERA_API SequenceCut {
 public:
  /// For (B, T) tensors of the global shape `tokens` that lie as `rows` while their sequences are
  /// whole. Balancers read the metadata of each kind of layers: the masks, whose work, summed
  /// over the layers, they make equal, and the documents, which are those of the first kind.
  /// ValueError: another number of axes than the method has, what the balancer lacks. LayoutError:
  /// rows that are partial, or cut over the sequence or one of the axes.
  SequenceCut(ContextParallelOptions options, Layout rows, const Shape& tokens,
              std::span<const AttentionMetadata> kinds);
  SequenceCut(ContextParallelOptions options, Layout rows, const Shape& tokens,
              const AttentionMetadata& layers = {})
      : SequenceCut(std::move(options), rows, tokens, std::span(&layers, 1)) {}

  /// How (B, T, ...) tensors lie that are cut.
  [[nodiscard]] Layout layout() const { return layout_; }
  /// The token at each place, (T) or, for this rank's rows, (b, T) i64; undefined: in order.
  [[nodiscard]] const Tensor& order() const { return order_; }

  /// The tokens of this rank, (t) or (b, t) i64.
  [[nodiscard]] Tensor own_tokens() const { return tokens_of(part_, 1); }

  /// Tokens, targets or anything else of (B, T, ...), lying as `rows`, or this rank's rows of it,
  /// plain -> the same in the order of the cut, lying as layout(). Not recorded.
  [[nodiscard]] Tensor cut(const Tensor& x) const;
  /// The inverse, for what a model gives: (B, T, ...) that lies as layout(), other dims as they
  /// like -> sequences whole and in order. Gathers over the axes. Not recorded.
  [[nodiscard]] Tensor join(const Tensor& y) const;
  /// What layers get: attention over cut sequences instead of mask, documents, token_positions and
  /// block_map, and the position_ids of this rank's tokens (their places where there were none),
  /// and their padding.
  /// Tensors of `whole` lie as `rows` or are this rank's rows, (B, T) or (T), and so do the blocks
  /// of its map, (B or 1, T / 64, T / 64). RoPE tables stay whole. ShapeError, DTypeError,
  /// ValueError: `whole` does not fit the tokens, is cut already, or starts behind position 0
  /// without position_ids.
  [[nodiscard]] AttentionMetadata metadata(const AttentionMetadata& whole) const;

 private:
  [[nodiscard]] AttentionOptions mask_of(const AttentionMetadata& whole) const;
  [[nodiscard]] Tensor tokens_of(int first_part, int parts) const;
  [[nodiscard]] std::shared_ptr<const AttentionPlan> plan(const AttentionOptions& whole) const;
  [[nodiscard]] Tensor own_rows(const Tensor& x, std::string_view what,
                                DType dtype = DType::i64) const;

  ContextParallelOptions options_;
  Layout rows_, layout_;
  Shape tokens_;
  int64_t batches_ = 0;         // rows of this rank
  std::vector<int64_t> parts_;  // sizes of the parts of a sequence, in their order
  int part_ = 0;                // this rank's
  int inner_ = 1;               // parts that exchange heads with each other
  Tensor order_;
};

}  // namespace tessera::nn

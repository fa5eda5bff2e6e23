// SPDX-License-Identifier: Apache-2.0
// Cutting a call into the pieces that ranks would run, and joining their outputs, from the sharding
// rule alone.
#pragma once

#include "tessera/tests/laws/laws.h"

namespace tessera::laws {

/// A factor cut into consecutive ranges (in units of the factor), one per rank of a mesh axis.
struct Cut {
  int factor = 0;
  std::vector<int64_t> sizes;
  [[nodiscard]] std::string text() const;
};

/// One call under its rule.
struct Call {
  const Subject& subject;
  const SampleRow& sample;
  TensorVector in;
  std::vector<TensorMeta> out;
  ShardingRule rule;
  Call(const Subject& s, const SampleRow& sample, TensorVector in);
};

/// All that a rule says, as text.
std::string whole_text(const ShardingRule&);
/// Why the rule does not describe the call's operands, if it does not.
std::optional<std::string> rule_problem(const Call&);
/// The cuts by which the law tries a factor: even and uneven, into 2 and 3, one with an empty
/// piece.
std::vector<Cut> cuts_of(const ShardingRule&, int factor);
/// Which ranges of all operands belong to piece at[i] of cuts[i].
Piece piece_of(const Call&, std::span<const Cut> cuts, std::span<const size_t> at);
TensorVector cut_inputs(const Call&, const Piece&);

struct JoinOptions {
  bool plain = false;        // run the op itself instead of op.local(piece)
  std::optional<Join> join;  // instead of the rule's
};
/// Runs all pieces and joins each output. Throws what a piece throws, except that an empty piece of
/// a factor which outputs drop may refuse with a ShapeError or ValueError: it then adds nothing.
/// What an in-place op writes keeps its layout, so an operand without the factor must come out
/// equal from every piece. Pieces of a factor that joins inside run together, and outputs without
/// it must come out equal from them.
std::vector<std::vector<double>> run_pieces(const Call&, std::span<const Cut> cuts,
                                            JoinOptions options = {});
/// Whether the joined pieces are the whole; the text says why not.
std::optional<std::string> pieces_problem(const Call&, const TensorVector& whole,
                                          std::span<const Cut> cuts, JoinOptions options = {});

}  // namespace tessera::laws

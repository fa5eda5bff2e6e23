// SPDX-License-Identifier: Apache-2.0
// Sharding rules as data: a factor map for one mesh axis (product over axes). `rule("m k, k n -> m
// n", in)`: a factor that an output keeps may be sharded, one that it drops leaves the output
// Partial. `replicate` factors must not be sharded. Constant text is parsed at compile time, so a
// malformed rule does not compile. A dim of size 1 against a larger factor is broadcast: it maps to
// no factor. A dim may have `scale` elements per unit of its factor (heads of a group, reshape), so
// shards of the factor are shards of the dim at multiples of `scale`. An in-place op changes no
// layout: a written operand without the sharded factor gets equal values on all ranks. A factor
// that joins inside leaves no Partial: the ranks that hold its pieces communicate in the op.
#pragma once

#include "tessera/core/op_types.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The factor of a dim of an operand.
struct DimFactor {
  int16_t factor = -1;  // -1: broadcast or private to the operand, never sharded
  int64_t scale = 1;
};

struct Factor {
  int64_t size = 0;
  Join join = Join::sum;
  bool replicate = false;
  bool inside = false;  // the op reduces over its pieces itself: an output without it is complete
  char letter = 0;      // for messages
};

/// The text of a rule, checked when compiled: letters, spaces, commas, one "->", at most one "..."
/// per operand.
class RuleText {
 public:
  consteval RuleText(const char* text) : text_(text) { check(text_); }
  [[nodiscard]] constexpr std::string_view text() const { return text_; }

 private:
  static consteval void check(std::string_view t) {
    size_t arrow = t.find("->");
    if (arrow == t.npos || t.find("->", arrow + 1) != t.npos) throw "a rule has exactly one ->";
    for (size_t i = 0; i < t.size(); ++i) {
      const char c = t[i];
      const bool letter = c >= 'a' && c <= 'z';
      if (!letter && c != ' ' && c != ',' && c != '-' && c != '>' && c != '.')
        throw "a rule has letters, spaces, commas, -> and ...";
      if (letter && i + 1 < t.size() && t[i + 1] >= 'a' && t[i + 1] <= 'z')
        throw "separate the factors of a rule by spaces";
      if (c == '.' && !(t.substr(i, 3) == "..." || (i >= 1 && t.substr(i - 1, 3) == "...") ||
                        (i >= 2 && t.substr(i - 2, 3) == "...")))
        throw "an ellipsis has three dots";
    }
    // Every output factor must come from an input, or no piece of it could be computed locally.
    for (size_t i = arrow; i < t.size(); ++i) {
      const char c = t[i];
      if (c >= 'a' && c <= 'z' && t.substr(0, arrow).find(c) == t.npos)
        throw "an output factor appears in no input";
    }
  }
  std::string_view text_;
};

class TESSERA_API ShardingRule {
 public:
  ShardingRule() = default;

  // --- for rooms -------------------------------------------------------------------------------------
  /// These factors (letters of the text) cannot be sharded.
  ShardingRule& replicate(std::string_view letters);
  ShardingRule& replicate_factor(int factor);
  /// This factor may be sharded although outputs lack it and are complete: the op's local form
  /// reduces over the pieces by Piece::joiner. At most one factor of a rule.
  ShardingRule& joins_inside(char letter);
  /// Partials of dropped factors are reduced by `j` (default sum).
  ShardingRule& join(Join j);
  /// f is linear jointly in these inputs: Partial(sum) of them all gives Partial(sum). May be
  /// called several times.
  ShardingRule& linear(std::initializer_list<int> inputs);
  ShardingRule& linear(std::vector<int> inputs);
  ShardingRule& linear_all(int first, int count);
  /// f of its one input is non-decreasing (non-increasing): Partial(max) gives Partial(max) (min).
  ShardingRule& monotone_up();
  ShardingRule& monotone_down();
  /// An exact linearity or a free factor that the rule omits on purpose, with the reason; the laws
  /// list it.
  ShardingRule& stricter_because(std::string_view why);

  // --- the builder, for rules that depend on rank or sizes -------------------------------------------------------
  int add_factor(int64_t size, char letter = 0);
  /// Appends an operand (inputs first, then outputs); one DimFactor per dim.
  ShardingRule& operand(std::initializer_list<DimFactor> dims);
  ShardingRule& operand(std::span<const DimFactor> dims);
  ShardingRule& outputs_from_here();
  /// Sets the factors' sizes in the order they were added.
  ShardingRule& with_sizes(std::span<const int64_t> sizes);

  // --- for planner and laws -----------------------------------------------------------------------------------------
  [[nodiscard]] int inputs() const { return inputs_; }
  [[nodiscard]] int operands() const { return static_cast<int>(operands_.size()); }
  [[nodiscard]] std::span<const DimFactor> dims(int operand) const {
    return operands_[static_cast<size_t>(operand)];
  }
  [[nodiscard]] std::span<const Factor> factors() const { return factors_; }
  [[nodiscard]] const std::vector<std::vector<int>>& linearities() const { return linear_; }
  [[nodiscard]] int monotone() const { return monotone_; }  // +1 up, -1 down, 0 neither
  [[nodiscard]] std::string_view strict_reason() const { return why_strict_; }
  [[nodiscard]] bool has_factor(int operand, int factor) const;
  /// Rule as text with sizes, for goldens and errors.
  [[nodiscard]] std::string text() const;
  /// The factor that joins inside, -1 for none.
  [[nodiscard]] int inside_factor() const;
  /// For laws and mutations: frees a factor.
  void set_replicate(int factor, bool on) { factors_[static_cast<size_t>(factor)].replicate = on; }
  void set_inside(int factor, bool on) { factors_[static_cast<size_t>(factor)].inside = on; }

 private:
  std::vector<std::vector<DimFactor>> operands_;
  std::vector<Factor> factors_;
  std::vector<std::vector<int>> linear_;
  std::string_view why_strict_;
  int inputs_ = 0;
  int monotone_ = 0;
};

/// The rule of `text` for inputs of these shapes. "..." stands for the leading dims that an operand
/// has beyond its letters, aligned at the right; sizes must agree or be 1. Outputs' ranks follow
/// from the text.
TESSERA_API ShardingRule rule(RuleText text, Metas in);
/// Every dim of every (broadcast) operand pairs with the output's: `inputs` inputs, `outputs`
/// outputs of `out` shape.
TESSERA_API ShardingRule pointwise_rule(Metas in, const Shape& out, int outputs = 1);

}  // namespace tessera

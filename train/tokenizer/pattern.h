// SPDX-License-Identifier: Apache-2.0
// The regular expressions by which tokenizers split text, in the syntax of Oniguruma that the
// tokenizer.json files of the field use. An own matcher, since the ids depend on the version of
// Unicode, on what `\s` is and on the syntax (class intersections): no library has all three as the
// files mean them.
//
// Understood: alternatives, groups, (?i:...) of ASCII letters, look-ahead, classes with ranges,
// nested classes and &&, \p{category}, \s \d, greedy, lazy and possessive repetition. Not
// understood, and an error: look-behind, back-references, \b, \w, scripts, and patterns that match
// the empty text.
#pragma once

#include "tessera/train/unicode/unicode.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

/// Immutable once made, so that threads may share it.
class TESSERA_API Pattern {
 public:
  /// DataError, with the offset: not a pattern, not understood, or too large. `where` names its
  /// file and key.
  Pattern(std::string_view expression, const std::string& where);
  /// The pattern of a text as it is.
  static Pattern literal(std::string_view text, const std::string& where);

  /// Steps, characters looked at, that finding all matches in a text may take. Patterns of the
  /// field take a few for each byte; nested repetitions may take a power of its length.
  [[nodiscard]] static size_t steps_for(std::string_view text) {
    return 1'000'000 + 256 * text.size();
  }
  /// Begin and end of the first match at or after `from`. Takes its steps from `steps_left`;
  /// DataError if they are not enough.
  [[nodiscard]] std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from,
                                                              size_t& steps_left) const;

  /// Whether no match depends on what lies on the other side of a cut between an ASCII letter and
  /// a space, so that text may be split there first.
  [[nodiscard]] bool allows_cuts() const { return allows_cuts_; }
  /// Whether a space always begins a match unless one began before it.
  [[nodiscard]] bool takes_space() const { return takes_space_; }

 private:
  enum class Kind : uint8_t { accept, set, branch, atomic, ahead, not_ahead, line_begin, line_end };
  enum class Mode : uint8_t { greedy, lazy, possessive };
  struct Node {
    Kind kind = Kind::accept;
    Mode mode = Mode::greedy;               // set
    uint32_t set = 0, least = 1, most = 1;  // set: of how many characters
    std::vector<uint32_t> ways = {};        // the others: what to try, in order
    uint32_t next = 0;
  };
  friend class PatternParser;
  struct Search;
  using Bytes = std::array<bool, 256>;

  void spend(Search& search, size_t steps, size_t at) const;
  [[nodiscard]] size_t match(Search& search, uint32_t node, size_t at) const;
  [[nodiscard]] size_t match_set(Search& search, const Node& node, size_t at) const;
  bool first_bytes(uint32_t node, Bytes& bytes, std::vector<char>& seen) const;
  [[nodiscard]] bool cut_is_safe(const Node& node, bool in_look) const;
  [[nodiscard]] bool space_may_follow(uint32_t node, std::vector<char>& seen) const;
  [[nodiscard]] bool takes_space_alone(uint32_t way) const;
  void analyse(std::vector<uint32_t> ways);

  std::string where_;
  std::vector<Node> nodes_;  // the first accepts
  std::vector<unicode::CharSet> sets_;
  std::vector<uint32_t> ways_;                // the alternatives of the whole
  std::array<uint32_t, 256> ways_of_byte_{};  // bit i: the i-th may begin with this byte
  bool allows_cuts_ = false, takes_space_ = false;
};

}  // namespace tessera::train

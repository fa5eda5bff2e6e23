// SPDX-License-Identifier: Apache-2.0
// What happens to text before byte-pair encoding, as tokenizer.json says: it is normalised, then
// split into words.
#pragma once

#include "tessera/train/tokenizer/pattern.h"
#include "tessera/train/unicode/unicode.h"

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::train {

/// Steps in order.
class Normalizer {
 public:
  void add_nfc() { steps_.push_back({std::make_shared<unicode::Composer>(), {}, {}}); }
  void add_prepend(std::string text) { steps_.push_back({nullptr, {}, std::move(text)}); }
  void add_replace(std::string from, std::string to) {
    steps_.push_back({nullptr, std::move(from), std::move(to)});
  }
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  [[nodiscard]] std::string apply(std::string_view text) const;
  /// Whether text may be cut at spaces before it is normalised.
  [[nodiscard]] bool allows_cuts() const;

 private:
  struct Step {
    std::shared_ptr<const unicode::Composer> nfc;
    std::string from, to;  // replace; without `from`: prepend `to`
  };
  std::vector<Step> steps_;
};

/// Splits at the matches of a pattern.
struct SplitStage {
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  Pattern pattern;
  Behavior behavior = Behavior::isolated;
  bool invert = false;  ///< what lies between the matches counts as the matches
};
/// Spaces become `mark`; a text that does not begin with it gets one.
struct MarkStage {
  enum class Prepend { always, first, never };
  std::string mark;
  Prepend prepend = Prepend::always;  ///< first: only at the beginning of the whole text
  bool split = true;                  ///< before each mark
};
/// A text that does not begin with a space gets one.
struct PrefixSpaceStage {};

class PreTokenizer {
 public:
  using Stage = std::variant<SplitStage, MarkStage, PrefixSpaceStage>;
  /// Buffers of one thread.
  struct Buffers {
    std::vector<std::string_view> words, next;
    std::deque<std::string> changed;
  };
  void add(Stage stage);
  /// Leaves the words of `text` in buffers.words; they point into the text and the buffers.
  /// `begins`: the text is the beginning of a document. DataError as Pattern::find.
  void split(std::string_view text, bool begins, Buffers& buffers) const;
  /// Whether a text cut between an ASCII letter and a space gives the same words.
  [[nodiscard]] bool allows_cuts() const;

 private:
  std::vector<Stage> stages_;
};

}  // namespace tessera::train

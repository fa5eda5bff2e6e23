// SPDX-License-Identifier: Apache-2.0
// Tokens that are found in text as they are, before anything else is done with it: marks such as
// <|endoftext|>, and words that were added to a trained vocabulary.
#pragma once

#include "tessera/train/unicode/unicode.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  ///< found only where no word continues on either side
  bool left_space = false, right_space = false;  ///< takes the white space beside it along
  bool normalised = true;                        ///< looked for in the normalised text
  bool special = false;                          ///< a mark, which decoding drops
};

/// Finds the tokens of a set in text: from the left, the longest first.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  /// Called with each part of the text in order: the id of a token, or -1 and other text.
  using Part = std::function<void(std::string_view text, int32_t id)>;
  void split(std::string_view text, const Part& part) const;
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  /// Whether a cut of text between an ASCII letter and a space may change what is found.
  [[nodiscard]] bool may_cross_a_cut() const;

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;  // sorted
    int32_t token = -1;                               // that ends here: index into tokens_
  };
  [[nodiscard]] int32_t longest(std::string_view text) const;
  [[nodiscard]] bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; the first is its root
  std::array<bool, 256> first_bytes_{};
  unicode::CharSet space_, word_;
};

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Makes the nodes of a Pattern from its text.
#pragma once

#include "tessera/train/tokenizer/pattern.h"

#include <map>

namespace tessera::train {

class PatternParser {
 public:
  PatternParser(Pattern& pattern, std::string_view text) : pattern_(pattern), text_(text) {}
  /// The alternatives of the whole expression.
  std::vector<uint32_t> run();

 private:
  using Ranges = unicode::Ranges;
  using Mode = Pattern::Mode;
  struct Repeat {
    uint32_t least = 1, most = 1;
    Mode mode = Mode::greedy;
  };

  struct Item;
  using Items = std::vector<Item>;
  struct Item {
    enum class Kind : uint8_t { set, group, ahead, not_ahead, line_begin, line_end } kind;
    Ranges ranges = {};
    std::vector<Items> alternatives = {};
    std::vector<Repeat> repeats = {};  // innermost first: `x{2}+` repeats the repetition
  };

  std::vector<Items> alternatives(int depth, bool fold);
  Items sequence(int depth, bool fold);
  Item atom(int depth, bool fold);
  Item group(int depth, bool fold);
  void quantifiers(Item& item);
  std::optional<Repeat> quantifier();
  uint32_t number();
  Ranges char_class(int depth, bool fold);
  Ranges escape(bool fold);
  Ranges property(bool negated);
  uint32_t hex(size_t least, size_t most);
  [[nodiscard]] Ranges one(uint32_t point, bool fold) const;

  // Nodes are built from the last to the first: `next` is what follows.
  std::vector<uint32_t> build(const std::vector<Items>& alternatives, uint32_t next);
  uint32_t build(const Item& item, uint32_t next);
  uint32_t build_group(const Item& item, size_t repeats, uint32_t next);
  uint32_t add(Pattern::Node node);
  uint32_t set_of(const Ranges& ranges);
  [[nodiscard]] bool nullable(const std::vector<Items>& alternatives) const;
  [[nodiscard]] bool nullable(const Item& item) const;

  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(std::string_view expected);
  uint32_t character();
  template <class... Parts> [[noreturn]] void stop(const Parts&... parts) const;

  Pattern& pattern_;
  std::string_view text_;
  size_t at_ = 0;
  std::map<Ranges, uint32_t> sets_;
};

}  // namespace tessera::train

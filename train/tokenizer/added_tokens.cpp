// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tokenizer/added_tokens.h"

#include <algorithm>

namespace tessera::train {
namespace {

// Alphabetic characters, marks, digits, connectors and joiners: the `\w` by which `single_word` is
// meant.
unicode::Ranges word_characters() {
  unicode::Ranges all{{0x200C, 0x200E},
                      {0x24B6, 0x24EA},
                      {0x1F130, 0x1F14A},
                      {0x1F150, 0x1F16A},
                      {0x1F170, 0x1F18A}};
  for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) {
    const unicode::Ranges part = unicode::category(name);
    all.insert(all.end(), part.begin(), part.end());
  }
  return unicode::normalised(std::move(all));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  if (tokens_.empty()) return;
  space_ = unicode::CharSet(unicode::white_space());
  word_ = unicode::CharSet(word_characters());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t at = 0;
    for (const char c : tokens_[i].content) {
      auto& children = nodes_[at].children;
      const auto child =
          std::ranges::lower_bound(children, c, {}, &std::pair<char, uint32_t>::first);
      if (child != children.end() && child->first == c) {
        at = child->second;
        continue;
      }
      at = static_cast<uint32_t>(nodes_.size());
      children.insert(child, {c, at});
      nodes_.emplace_back();
    }
    nodes_[at].token = static_cast<int32_t>(i);
    first_bytes_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
  }
}

int32_t AddedTokens::longest(std::string_view text) const {
  int32_t found = -1;
  uint32_t at = 0;
  for (const char c : text) {
    const auto& children = nodes_[at].children;
    const auto child = std::ranges::lower_bound(children, c, {}, &std::pair<char, uint32_t>::first);
    if (child == children.end() || child->first != c) break;
    at = child->second;
    if (nodes_[at].token >= 0) found = nodes_[at].token;
  }
  return found;
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  if (begin > 0 &&
      word_.contains(unicode::character_at(text, unicode::previous(text, begin)).point))
    return false;
  return end == text.size() || !word_.contains(unicode::character_at(text, end).point);
}

void AddedTokens::split(std::string_view text, const Part& part) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!first_bytes_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const int32_t index = longest(text.substr(at));
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at, end = at + token.content.size();
    at = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    while (token.left_space && begin > done) {
      const size_t before = unicode::previous(text, begin);
      if (!space_.contains(unicode::character_at(text, before).point)) break;
      begin = before;
    }
    while (token.right_space && end < text.size()) {
      const unicode::Character c = unicode::character_at(text, end);
      if (!space_.contains(c.point)) break;
      end += c.bytes;
    }
    if (done < begin) part(text.substr(done, begin - done), -1);
    part(text.substr(begin, end - begin), token.id);
    done = end;
    at = std::max(at, end);
  }
  if (done < text.size()) part(text.substr(done), -1);
}

bool AddedTokens::may_cross_a_cut() const {
  const auto letter = [](char c) { return (static_cast<unsigned char>(c) | 32u) - 'a' < 26; };
  return std::ranges::any_of(tokens_, [&](const AddedToken& t) {
    if (t.right_space && letter(t.content.back())) return true;
    for (size_t i = 1; i < t.content.size(); ++i) {
      if (t.content[i] == ' ' && letter(t.content[i - 1])) return true;
    }
    return false;
  });
}

}  // namespace tessera::train

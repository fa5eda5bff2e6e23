// SPDX-License-Identifier: Apache-2.0
// A backtracking matcher: nodes are linked by what follows them, and a node that has a choice tries
// each way with all that follows. Runs of one class, which is nearly all that such patterns are
// made of, are a loop without recursion. The first byte of a match rules out most alternatives.
#include "tessera/train/tokenizer/pattern.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/train/tokenizer/pattern_parser_impl.h"

#include <algorithm>

namespace tessera::train {

namespace {
constexpr size_t kNone = std::string_view::npos;
constexpr int kMostDepth = 4000;  // calls of match in one another, about a megabyte of stack
}  // namespace

struct Pattern::Search {
  std::string_view text;
  size_t& steps_left;
  int depth = 0;
};

Pattern::Pattern(std::string_view expression, const std::string& where) : where_(where), nodes_(1) {
  constexpr size_t kMostBytes = 1 << 16;
  if (expression.size() > kMostBytes) {
    fail<DataError>("tokenizer", where_, " has ", counted(expression.size(), "byte"),
                    ", expected a pattern of at most ", kMostBytes);
  }
  analyse(PatternParser(*this, expression).run());
}

Pattern Pattern::literal(std::string_view text, const std::string& where) {
  std::string expression;
  for (const char c : text) {
    if (std::string_view("\\()[]{}.*+?^$|&-").find(c) != std::string_view::npos) expression += '\\';
    expression += c;
  }
  return Pattern(expression, where);
}

std::optional<std::pair<size_t, size_t>> Pattern::find(std::string_view text, size_t from,
                                                       size_t& steps_left) const {
  Search search{text, steps_left};
  while (from < text.size()) {
    uint32_t ways = ways_of_byte_[static_cast<unsigned char>(text[from])];
    for (size_t i = 0; ways != 0; ++i, ways >>= 1) {
      if ((ways & 1) == 0) continue;
      if (const size_t end = match(search, ways_[i], from); end != kNone)
        return std::pair(from, end);
    }
    from += unicode::character_at(text, from).bytes;
  }
  return std::nullopt;
}

void Pattern::spend(Search& search, size_t steps, size_t at) const {
  if (search.steps_left < steps) {
    fail<DataError>("tokenizer", where_, ": a search by this pattern took too many steps at byte ",
                    at, " of a text; simplify the pattern");
  }
  search.steps_left -= steps;
}

size_t Pattern::match_set(Search& search, const Node& node, size_t at) const {
  const unicode::CharSet& set = sets_[node.set];
  const std::string_view text = search.text;
  const bool lazy = node.mode == Mode::lazy;
  uint32_t count = 0;
  size_t least_end = at;  // behind the last character that is needed
  const auto take = [&] {
    if (at == text.size()) return false;
    const unicode::Character c = unicode::character_at(text, at);
    if (!set.contains(c.point)) return false;
    at += c.bytes;
    if (++count <= node.least) least_end = at;
    return true;
  };
  const size_t begin = at;
  while (count < (lazy ? node.least : node.most) && take()) {
  }
  spend(search, at - begin, begin);
  if (count < node.least) return kNone;
  if (node.next == 0 && !lazy) return at;
  if (node.mode == Mode::possessive) return match(search, node.next, at);
  for (;;) {
    const size_t end = match(search, node.next, at);
    if (end != kNone) return end;
    if (lazy) {
      if (count == node.most || !take()) return kNone;
    } else {
      if (at == least_end) return kNone;
      at = unicode::previous(text, at);
    }
  }
}

size_t Pattern::match(Search& search, uint32_t number, size_t at) const {
  if (++search.depth > kMostDepth) {
    fail<DataError>("tokenizer", where_, ": a search by this pattern nests too deep at byte ", at,
                    " of a text; simplify the pattern");
  }
  spend(search, 1, at);
  const std::string_view text = search.text;
  size_t end = kNone;
  for (bool on = true; on;) {
    const Node& node = nodes_[number];
    on = false;
    switch (node.kind) {
      case Kind::accept: end = at; break;
      case Kind::set: end = match_set(search, node, at); break;
      case Kind::branch:
        for (size_t i = 0; i + 1 < node.ways.size() && end == kNone; ++i)
          end = match(search, node.ways[i], at);
        if (end == kNone) {
          number = node.ways.back();
          on = true;
        }
        break;
      case Kind::atomic:
      case Kind::ahead:
      case Kind::not_ahead: {
        size_t inner = kNone;
        for (size_t i = 0; i < node.ways.size() && inner == kNone; ++i)
          inner = match(search, node.ways[i], at);
        if ((inner == kNone) == (node.kind == Kind::not_ahead)) {
          if (node.kind == Kind::atomic) at = inner;
          number = node.next;
          on = true;
        }
        break;
      }
      case Kind::line_begin:
        on = at == 0 || text[at - 1] == '\n';
        number = node.next;
        break;
      case Kind::line_end:
        on = at == text.size() || text[at] == '\n';
        number = node.next;
        break;
    }
  }
  --search.depth;
  return end;
}

void Pattern::analyse(std::vector<uint32_t> ways) {
  if (ways.size() > 32)
    ways = {[&] {
      nodes_.push_back({.kind = Kind::branch, .ways = ways});
      return static_cast<uint32_t>(nodes_.size() - 1);
    }()};
  ways_ = std::move(ways);
  for (size_t i = 0; i < ways_.size(); ++i) {
    Bytes bytes{};
    std::vector<char> seen(nodes_.size());
    (void)first_bytes(ways_[i], bytes, seen);
    for (size_t b = 0; b < 256; ++b) {
      if (bytes[b]) ways_of_byte_[b] |= uint32_t{1} << i;
    }
  }
  std::vector<char> looked(nodes_.size());
  for (const Node& node : nodes_) {
    if (node.kind != Kind::ahead && node.kind != Kind::not_ahead) continue;
    std::vector<uint32_t> open = node.ways;
    while (!open.empty()) {
      const uint32_t at = open.back();
      open.pop_back();
      if (looked[at]) continue;
      looked[at] = 1;
      open.push_back(nodes_[at].next);
      open.insert(open.end(), nodes_[at].ways.begin(), nodes_[at].ways.end());
    }
  }
  allows_cuts_ = true;
  for (size_t i = 1; i < nodes_.size(); ++i)
    allows_cuts_ = allows_cuts_ && cut_is_safe(nodes_[i], looked[i] != 0);
  takes_space_ = std::ranges::any_of(ways_, [&](uint32_t way) { return takes_space_alone(way); });
}

// Adds the bytes that a match from `node` may begin with; whether it may be empty.
bool Pattern::first_bytes(uint32_t number, Bytes& bytes, std::vector<char>& seen) const {
  if (number == 0) return true;
  if (seen[number]) return false;
  seen[number] = 1;
  const Node& node = nodes_[number];
  bool empty = false;
  switch (node.kind) {
    case Kind::accept: return true;
    case Kind::set:
      for (uint32_t b = 0; b < 256; ++b)
        bytes[b] = bytes[b] || b >= 128 || sets_[node.set].contains(b);
      return node.least == 0 && first_bytes(node.next, bytes, seen);
    case Kind::branch:
      for (const uint32_t way : node.ways) empty = first_bytes(way, bytes, seen) || empty;
      return empty;
    case Kind::atomic:
      for (const uint32_t way : node.ways) empty = first_bytes(way, bytes, seen) || empty;
      return empty && first_bytes(node.next, bytes, seen);
    case Kind::ahead:
    case Kind::not_ahead:
    case Kind::line_begin:
    case Kind::line_end: return first_bytes(node.next, bytes, seen);
  }
  return true;
}

// No text may match a letter and then a space, and nothing may look at what follows a letter.
bool Pattern::cut_is_safe(const Node& node, bool in_look) const {
  if (node.kind == Kind::atomic) return false;  // the end of its inside is not followed further
  if (node.kind != Kind::set) return true;
  const unicode::CharSet& set = sets_[node.set];
  bool letters = false;
  for (uint32_t c = 'a'; c <= 'z'; ++c)
    letters = letters || set.contains(c) || set.contains(c - 32);
  if (!letters) return true;
  if (in_look) return node.most == 1 && node.next == 0;
  if (node.most > 1 && set.contains(' ')) return false;
  std::vector<char> seen(nodes_.size());
  return !space_may_follow(node.next, seen);
}

bool Pattern::space_may_follow(uint32_t number, std::vector<char>& seen) const {
  if (number == 0 || seen[number]) return false;
  seen[number] = 1;
  const Node& node = nodes_[number];
  switch (node.kind) {
    case Kind::accept: return false;
    case Kind::set:
      if (sets_[node.set].contains(' ')) return true;
      return node.least == 0 && space_may_follow(node.next, seen);
    case Kind::branch:
      return std::ranges::any_of(node.ways, [&](uint32_t w) { return space_may_follow(w, seen); });
    default: return true;  // looks at it
  }
}

bool Pattern::takes_space_alone(uint32_t way) const {
  for (bool taken = false;; way = nodes_[way].next) {
    const Node& node = nodes_[way];
    if (node.kind == Kind::accept) return taken;
    if (node.kind != Kind::set || node.mode == Mode::lazy) return false;
    if (!taken && node.least <= 1 && sets_[node.set].contains(' ')) taken = true;
    else if (node.least > 0) return false;
  }
}

}  // namespace tessera::train

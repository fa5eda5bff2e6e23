// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/error.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/tokenizer/pattern_parser_impl.h"

#include <algorithm>
#include <limits>

namespace tessera::train {
namespace {

constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();
constexpr int kMostDepth = 32;
constexpr uint32_t kMostRepeats = 1000;
constexpr size_t kMostNodes = 10'000;

bool is_ascii_letter(uint32_t c) { return (c | 32) - 'a' < 26; }

}  // namespace

template <class... Parts> void PatternParser::stop(const Parts&... parts) const {
  fail<DataError>("tokenizer", pattern_.where_, ": ", parts..., ", at byte ", at_,
                  " of the pattern '", io::excerpt(text_, 400), "'");
}

bool PatternParser::take(std::string_view expected) {
  if (!text_.substr(at_).starts_with(expected)) return false;
  at_ += expected.size();
  return true;
}

uint32_t PatternParser::character() {
  if (at_end()) stop("ends too early");
  const unicode::Character c = unicode::character_at(text_, at_);
  at_ += c.bytes;
  return c.point;
}

std::vector<uint32_t> PatternParser::run() {
  std::vector<Items> whole = alternatives(0, false);
  if (!at_end()) stop("a ')' without its '('");
  if (nullable(whole)) stop("it matches the empty text");
  return build(whole, 0);
}

std::vector<PatternParser::Items> PatternParser::alternatives(int depth, bool fold) {
  if (depth > kMostDepth) stop("nested deeper than ", kMostDepth, " levels");
  std::vector<Items> all;
  do all.push_back(sequence(depth, fold));
  while (take("|"));
  return all;
}

PatternParser::Items PatternParser::sequence(int depth, bool fold) {
  Items items;
  while (!at_end() && peek() != '|' && peek() != ')') {
    items.push_back(atom(depth, fold));
    quantifiers(items.back());
  }
  return items;
}

PatternParser::Item PatternParser::atom(int depth, bool fold) {
  using Kind = Item::Kind;
  switch (peek()) {
    case '(': return group(depth, fold);
    case '[': return {Kind::set, char_class(depth, fold)};
    case '\\': return {Kind::set, escape(fold)};
    case '^': ++at_; return {Kind::line_begin};
    case '$': ++at_; return {Kind::line_end};
    case '.': ++at_; return {Kind::set, unicode::complement({{'\n', '\n' + 1}})};
    case '?':
    case '*':
    case '+': stop("nothing to repeat");
    default: return {Kind::set, one(character(), fold)};
  }
}

PatternParser::Item PatternParser::group(int depth, bool fold) {
  Item item{Item::Kind::group};
  ++at_;
  if (take("?:")) {
  } else if (take("?i:")) {
    fold = true;
  } else if (take("?-i:")) {
    fold = false;
  } else if (take("?=")) {
    item.kind = Item::Kind::ahead;
  } else if (take("?!")) {
    item.kind = Item::Kind::not_ahead;
  } else if (take("?>")) {
    item.repeats.push_back({1, 1, Mode::possessive});
  } else if (peek() == '?') {
    stop("this kind of group is not understood");
  }
  item.alternatives = alternatives(depth + 1, fold);
  if (!take(")")) stop("a '(' without its ')'");
  return item;
}

uint32_t PatternParser::number() {
  uint32_t n = 0;
  const size_t begin = at_;
  for (; peek() >= '0' && peek() <= '9'; ++at_)
    n = std::min(n * 10 + static_cast<uint32_t>(peek() - '0'), kMostRepeats + 1);
  if (at_ == begin) return 0;
  if (n > kMostRepeats) stop("more than ", kMostRepeats, " repetitions");
  return n;
}

std::optional<PatternParser::Repeat> PatternParser::quantifier() {
  Repeat r;
  if (take("?")) r = {0, 1};
  else if (take("*")) r = {0, kUnbounded};
  else if (take("+")) r = {1, kUnbounded};
  else if (take("{")) {
    if ((peek() < '0' || peek() > '9') && peek() != ',') stop("'{' without a number");
    r.least = number();
    if (!take(",")) r.most = r.least;
    else r.most = peek() == '}' ? kUnbounded : number();
    if (!take("}")) stop("a '{' without its '}'");
    if (r.most < r.least || r.most == 0) stop("repetitions out of order");
    if (take("?")) r.mode = Mode::lazy;
    return r;  // a '+' behind braces repeats, as in Ruby
  } else return std::nullopt;
  if (take("?")) r.mode = Mode::lazy;
  else if (take("+")) r.mode = Mode::possessive;
  return r;
}

void PatternParser::quantifiers(Item& item) {
  const bool repeats = item.kind == Item::Kind::set || item.kind == Item::Kind::group;
  while (const auto r = quantifier()) {
    if (!repeats) stop("an assertion is repeated");
    if (r->most == kUnbounded && nullable(item)) stop("what is repeated matches the empty text");
    item.repeats.push_back(*r);
    if (item.repeats.size() > 4) stop("more than 4 repetitions of repetitions");
  }
}

PatternParser::Ranges PatternParser::one(uint32_t point, bool fold) const {
  Ranges out{{point, point + 1}};
  if (!fold) return out;
  if (point >= 128) stop("(?i:...) of other than ASCII letters is not understood");
  if (!is_ascii_letter(point)) return out;
  out.emplace_back(point ^ 32, (point ^ 32) + 1);
  if ((point | 32) == 's') out.emplace_back(0x17F, 0x180);    // LATIN SMALL LETTER LONG S
  if ((point | 32) == 'k') out.emplace_back(0x212A, 0x212B);  // KELVIN SIGN
  return unicode::normalised(std::move(out));
}

uint32_t PatternParser::hex(size_t least, size_t most) {
  uint32_t value = 0;
  size_t digits = 0;
  for (; digits < most && !at_end(); ++digits, ++at_) {
    const char c = peek();
    if (c >= '0' && c <= '9') value = value * 16 + static_cast<uint32_t>(c - '0');
    else if ((c | 32) >= 'a' && (c | 32) <= 'f')
      value = value * 16 + static_cast<uint32_t>((c | 32) - 'a' + 10);
    else break;
  }
  if (digits < least || value >= unicode::kEnd) stop("not a code point in hexadecimal digits");
  return value;
}

PatternParser::Ranges PatternParser::property(bool negated) {
  if (!take("{")) stop("\\p without '{'");
  if (take("^")) negated = !negated;
  const size_t end = text_.find('}', at_);
  if (end == text_.npos) stop("a '{' without its '}'");
  const std::string_view name = text_.substr(at_, end - at_);
  Ranges out = unicode::category(name);
  if (out.empty())
    stop("\\p{", io::excerpt(name, 40), "} is not understood; general categories are");
  at_ = end + 1;
  return negated ? unicode::complement(out) : out;
}

PatternParser::Ranges PatternParser::escape(bool fold) {
  ++at_;
  const uint32_t c = character();
  const auto unless = [&](bool negated, Ranges ranges) {
    return negated ? unicode::complement(ranges) : ranges;
  };
  switch (c) {
    case 'n': return one('\n', false);
    case 'r': return one('\r', false);
    case 't': return one('\t', false);
    case 'f': return one('\f', false);
    case 'v': return one('\v', false);
    case 's':
    case 'S': return unless(c == 'S', unicode::white_space());
    case 'd':
    case 'D': return unless(c == 'D', unicode::category("Nd"));
    case 'p':
    case 'P': return property(c == 'P');
    case 'x':
      if (take("{")) {
        const uint32_t point = hex(1, 6);
        if (!take("}")) stop("a '{' without its '}'");
        return one(point, fold);
      }
      return one(hex(1, 2), fold);
    case 'u': return one(hex(4, 4), fold);
    default:
      if (is_ascii_letter(c) || (c >= '0' && c <= '9'))
        stop("'\\", static_cast<char>(c), "' is not understood");
      return one(c, fold);
  }
}

PatternParser::Ranges PatternParser::char_class(int depth, bool fold) {
  if (depth > kMostDepth) stop("nested deeper than ", kMostDepth, " levels");
  ++at_;
  const bool negated = take("^");
  std::optional<Ranges> both;  // of what stands before the last &&
  Ranges all;
  const auto join = [&] {
    all = unicode::normalised(std::move(all));
    if (both) all = unicode::intersection(*both, all);
  };
  for (bool first = true;; first = false) {
    if (at_end()) stop("a '[' without its ']'");
    if (peek() == ']' && !first) break;
    if (take("&&")) {
      join();
      both = std::move(all);
      all.clear();
      continue;
    }
    if (text_.substr(at_).starts_with("[:")) stop("'[:' is not understood");
    Ranges part = peek() == '['    ? char_class(depth + 1, fold)
                  : peek() == '\\' ? escape(false)
                                   : one(character(), false);
    const auto single = [](const Ranges& r) {
      return r.size() == 1 && r[0].second == r[0].first + 1;
    };
    if (single(part) && peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
      ++at_;
      const Ranges last = peek() == '\\' ? escape(false) : one(character(), false);
      if (!single(last) || last[0].first < part[0].first) stop("a range out of order");
      part[0].second = last[0].second;
    }
    if (fold) {
      for (const auto& [begin, end] : Ranges(part)) {
        if (end - begin > 128) continue;  // a category holds both cases or means one
        for (uint32_t c = begin; c < end; ++c) {
          const Ranges cases = one(c, true);
          part.insert(part.end(), cases.begin(), cases.end());
        }
      }
    }
    all.insert(all.end(), part.begin(), part.end());
  }
  ++at_;
  join();
  return negated ? unicode::complement(all) : all;
}

bool PatternParser::nullable(const std::vector<Items>& alternatives) const {
  return std::ranges::any_of(alternatives, [&](const Items& items) {
    return std::ranges::all_of(items, [&](const Item& item) { return nullable(item); });
  });
}

bool PatternParser::nullable(const Item& item) const {
  if (item.kind != Item::Kind::set && item.kind != Item::Kind::group) return true;
  if (std::ranges::any_of(item.repeats, [](const Repeat& r) { return r.least == 0; })) return true;
  return item.kind == Item::Kind::group && nullable(item.alternatives);
}

uint32_t PatternParser::add(Pattern::Node node) {
  if (pattern_.nodes_.size() == kMostNodes) stop("it is too large when written out");
  pattern_.nodes_.push_back(std::move(node));
  return static_cast<uint32_t>(pattern_.nodes_.size() - 1);
}

uint32_t PatternParser::set_of(const Ranges& ranges) {
  const auto [at, added] = sets_.emplace(ranges, static_cast<uint32_t>(pattern_.sets_.size()));
  if (added) pattern_.sets_.emplace_back(ranges);
  return at->second;
}

std::vector<uint32_t> PatternParser::build(const std::vector<Items>& alternatives, uint32_t next) {
  std::vector<uint32_t> ways;
  for (const Items& items : alternatives) {
    uint32_t at = next;
    for (auto item = items.rbegin(); item != items.rend(); ++item) at = build(*item, at);
    ways.push_back(at);
  }
  return ways;
}

uint32_t PatternParser::build(const Item& item, uint32_t next) {
  using Kind = Pattern::Kind;
  switch (item.kind) {
    case Item::Kind::line_begin: return add({.kind = Kind::line_begin, .next = next});
    case Item::Kind::line_end: return add({.kind = Kind::line_end, .next = next});
    case Item::Kind::ahead:
      return add({.kind = Kind::ahead, .ways = build(item.alternatives, 0), .next = next});
    case Item::Kind::not_ahead:
      return add({.kind = Kind::not_ahead, .ways = build(item.alternatives, 0), .next = next});
    case Item::Kind::set:
    case Item::Kind::group: break;
  }
  return build_group(item, item.repeats.size(), next);
}

// The first `repeats` repetitions of an item. Copies are written out; only what repeats without a
// bound is a circle of nodes.
uint32_t PatternParser::build_group(const Item& item, size_t repeats, uint32_t next) {
  using Kind = Pattern::Kind;
  const bool set = item.kind == Item::Kind::set;
  if (set && repeats <= 1) {
    const Repeat r = repeats == 1 ? item.repeats[0] : Repeat();
    return add({.kind = Kind::set,
                .mode = r.mode,
                .set = set_of(item.ranges),
                .least = r.least,
                .most = r.most,
                .next = next});
  }
  if (repeats == 0) {
    std::vector<uint32_t> ways = build(item.alternatives, next);
    if (ways.size() == 1) return ways[0];
    return add({.kind = Kind::branch, .ways = std::move(ways)});
  }
  const Repeat r = item.repeats[repeats - 1];
  if (r.mode == Mode::possessive) {
    Item greedy = item;
    greedy.repeats[repeats - 1].mode = Mode::greedy;
    return add({.kind = Kind::atomic, .ways = {build_group(greedy, repeats, 0)}, .next = next});
  }
  const auto branch = [&](uint32_t more, uint32_t leave) {
    std::vector<uint32_t> ways{more, leave};
    if (r.mode == Mode::lazy) std::swap(ways[0], ways[1]);
    return ways;
  };
  uint32_t at = next;
  if (r.most == kUnbounded) {
    const uint32_t loop = add({.kind = Kind::branch});
    const uint32_t body = build_group(item, repeats - 1, loop);
    pattern_.nodes_[loop].ways = branch(body, next);
    at = loop;
  } else {
    for (uint32_t i = r.least; i < r.most; ++i)
      at = add({.kind = Kind::branch, .ways = branch(build_group(item, repeats - 1, at), next)});
  }
  for (uint32_t i = 0; i < r.least; ++i) at = build_group(item, repeats - 1, at);
  return at;
}

}  // namespace tessera::train

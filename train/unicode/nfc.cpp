// SPDX-License-Identifier: Apache-2.0
// Most text is canonical already, so only the parts around characters that may change are taken
// apart and composed again. A part begins at a character before which nothing combines.
#include "tessera/train/unicode/unicode.h"
#include "tessera/train/unicode/unicode_tables_impl.h"

#include <algorithm>
#include <span>

namespace tessera::train::unicode {
namespace {

// Hangul syllables are composed by arithmetic (section 3.12 of the standard).
constexpr uint32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7;
constexpr uint32_t kVowels = 21, kTrails = 28, kSyllables = 19 * kVowels * kTrails;

const Decomposition* find(std::span<const Decomposition> table, uint32_t whole) {
  const auto at = std::ranges::lower_bound(table, whole, {}, &Decomposition::whole);
  return at != table.end() && at->whole == whole ? &*at : nullptr;
}

}  // namespace

Composer::Composer() {
  Ranges ranges{{kVowel, kVowel + kVowels}, {kTrail + 1, kTrail + kTrails}};
  const auto runs = class_runs();
  for (size_t i = 0; i < runs.size(); ++i) {
    const uint32_t end = i + 1 < runs.size() ? runs[i + 1] >> 8 : kEnd;
    if ((runs[i] & 0xFF) != 0) ranges.emplace_back(runs[i] >> 8, end);
  }
  for (const Decomposition& d : never_composed()) ranges.emplace_back(d.whole, d.whole + 1);
  for (const Decomposition& d : composed()) {
    ranges.emplace_back(d.second, d.second + 1);
    pairs_[uint64_t{d.first} << 32 | d.second] = d.whole;
  }
  unstable_ = CharSet(normalised(std::move(ranges)));
}

uint32_t Composer::combining_class(uint32_t point) const {
  const auto runs = class_runs();
  const auto after =
      std::ranges::upper_bound(runs, point, {}, [](uint32_t run) { return run >> 8; });
  return *(after - 1) & 0xFF;
}

void Composer::decompose(uint32_t point, std::vector<uint32_t>& out) const {
  if (point - kSyllable < kSyllables) {
    const uint32_t number = point - kSyllable;
    out.push_back(kLead + number / (kVowels * kTrails));
    out.push_back(kVowel + number / kTrails % kVowels);
    if (number % kTrails != 0) out.push_back(kTrail + number % kTrails);
    return;
  }
  const Decomposition* parts = find(composed(), point);
  if (!parts) parts = find(never_composed(), point);
  if (!parts) return out.push_back(point);
  decompose(parts->first, out);
  if (parts->second != 0) decompose(parts->second, out);
}

uint32_t Composer::compose(uint32_t first, uint32_t second) const {
  if (first - kLead < 19 && second - kVowel < kVowels)
    return kSyllable + ((first - kLead) * kVowels + second - kVowel) * kTrails;
  if (first - kSyllable < kSyllables && (first - kSyllable) % kTrails == 0 &&
      second - kTrail - 1 < kTrails - 1)
    return first + second - kTrail;
  const auto at = pairs_.find(uint64_t{first} << 32 | second);
  return at == pairs_.end() ? 0 : at->second;
}

void Composer::compose_part(std::string_view part, std::string& out) const {
  std::vector<uint32_t> points;
  for (size_t at = 0; at < part.size();) {
    const Character c = character_at(part, at);
    decompose(c.point, points);
    at += c.bytes;
  }
  for (size_t i = 0; i < points.size();) {  // marks in the order of their classes
    size_t end = i;
    while (end < points.size() && combining_class(points[end]) != 0) ++end;
    std::stable_sort(
        points.begin() + static_cast<std::ptrdiff_t>(i),
        points.begin() + static_cast<std::ptrdiff_t>(end),
        [&](uint32_t a, uint32_t b) { return combining_class(a) < combining_class(b); });
    i = end + 1;
  }
  std::vector<uint32_t> made;
  size_t starter = points.size();  // of `made`; none yet
  uint32_t last_class = 0;
  for (const uint32_t point : points) {
    const uint32_t of = combining_class(point);
    if (starter < made.size() && (starter + 1 == made.size() || last_class < of)) {
      if (const uint32_t whole = compose(made[starter], point)) {
        made[starter] = whole;
        continue;
      }
    }
    if (of == 0) starter = made.size();
    last_class = of;
    made.push_back(point);
  }
  for (const uint32_t point : made) append(out, point);
}

std::string Composer::nfc(std::string_view text) const {
  std::string out;
  size_t done = 0, stable = 0;  // copied, and the last character before which nothing combines
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const bool invalid = c.bytes == 1 && c.point >= 0x80;
    if (invalid || !unstable_.contains(c.point)) {
      // An invalid byte must not become the replacement character.
      stable = invalid ? at + 1 : at;
      at += c.bytes;
      continue;
    }
    size_t end = at;
    while (end < text.size()) {
      const Character next = character_at(text, end);
      if (!unstable_.contains(next.point)) break;
      end += next.bytes;
    }
    out += text.substr(done, stable - done);
    compose_part(text.substr(stable, end - stable), out);
    done = stable = at = end;
  }
  if (done == 0) return std::string(text);
  return out.append(text.substr(done));
}

}  // namespace tessera::train::unicode

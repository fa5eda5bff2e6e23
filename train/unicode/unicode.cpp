// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/unicode/unicode.h"

#include "tessera/nn/io/utf8.h"
#include "tessera/train/unicode/unicode_tables_impl.h"

#include <algorithm>

namespace tessera::train::unicode {

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  if (byte(0) < 0x80) return {byte(0), 1};
  switch (io::utf8_length(text.substr(at))) {
    case 2: return {(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F), 2};
    case 3: return {(byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
    case 4:
      return {(byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                  (byte(3) & 0x3F),
              4};
    default: return {kReplacement, 1};
  }
}

size_t previous(std::string_view text, size_t end) {
  for (size_t bytes = 2; bytes <= std::min<size_t>(4, end); ++bytes) {
    if (io::utf8_length(text.substr(end - bytes, bytes)) == bytes) return end - bytes;
  }
  return end - 1;
}

void append(std::string& text, uint32_t point) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  const auto tail = [&](uint32_t shift) { put(0x80 | (point >> shift & 0x3F)); };
  if (point < 0x80) return put(point);
  if (point < 0x800) {
    put(0xC0 | point >> 6);
  } else {
    if (point < 0x10000) {
      put(0xE0 | point >> 12);
    } else {
      put(0xF0 | point >> 18);
      tail(12);
    }
    tail(6);
  }
  tail(0);
}

Ranges normalised(Ranges ranges) {
  std::ranges::sort(ranges);
  Ranges out;
  for (const auto& [begin, end] : ranges) {
    if (begin >= end) continue;
    if (!out.empty() && begin <= out.back().second)
      out.back().second = std::max(out.back().second, end);
    else out.emplace_back(begin, end);
  }
  return out;
}

Ranges complement(const Ranges& ranges) {
  Ranges out;
  uint32_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (at < begin) out.emplace_back(at, begin);
    at = end;
  }
  if (at < kEnd) out.emplace_back(at, kEnd);
  return out;
}

Ranges intersection(const Ranges& a, const Ranges& b) {
  Ranges out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint32_t begin = std::max(a[i].first, b[j].first);
    const uint32_t end = std::min(a[i].second, b[j].second);
    if (begin < end) out.emplace_back(begin, end);
    if (a[i].second < b[j].second) ++i;
    else ++j;
  }
  return out;
}

Ranges category(std::string_view name) {
  const auto wanted = [&](uint32_t number) {
    const std::string_view full = kCategoryNames[number];
    return name.size() == 1 ? full[0] == name[0] : full == name;
  };
  const auto runs = category_runs();
  Ranges out;
  for (size_t i = 0; i < runs.size(); ++i) {
    const uint32_t end = i + 1 < runs.size() ? runs[i + 1] >> 5 : kEnd;
    if (wanted(runs[i] & 31)) out.emplace_back(runs[i] >> 5, end);
  }
  return normalised(std::move(out));
}

Ranges white_space() {
  Ranges out = category("Z");
  out.insert(out.end(), {{0x09, 0x0E}, {0x85, 0x86}});
  return normalised(std::move(out));
}

CharSet::CharSet(const Ranges& ranges) : pages_(kEnd >> 8), blocks_(2) {
  blocks_[1].fill(~uint64_t{0});  // 0 and 1: none and all of a page
  for (const auto& [begin, end] : ranges) {
    for (uint32_t point = begin; point < std::min<uint32_t>(end, 128); ++point)
      ascii_[point] = true;
  }
  auto range = ranges.begin();
  for (uint32_t page = 0; page < pages_.size(); ++page) {
    const uint32_t first = page << 8, beyond = first + 256;
    while (range != ranges.end() && range->second <= first) ++range;
    if (range == ranges.end()) break;
    if (range->first >= beyond) continue;
    if (range->first <= first && range->second >= beyond) {
      pages_[page] = 1;
      continue;
    }
    pages_[page] = static_cast<uint16_t>(blocks_.size());
    auto& block = blocks_.emplace_back();
    for (auto r = range; r != ranges.end() && r->first < beyond; ++r) {
      for (uint32_t p = std::max(r->first, first); p < std::min(r->second, beyond); ++p)
        block[(p >> 6) & 3] |= uint64_t{1} << (p & 63);
    }
  }
}

}  // namespace tessera::train::unicode

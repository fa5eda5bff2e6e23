// SPDX-License-Identifier: Apache-2.0
// Text repeats its words, so most time goes into finding a word in the cache; what is not there is
// merged through a queue of pairs, in n log n steps for n characters, however long the word is.
#include "tessera/train/tokenizer/bpe.h"

#include "tessera/train/unicode/unicode.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace tessera::train {
namespace {

constexpr uint64_t kFree = ~uint64_t{0};
constexpr size_t kMostEntries = size_t{1} << 17, kMostCacheBytes = size_t{4} << 20;
constexpr size_t kLongestCached = 256;

uint64_t mixed(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 32;
}

uint64_t hash_of(std::string_view word) {
  uint64_t hash = word.size();
  size_t at = 0;
  for (; at + 8 <= word.size(); at += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, word.data() + at, 8);
    hash = mixed(hash ^ eight);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, word.data() + at, word.size() - at);
  return mixed(hash ^ rest);
}

}  // namespace

Bpe::Bpe(BpeModel model) : model_(std::move(model)) {
  bytes_.fill(-1);
  for (uint32_t id = 0; id < model_.tokens.size(); ++id) {
    const std::string& token = model_.tokens[id];
    if (token.empty()) continue;
    words_.emplace(token, id);
    if (model_.of_bytes) {
      if (token.size() == 1)
        bytes_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
    } else if (const unicode::Character c = unicode::character_at(token, 0);
               c.bytes == token.size()) {
      characters_.emplace(c.point, id);
    }
  }
  merges_.assign(std::bit_ceil(2 * model_.merges.size() + 2), {kFree, 0, 0});
  mask_ = merges_.size() - 1;
  constexpr std::string_view kMark = "\xE2\x96\x81";
  for (uint32_t rank = 0; rank < model_.merges.size(); ++rank) {
    const auto& [left, right, whole] = model_.merges[rank];
    const uint64_t pair = uint64_t{left} << 32 | right;
    size_t at = mixed(pair) & mask_;
    while (merges_[at].pair != kFree && merges_[at].pair != pair) at = (at + 1) & mask_;
    merges_[at] = {pair, rank, whole};
    if (model_.tokens[right].starts_with(kMark) && !model_.tokens[left].empty())
      before_mark_[static_cast<unsigned char>(model_.tokens[left].back())] = true;
  }
}

const Bpe::Merged* Bpe::find(uint32_t left, uint32_t right) const {
  const uint64_t pair = uint64_t{left} << 32 | right;
  for (size_t at = mixed(pair) & mask_; merges_[at].pair != kFree; at = (at + 1) & mask_) {
    if (merges_[at].pair == pair) return &merges_[at];
  }
  return nullptr;
}

void Bpe::split(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  const auto add = [&](int32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(id), at - 1, at + 1});
  };
  bool unknown = false;  // one waits to be added
  const auto add_unknown = [&] {
    if (model_.unknown < 0) return;
    if (unknown && !model_.fuse_unknown) add(model_.unknown);
    unknown = true;
  };
  const auto add_known = [&](int32_t id) {
    if (unknown) add(model_.unknown);
    unknown = false;
    add(id);
  };
  if (model_.of_bytes) {
    for (const char c : word) {
      const int32_t id = bytes_[static_cast<unsigned char>(c)];
      if (id >= 0) add_known(id);
      else add_unknown();
    }
  } else {
    for (size_t at = 0; at < word.size();) {
      const unicode::Character c = unicode::character_at(word, at);
      const std::string_view bytes = word.substr(at, c.bytes);
      at += c.bytes;
      const bool invalid = c.bytes == 1 && c.point >= 0x80;
      const auto known = characters_.find(c.point);
      const auto token_of = [&](char b) {
        return model_.byte_tokens[static_cast<unsigned char>(b)];
      };
      if (known != characters_.end() && !invalid) {
        add_known(static_cast<int32_t>(known->second));
      } else if (model_.byte_fallback &&
                 std::ranges::all_of(bytes, [&](char b) { return token_of(b) >= 0; })) {
        // An unknown token that waits comes after these: the package `tokenizers` does so too.
        for (const char b : bytes) add(token_of(b));
      } else {
        add_unknown();
      }
    }
  }
  if (unknown) add(model_.unknown);
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::merge(std::vector<Symbol>& symbols, std::vector<uint64_t>& queue) const {
  constexpr uint32_t kGone = ~uint32_t{0};
  queue.clear();
  // The lowest rank comes first, of equal ones the leftmost: rank << 32 | index of the left symbol.
  const auto offer = [&](int32_t left) {
    const Symbol& symbol = symbols[static_cast<size_t>(left)];
    if (symbol.next < 0) return;
    if (const Merged* m = find(symbol.id, symbols[static_cast<size_t>(symbol.next)].id)) {
      queue.push_back(uint64_t{m->rank} << 32 | static_cast<uint32_t>(left));
      std::ranges::push_heap(queue, std::greater());
    }
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) offer(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const auto rank = static_cast<uint32_t>(queue[0] >> 32);
    const auto at = static_cast<int32_t>(queue[0] & ~uint32_t{0});
    std::ranges::pop_heap(queue, std::greater());
    queue.pop_back();
    Symbol& left = symbols[static_cast<size_t>(at)];
    if (left.id == kGone || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const BpeModel::Merge& wanted = model_.merges[rank];
    if (left.id != wanted.left || right.id != wanted.right) continue;  // merged otherwise since
    left.id = wanted.whole;
    right.id = kGone;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = at;
    if (left.previous >= 0) offer(left.previous);
    offer(at);
  }
  std::erase_if(symbols, [](const Symbol& s) { return s.id == kGone; });
}

void Bpe::encode(std::string_view word, Cache& cache, std::vector<int32_t>& ids) const {
  const bool cached = word.size() <= kLongestCached;
  const uint64_t hash = cached ? hash_of(word) : 0;
  Cache::Entry* entry = cached ? &cache.find(word, hash) : nullptr;
  if (entry && entry->word_bytes > 0) {
    const auto first = cache.ids_.begin() + entry->ids;
    ids.insert(ids.end(), first, first + entry->count);
    return;
  }
  const size_t before = ids.size();
  const auto whole = model_.whole_words ? words_.find(word) : words_.end();
  if (whole != words_.end()) {
    ids.push_back(static_cast<int32_t>(whole->second));
  } else {
    split(word, cache.symbols_);
    merge(cache.symbols_, cache.queue_);
    for (const Symbol& s : cache.symbols_) ids.push_back(static_cast<int32_t>(s.id));
  }
  if (entry) cache.store(*entry, word, hash, ids.data() + before, ids.size() - before);
}

Bpe::Cache::Cache() : entries_(1 << 8) {}

Bpe::Cache::Entry& Bpe::Cache::find(std::string_view word, uint64_t hash) {
  const size_t mask = entries_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    Entry& e = entries_[at];
    if (e.word_bytes == 0) return e;
    if (e.hash == hash && e.word_bytes == word.size() &&
        std::memcmp(words_.data() + e.word, word.data(), word.size()) == 0)
      return e;
  }
}

void Bpe::Cache::store(Entry& entry, std::string_view word, uint64_t hash, const int32_t* ids,
                       size_t count) {
  entry = {hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(word.size()),
           static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(count)};
  words_ += word;
  ids_.insert(ids_.end(), ids, ids + count);
  if (++used_ * 2 >= entries_.size()) make_room();
}

// Forgets everything at the bound: what text repeats is soon known again.
void Bpe::Cache::make_room() {
  if (entries_.size() >= kMostEntries || words_.size() > kMostCacheBytes) {
    std::ranges::fill(entries_, Entry());
    used_ = 0;
    words_.clear();
    ids_.clear();
    return;
  }
  std::vector<Entry> old(2 * entries_.size());
  old.swap(entries_);
  const size_t mask = entries_.size() - 1;
  for (const Entry& e : old) {
    if (e.word_bytes == 0) continue;
    size_t at = e.hash & mask;
    while (entries_[at].word_bytes > 0) at = (at + 1) & mask;
    entries_[at] = e;
  }
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of words: starting from single bytes or characters, the pair of neighbours
// with the lowest rank is merged until none is left.
#pragma once

#include "tessera/core/api.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::train {

/// What a BPE model is made of. Ids are indices into `tokens`; tokens are the bytes that they stand
/// for in a word, and empty for ids that no word yields.
struct BpeModel {
  struct Merge {
    uint32_t left, right, whole;
  };
  std::vector<std::string> tokens;
  std::vector<Merge> merges;  ///< lowest rank first; the last one of two equal pairs counts
  bool of_bytes = true;       ///< words begin as single bytes; false: as characters
  bool whole_words = false;   ///< a word that is a token is not split (`ignore_merges`)
  /// Of characters without a token: tokens of their bytes, -1 for none, or else the unknown token.
  bool byte_fallback = false;
  std::array<int32_t, 256> byte_tokens{};
  int32_t unknown = -1;  ///< -1: such characters are dropped
  bool fuse_unknown = false;
};

/// Immutable once made; each thread brings a Cache of its own.
class TESSERA_API Bpe {
 public:
  explicit Bpe(BpeModel model);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  /// Remembers the ids of words, in a bounded space.
  class Cache;
  /// Appends the ids of a word, which is not empty.
  void encode(std::string_view word, Cache& cache, std::vector<int32_t>& ids) const;

  [[nodiscard]] const BpeModel& model() const { return model_; }
  /// Whether a merge may join a character whose last byte is `before` to a following U+2581.
  [[nodiscard]] bool joins_space_mark(unsigned char before) const { return before_mark_[before]; }

 private:
  struct Symbol {
    uint32_t id;
    int32_t previous, next;  // -1: none
  };
  struct Merged {
    uint64_t pair;  // left << 32 | right; kFree: no entry
    uint32_t rank, whole;
  };
  [[nodiscard]] const Merged* find(uint32_t left, uint32_t right) const;
  void split(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge(std::vector<Symbol>& symbols, std::vector<uint64_t>& queue) const;

  BpeModel model_;
  std::vector<Merged> merges_;  // open addressing
  size_t mask_ = 0;
  std::array<int32_t, 256> bytes_{};                   // token of each single byte, -1: none
  std::unordered_map<uint32_t, uint32_t> characters_;  // token of each single character
  std::unordered_map<std::string_view, uint32_t> words_;
  std::array<bool, 256> before_mark_{};
};

class TESSERA_API Bpe::Cache {
 public:
  Cache();

 private:
  friend class Bpe;
  struct Entry {
    uint64_t hash = 0;
    uint32_t word = 0, word_bytes = 0;  // 0 bytes: a free entry
    uint32_t ids = 0, count = 0;
  };
  [[nodiscard]] Entry& find(std::string_view word, uint64_t hash);
  void make_room();
  void store(Entry& entry, std::string_view word, uint64_t hash, const int32_t* ids, size_t count);

  std::vector<Entry> entries_;  // open addressing, at most half full
  size_t used_ = 0;
  std::string words_;
  std::vector<int32_t> ids_;
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> queue_;
};

}  // namespace tessera::train

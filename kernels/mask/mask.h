// SPDX-License-Identifier: Apache-2.0
// Masks of attention as values: conditions on the global positions (and documents) of a query and a
// key, joined by AND and OR. A value is plain data, so that it can be compared, hashed, printed and
// given to a GPU. What no such value says is a block map with bits: block_map.h.
#pragma once

#include "tessera/core/api.h"
#include "tessera/core/error.h"

#include <algorithm>
#include <cstdint>
#include <iosfwd>

namespace tessera {

/// Which keys a query sees; by default all of them. For a query at position p and a key at j:
///   causal()    j <= p
///   document()  both lie in one document: their ids are equal
///   window(w)   they are less than w places apart; causal() & window(w): the last w keys
///   chunk(c)    both lie in one chunk of c places, counted from 0 (Llama 4, 2025)
///   prefix(n)   j < n; causal() | prefix(n) is a prefix language model's
/// `a & b`: both hold; `a | b`: one does. A size above kLongest counts as kLongest: no sequence is
/// as long. ValueError: a size below 1, or more than kMost conditions.
class AttentionMask {
 public:
  enum class Kind : uint8_t { both, either, causal, document, window, chunk, prefix };
  static constexpr int kMost = 8;
  static constexpr int64_t kLongest = int64_t{1} << 48;

  constexpr AttentionMask() = default;
  [[nodiscard]] static constexpr AttentionMask causal() { return {Kind::causal, 0}; }
  [[nodiscard]] static constexpr AttentionMask document() { return {Kind::document, 0}; }
  [[nodiscard]] static constexpr AttentionMask window(int64_t w) {
    return {Kind::window, w, "window"};
  }
  [[nodiscard]] static constexpr AttentionMask chunk(int64_t c) {
    return {Kind::chunk, c, "chunk"};
  }
  [[nodiscard]] static constexpr AttentionMask prefix(int64_t n) {
    return {Kind::prefix, n, "prefix"};
  }

  friend constexpr AttentionMask operator&(const AttentionMask& a, const AttentionMask& b) {
    if (a.is_all()) return b;
    return b.is_all() ? a : join(a, b, Kind::both);
  }
  friend constexpr AttentionMask operator|(const AttentionMask& a, const AttentionMask& b) {
    return a.is_all() || b.is_all() ? AttentionMask() : join(a, b, Kind::either);
  }
  friend constexpr bool operator==(const AttentionMask& a, const AttentionMask& b) {
    for (int i = 0; i < kMostCodes; ++i) {
      if (a.codes_[i] != b.codes_[i]) return false;
    }
    return a.size_ == b.size_;
  }

  /// Every key is seen.
  [[nodiscard]] constexpr bool is_all() const { return size_ == 0; }
  /// Whether this condition stands in it.
  [[nodiscard]] constexpr bool has(Kind kind) const {
    for (int i = 0; i < size_; ++i) {
      if (kind_of(codes_[i]) == kind) return true;
    }
    return false;
  }
  /// What `leaf(kind, n)` gives of the conditions, joined by the & and | of T; `all` where there
  /// are none. T may be bits, blocks of them, ranges of keys ...
  template <class T, class Leaf> TESSERA_HD T evaluate(T all, Leaf&& leaf) const {
    if (size_ == 0) return all;
    if (size_ == 1) return leaf(kind_of(codes_[0]), number_of(codes_[0]));
    T stack[kMost];
    int top = 0;
    for (int i = 0; i < size_; ++i) {
      const Kind kind = kind_of(codes_[i]);
      if (kind != Kind::both && kind != Kind::either) {
        stack[top++] = leaf(kind, number_of(codes_[i]));
        continue;
      }
      --top;
      stack[top - 1] =
          kind == Kind::both ? stack[top - 1] & stack[top] : stack[top - 1] | stack[top];
    }
    return stack[0];
  }
  /// The conditions as numbers, each operand before what joins it: the key of caches.
  [[nodiscard]] constexpr const int64_t* begin() const { return codes_; }
  [[nodiscard]] constexpr const int64_t* end() const { return codes_ + size_; }

 private:
  static constexpr int kMostCodes = 2 * kMost - 1;
  static constexpr int64_t kKinds = 8;

  constexpr AttentionMask(Kind kind, int64_t n, const char* name = nullptr) : size_(1) {
    if (name && n < 1)
      fail<ValueError>("attention_mask", name, '(', n, "): expected 1 or more keys");
    codes_[0] = std::min(n, kLongest) * kKinds + static_cast<int64_t>(kind);
  }
  static constexpr AttentionMask join(const AttentionMask& a, const AttentionMask& b, Kind kind) {
    const int n = a.size_ + b.size_ + 1;
    if (n > kMostCodes) {
      fail<ValueError>("attention_mask", (n + 1) / 2, " conditions in one mask: expected at most ",
                       kMost, "; give a block map with bits instead");
    }
    AttentionMask joined = a;
    for (int i = 0; i < b.size_; ++i) joined.codes_[a.size_ + i] = b.codes_[i];
    joined.codes_[n - 1] = static_cast<int64_t>(kind);
    joined.size_ = n;
    return joined;
  }
  static TESSERA_HD constexpr Kind kind_of(int64_t code) {
    return static_cast<Kind>(code % kKinds);
  }
  static TESSERA_HD constexpr int64_t number_of(int64_t code) { return code / kKinds; }

  int64_t codes_[kMostCodes] = {};
  int size_ = 0;
};

/// "causal & window(4)", "(causal | prefix(3)) & document"; "all" without conditions.
TESSERA_API std::ostream& operator<<(std::ostream& out, const AttentionMask& mask);

}  // namespace tessera

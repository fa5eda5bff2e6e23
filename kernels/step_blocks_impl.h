// SPDX-License-Identifier: Apache-2.0
// Optimizer steps on tensors of several dtypes: blocks of elements are widened to f32, stepped and
// narrowed, so that one loop steps them all and an element's bits do not depend on its place.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/piece_index_impl.h"
#include "tessera/kernels/stochastic_rounding_impl.h"
#include "tessera/kernels/strided_copy_impl.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

namespace tessera {

inline constexpr int64_t kStepBlock = 1024;  // elements
inline constexpr DTypeSet kStepDTypes = dtypes_of(DType::f64, DType::f32, DType::bf16);

/// n elements of x (row-major) from `at` on.
template <class C> void load_block(const Tensor& x, int64_t at, int64_t n, C* to) {
  dispatch<kStepDTypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>() + at;
    simd([&]() TESSERA_LAMBDA {
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(from[i]);
    });
  });
}
/// Back again, to the nearest.
template <class C> void store_block(const C* from, int64_t n, const Tensor& x, int64_t at) {
  dispatch<kStepDTypes>(x.dtype(), [&]<class T>() {
    T* to = x.data<T>() + at;
    simd([&]() TESSERA_LAMBDA {
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
    });
  });
}
/// Back again; where x is bf16 rounded by what `pick` takes of each element's random word.
template <class Pick>
void store_block(const float* from, int64_t n, const Tensor& x, int64_t at, const uint32_t* words,
                 Pick pick) {
  if (x.dtype() != DType::bf16) return store_block(from, n, x, at);
  bf16* to = x.data<bf16>() + at;
  simd([&]() TESSERA_LAMBDA {
    for (int64_t i = 0; i < n; ++i) to[i] = rng::round_stochastic(from[i], pick(words[i]));
  });
}

/// The entries of `kRoles` lists of equal length, row-major; `done` brings back what was written to
/// strided tensors.
template <size_t kRoles> class StepEntries {
 public:
  using Entry = std::array<Tensor, kRoles>;
  explicit StepEntries(Tensors lists) : lists_(lists), entries_(lists.size() / kRoles) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      for (size_t role = 0; role < kRoles; ++role)
        entries_[i][role] = row_major(lists[role * entries_.size() + i]);
    }
  }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  const Entry& operator[](size_t i) const { return entries_[i]; }
  /// All roles of an entry have dtype t.
  [[nodiscard]] bool all_of(size_t i, DType t) const {
    return std::ranges::all_of(entries_[i], [t](const Tensor& x) { return x.dtype() == t; });
  }
  void done(std::initializer_list<size_t> written) const {
    for (const size_t role : written) {
      for (size_t i = 0; i < entries_.size(); ++i) {
        const Tensor& to = lists_[role * entries_.size() + i];
        if (!to.is_contiguous()) strided_copy(to, entries_[i][role]);
      }
    }
  }

 private:
  Tensors lists_;
  std::vector<Entry> entries_;
};

namespace detail {

/// Words of 16 counters in a row, all lanes of a round in one vector.
TESSERA_INLINE void word_batch(RngKey key, uint64_t block, uint32_t* out) {
  constexpr int64_t kBlocks = 16;
  uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int64_t j = 0; j < kBlocks; ++j) {
    const uint64_t counter = block + static_cast<uint64_t>(j);
    c0[j] = static_cast<uint32_t>(counter);
    c1[j] = static_cast<uint32_t>(counter >> 32);
    c2[j] = static_cast<uint32_t>(key.stream);
    c3[j] = static_cast<uint32_t>(key.stream >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1  // unrolled before it is vectorised, the loop would stay scalar
    for (int64_t j = 0; j < kBlocks; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[j], p1 = uint64_t{0xCD9E8D57u} * c2[j];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[j] ^ k0,
                     n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[j] ^ k1;
      c1[j] = static_cast<uint32_t>(p1);
      c3[j] = static_cast<uint32_t>(p0);
      c0[j] = n0;
      c2[j] = n2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int64_t j = 0; j < kBlocks; ++j) {
    out[4 * j] = c0[j];
    out[4 * j + 1] = c1[j];
    out[4 * j + 2] = c2[j];
    out[4 * j + 3] = c3[j];
  }
}

}  // namespace detail

/// The random words of elements [at, at + n) of a piece; n at most kStepBlock.
inline void step_words(RngKey key, const PieceIndex& piece, int64_t at, int64_t n, uint32_t* to) {
  constexpr int64_t kBatch = 64;
  for (int64_t i = 0; i < n;) {
    const uint64_t first = piece.global(at + i);
    const int64_t count = std::min(n - i, piece.left(at + i));
    const auto end = [&](int64_t k) { return first + static_cast<uint64_t>(k); };
    int64_t k = 0;
    for (; k < count && end(k) % 4 != 0; ++k) to[i + k] = rng::word(key, end(k));
    simd([&]() TESSERA_LAMBDA {
      for (; k + kBatch <= count; k += kBatch)
        detail::word_batch(key, (first + static_cast<uint64_t>(k)) / 4, to + i + k);
    });
    for (; k < count; ++k) to[i + k] = rng::word(key, end(k));
    i += count;
  }
}

}  // namespace tessera

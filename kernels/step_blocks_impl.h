// SPDX-License-Identifier: Apache-2.0
// Optimizer steps on tensors of several dtypes: blocks of elements are widened to f32, stepped and
// narrowed, so that one loop steps them all and an element's bits do not depend on its place.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/philox_impl.h"
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

/// 64 words from 64 * batch on, all lanes of a round in one vector.
TESSERA_INLINE void word_batch(RngKey key, uint64_t batch, uint32_t* out) {
  uint32_t bits[4][kPhiloxBlocks];
  philox_batch(key, batch * kPhiloxBlocks, bits);
  for (int64_t e = 0; e < 4; ++e)
    for (int64_t j = 0; j < kPhiloxBlocks; ++j) out[e * kPhiloxBlocks + j] = bits[e][j];
}

}  // namespace detail

/// The random words of elements [at, at + n) of a piece; n at most kStepBlock.
inline void step_words(RngKey key, const PieceIndex& piece, int64_t at, int64_t n, uint32_t* to) {
  constexpr uint64_t kBatch = 64;
  for (int64_t i = 0; i < n;) {
    const uint64_t first = piece.global(at + i),
                   end = first + static_cast<uint64_t>(std::min(n - i, piece.left(at + i)));
    simd([&]() TESSERA_LAMBDA {
      uint32_t* out = to + i;
      for (uint64_t from = first; from < end;) {
        const uint64_t batch = from / kBatch, next = std::min(end, (batch + 1) * kBatch);
        if (next - from == kBatch) {
          detail::word_batch(key, batch, out);
        } else {
          uint32_t part[kBatch];
          detail::word_batch(key, batch, part);
          for (uint64_t k = from; k < next; ++k) out[k - from] = part[k % kBatch];
        }
        out += next - from;
        from = next;
      }
    });
    i += static_cast<int64_t>(end - first);
  }
}

}  // namespace tessera

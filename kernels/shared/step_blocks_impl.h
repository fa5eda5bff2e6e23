// SPDX-License-Identifier: Apache-2.0
// Optimizer steps on tensors of several dtypes: blocks of elements are widened to f32, stepped and
// narrowed, so that one loop steps them all and an element's bits do not depend on its place.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

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

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Indexing as in PyTorch: `x[{0, slice(1, 3), new_axis}]`, index tensors and bool masks, read and
// written. Functions over select, slice, index_select and index_put_, so that gradients, layouts
// and devices are theirs. Whole numbers and slices give views, index tensors and masks give copies.
#pragma once

#include "tessera/core/scalar.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/views/views.h"

#include <concepts>
#include <initializer_list>
#include <span>
#include <variant>

namespace tessera {

/// A new dim of size 1: Python's None.
struct NewAxis {};
inline constexpr NewAxis new_axis{};
/// All dims that no other entry stands for: Python's `...`.
struct Ellipsis {};
inline constexpr Ellipsis ellipsis{};

/// One entry of `x[{...}]`: a place (negative ones count from the end), a slice, new_axis,
/// ellipsis, an index tensor (i64 or i32), or a bool mask of as many dims as it has.
class Index {
 public:
  using Entry = std::variant<int64_t, Range, NewAxis, Ellipsis, Tensor>;
  template <std::integral T>
  requires(!std::same_as<T, bool>) Index(T at) : entry_(static_cast<int64_t>(at)) {}
  Index(const Range& range) : entry_(range) {}
  Index(NewAxis axis) : entry_(axis) {}
  Index(Ellipsis rest) : entry_(rest) {}
  Index(Tensor tensor) : entry_(std::move(tensor)) {}
  [[nodiscard]] const Entry& entry() const { return entry_; }

 private:
  Entry entry_;
};

/// x at `entries`, one per dim from the first on; what they leave out is whole. Index tensors
/// broadcast together; their shape stands where they stood, or first where they stood apart.
/// IndexError outside the dim (on CUDA the value is NaN), of too many entries, or of a mask whose
/// shape is not that of its dims; DTypeError for an index tensor of another dtype.
[[nodiscard]] TESSERA_API Tensor index(const Tensor& x, std::span<const Index> entries);
[[nodiscard]] inline Tensor index(const Tensor& x, std::initializer_list<Index> entries) {
  return index(x, std::span<const Index>(entries.begin(), entries.size()));
}
/// `x[ids]`, `x[mask]`, `x[new_axis]`.
[[nodiscard]] inline Tensor index(const Tensor& x, const Index& entry) {
  return index(x, std::span<const Index>(&entry, 1));
}

/// The places of what is not zero (true, of bool), row-major -> (n, rank) i64. It waits for the
/// values: LayoutError for a distributed tensor, DeviceError for a meta one.
[[nodiscard]] TESSERA_API Tensor nonzero(const Tensor& x);
/// The elements of x where the bool mask is true, 1-D, after both are broadcast; waits as nonzero.
[[nodiscard]] TESSERA_API Tensor masked_select(const Tensor& x, const Tensor& mask);

/// x[entries] = values in place, or += with `accumulate`; the values broadcast to x[entries] and
/// have x's dtype. Of equal places the last wins, the same on every run. IndexError as of index
/// (on CUDA what lies outside is left out), ShapeError, DTypeError; InPlaceError where x or values
/// require grad, but under NoGrad.
TESSERA_API void index_put_(const Tensor& x, std::span<const Index> entries, const Tensor& values,
                            bool accumulate = false);
TESSERA_API void index_put_(const Tensor& x, std::span<const Index> entries, Scalar value,
                            bool accumulate = false);
inline void index_put_(const Tensor& x, std::initializer_list<Index> entries, const Tensor& values,
                       bool accumulate = false) {
  index_put_(x, std::span<const Index>(entries.begin(), entries.size()), values, accumulate);
}
inline void index_put_(const Tensor& x, std::initializer_list<Index> entries, Scalar value,
                       bool accumulate = false) {
  index_put_(x, std::span<const Index>(entries.begin(), entries.size()), value, accumulate);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// scatter and scatter_reduce: values put, or joined, where an index points along a dim. Indices are
// followed in their order, so the last of several values for one place stays: the same bits on
// every run. Sums are scatter_add (kernels/gather).
#pragma once

#include "tessera/core/op.h"

#include <iosfwd>

namespace tessera {
namespace op {

/// x (..., n, ...), index i64 (..., m, ...) no larger than x but along `dim`, src of index's shape:
/// y = x, then y[..., index[..., j, ...], ...] = src[..., j, ...].
struct Scatter {
  int dim = 0;
  static constexpr std::string_view name = "scatter";
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8, DType::bool_);
  static constexpr Saves saves = Saves::input(1);
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Scatter>> samples();
};

/// dy, index -> dx (dy's shape), dsrc (index's shape): a value that stayed takes the gradient of
/// its place from x; one that was written over has none.
struct ScatterBackward {
  int dim = 0;
  static constexpr std::string_view name = "scatter_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::input(0, 1);
  auto attributes() const { return std::tie(dim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<ScatterBackward>> samples();
};

/// How values join what is in their place.
enum class ScatterJoin : uint8_t { prod, amax, amin };
TESSERA_API std::ostream& operator<<(std::ostream&, ScatterJoin);

/// Operands as Scatter's: y = x, then y[index] = join(y[index], src). NaN is the largest and the
/// smallest; integer products wrap around.
struct ScatterReduce {
  int dim = 0;
  ScatterJoin join = ScatterJoin::prod;
  static constexpr std::string_view name = "scatter_reduce";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs() | Saves::output();
  auto attributes() const { return std::tie(dim, join); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<ScatterReduce>> samples();
  template <class C> [[nodiscard]] TESSERA_HD C joined(C a, C b) const {
    if (join == ScatterJoin::prod) {
      if constexpr (std::is_floating_point_v<C>) return a * b;
      else return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    }
    if (a != a || b != b) return a != a ? a : b;
    return (join == ScatterJoin::amax) == (a > b) ? a : b;
  }
};

using scatter_ops = OpList<Scatter, ScatterBackward, ScatterReduce>;

}  // namespace op

/// x with src[..., j, ...] in place of [..., index[..., j, ...], ...] along `dim`; of several
/// values for one place the last stays and has the gradient. index (i64 or i32) has as many dims as
/// x and is no larger but along `dim`; src is at least as large as index, and what lies beyond is
/// not read. IndexError for an index outside the dim (on CUDA it is skipped: a kernel cannot
/// throw).
TESSERA_API Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& src);
/// The same with one value in every place.
TESSERA_API Tensor scatter(const Tensor& x, int dim, const Tensor& index, double value);

enum class ScatterReduction : uint8_t { sum, prod, mean, amax, amin };
/// x with the values of src joined in the places where the index points; operands as in scatter.
/// Without include_self the values of x in those places do not count. Sums and products follow the
/// index; values that tie for amax or amin share the gradient equally. DTypeError for the mean of
/// integers.
TESSERA_API Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& src,
                                  ScatterReduction reduce, bool include_self = true);

}  // namespace tessera

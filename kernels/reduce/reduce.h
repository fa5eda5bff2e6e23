// SPDX-License-Identifier: Apache-2.0
// The reduce family: sum, mean, logsumexp over any dims, and max with its index over one. Sums are
// f32 for narrower floats, in chunks that do not depend on the thread count. To add one: a struct
// here, its public function, its name in reduce_ops, and a kernel of a few lines over
// reduce_elements in reduce.cpp and reduce.cu.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// Which dims are reduced: bit d for dim d.
using DimMask = uint32_t;

template <class Op> struct Reduce {
  DimMask dims = 0;
  bool keepdim = false;
  static constexpr Saves saves = Saves::none();
  static constexpr DTypeSet dtypes = kNumbers;
  auto attributes() const { return std::tie(dims, keepdim); }
  MetaList meta(Metas in) const;
  static std::vector<Sample<Op>> samples();
  /// A tensor of the output's shape with the reduced dims back as size 1.
  Tensor restore(const Tensor& y, const Shape& input) const;
};

struct Sum : Reduce<Sum> {
  static constexpr std::string_view name = "sum";
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};

/// Sum divided by the number of elements. `count` is the global number when the op runs on a piece;
/// 0: its own.
struct Mean : Reduce<Mean> {
  int64_t count = 0;
  static constexpr std::string_view name = "mean";
  static constexpr DTypeSet dtypes = kFloats;
  auto attributes() const { return std::tie(dims, keepdim, count); }
  ShardingRule sharding(Metas in) const;
  Mean local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  [[nodiscard]] int64_t divisor(const Shape& input) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};

/// log(sum(exp(x))), stable; minus infinity where every x is.
struct LogSumExp : Reduce<LogSumExp> {
  static constexpr std::string_view name = "logsumexp";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(0) | Saves::output();
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};

/// Largest element along `dim` and the index of its first occurrence (i64). NaN counts as largest.
struct Max {
  int dim = -1;
  bool keepdim = false;
  static constexpr std::string_view name = "max";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr int outputs = 2;
  static constexpr Saves saves = Saves::outputs(1);
  auto attributes() const { return std::tie(dim, keepdim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Max>> samples();
};

using reduce_ops = OpList<Sum, Mean, LogSumExp, Max>;

}  // namespace op

/// Over `dims` (all when empty); dims may count from the end. Empty sums are 0; the mean of nothing
/// is a ShapeError.
TESSERA_API Tensor sum(const Tensor& x, std::initializer_list<int> dims = {}, bool keepdim = false);
TESSERA_API Tensor mean(const Tensor& x, std::initializer_list<int> dims = {},
                        bool keepdim = false);
TESSERA_API Tensor logsumexp(const Tensor& x, std::initializer_list<int> dims,
                             bool keepdim = false);
/// {values, indices}.
inline std::array<Tensor, 2> max(const Tensor& x, int dim, bool keepdim = false) {
  return call(op::Max{dim, keepdim}, {x});
}
/// Sums `g` over the dims in which `shape` was broadcast to it; `g` itself when the shapes are
/// equal.
TESSERA_API Tensor sum_to(const Tensor& g, const Shape& shape);

}  // namespace tessera

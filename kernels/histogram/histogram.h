// SPDX-License-Identifier: Apache-2.0
// Counts of values: bincount of whole numbers, histogram over bins of equal width. Counts are i64,
// so that they are exact and any cut of the values adds up; the number of bins is an attribute,
// since no shape may depend on values.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/pointwise/index_dtype.h"

namespace tessera {
namespace op {

/// x i64 in [0, bins), any shape -> (bins) i64.
struct Bincount {
  int64_t bins = 0;
  static constexpr std::string_view name = "bincount";
  static constexpr DTypeSet dtypes = dtypes_of(DType::i64);
  static constexpr NotDifferentiable vjp{"counts are whole numbers"};
  auto attributes() const { return std::tie(bins); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Bincount>> samples();
};

/// x of any shape -> (bins) i64: how many lie in each of `bins` equal parts of [low, high]. The
/// last part holds its end; what lies outside, and NaN, is not counted.
struct Histogram {
  int64_t bins = 100;
  double low = 0, high = 1;
  static constexpr double kHuge = 1e308;  // a product may have overflown beyond it
  static constexpr std::string_view name = "histogram";
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8);
  static constexpr NotDifferentiable vjp{"counts are whole numbers"};
  auto attributes() const { return std::tie(bins, low, high); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Histogram>> samples();
  /// The bin of x, or -1. In f64 whatever x was, so that dtypes and devices agree.
  [[nodiscard]] TESSERA_HD int64_t bin_of(double x) const {
    if (!(x >= low && x <= high)) return -1;
    const double parts = static_cast<double>(bins), width = high - low;
    double bin = (x - low) * parts;  // before the division: exact more often
    bin = bin < kHuge ? bin / width : (x - low) / width * parts;
    return bin < parts ? static_cast<int64_t>(bin) : bins - 1;
  }
};

using histogram_ops = OpList<Bincount, Histogram>;

}  // namespace op

/// How often each of 0 .. bins - 1 occurs in x, i64 or i32 (any shape) -> (bins) i64:
/// torch.bincount with minlength = bins, except that a larger value is an IndexError and not a
/// longer result (on CUDA it is not counted).
inline Tensor bincount(const Tensor& x, int64_t bins) {
  return call(op::Bincount{bins}, {as_index(x)});
}
/// How many elements of x (any shape) lie in each of `bins` equal parts of [low, high] -> (bins)
/// i64: torch.histc, but counts are i64 and the range is always given. ValueError where low >=
/// high.
inline Tensor histogram(const Tensor& x, int64_t bins, double low, double high) {
  return call(op::Histogram{bins, low, high}, {x});
}

}  // namespace tessera

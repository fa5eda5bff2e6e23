// SPDX-License-Identifier: Apache-2.0
// arange: start, start + step, ...; linspace: so many numbers from start to stop. Each element is
// computed from its place in the whole, so that a piece holds the bits that the whole would have
// there.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// -> (count): element i is start + (begin + i) * step, in f64 and rounded once, exact in integers.
struct Arange {
  double start = 0, step = 1;
  int64_t count = 0, begin = 0;
  DType dtype = DType::i64;
  Device device = kCpu;
  static constexpr std::string_view name = "arange";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr NotDifferentiable vjp{"it has no tensor input"};
  auto attributes() const { return std::tie(start, step, count, begin, dtype, device); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Arange local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Arange>> samples();
  template <class T> [[nodiscard]] TESSERA_HD T element(int64_t i) const {
    if constexpr (is_floating(dtype_of<T>))
      return static_cast<T>(
          static_cast<compute_t<T>>(start + static_cast<double>(begin + i) * step));
    else
      return static_cast<T>(static_cast<int64_t>(start) + (begin + i) * static_cast<int64_t>(step));
  }
};

/// -> (count): elements begin, begin + 1, ... of `steps` numbers at equal distances from start to
/// stop, both included; in f64, counted from the nearer end, and rounded once.
struct Linspace {
  double start = 0, stop = 0;
  int64_t steps = 0, begin = 0, count = 0;
  DType dtype = DType::f32;
  Device device = kCpu;
  static constexpr std::string_view name = "linspace";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{"it has no tensor input"};
  auto attributes() const { return std::tie(start, stop, steps, begin, count, dtype, device); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Linspace local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Linspace>> samples();
  template <class T> [[nodiscard]] TESSERA_HD T element(int64_t i) const {
    const int64_t at = begin + i, rest = steps - 1 - at;
    const double step = steps > 1 ? (stop - start) / static_cast<double>(steps - 1) : 0;
    const double x = at <= rest ? start + static_cast<double>(at) * step
                                : stop - static_cast<double>(rest) * step;
    return static_cast<T>(static_cast<compute_t<T>>(x));
  }
};

using arange_ops = OpList<Arange, Linspace>;

}  // namespace op

/// start, start + step, ... while below stop (above it for a negative step); of integers start and
/// step must be whole. ValueError for step 0, a step away from stop, or a bound that is not finite.
TESSERA_API Tensor arange(double start, double stop, double step = 1, DType dtype = DType::i64,
                          Device device = kCpu);
/// 0, 1, ..., stop - 1.
inline Tensor arange(int64_t stop, DType dtype = DType::i64, Device device = kCpu) {
  return arange(0, static_cast<double>(stop), 1, dtype, device);
}

/// `steps` numbers at equal distances from start to stop, both included, of a floating dtype; one
/// step is start alone. ShapeError for negative steps, ValueError for a bound that is not finite.
inline Tensor linspace(double start, double stop, int64_t steps, DType dtype = DType::f32,
                       Device device = kCpu) {
  return call(op::Linspace{start, stop, steps, 0, steps, dtype, device}, {});
}

}  // namespace tessera

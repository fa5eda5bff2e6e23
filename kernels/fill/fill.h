// SPDX-License-Identifier: Apache-2.0
// Fills: a constant, and random numbers that are a pure function of (key, global element index). A
// piece of a larger tensor says where it lies in it, and gets the bits that the whole would have
// there, on any mesh and device.
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/rng.h"
#include "tessera/core/scalar.h"

namespace tessera {
namespace op {

struct Fill {
  Shape shape;
  DType dtype = DType::f32;
  Device device = kCpu;
  Scalar value;
  static constexpr std::string_view name = "fill";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr NotDifferentiable vjp{"it has no tensor input"};
  auto attributes() const { return std::tie(shape, dtype, device, value); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Fill local(const Piece& piece) const { return {piece.local_shape(0), dtype, device, value}; }
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Fill>> samples();
  /// The value as a T: whole numbers with all their bits, fractions truncated in integer dtypes.
  template <class T> [[nodiscard]] T element() const {
    if constexpr (is_floating(dtype_of<T>))
      return static_cast<T>(static_cast<compute_t<T>>(value.real()));
    else if (value.is_whole()) return static_cast<T>(value.whole());
    else return static_cast<T>(value.real());
  }
};

/// How random bits become numbers. Truncated normals are redrawn until they lie in [low, high].
enum class Distribution : uint8_t { uniform, normal, truncated_normal };
TESSERA_API std::ostream& operator<<(std::ostream&, Distribution);

/// Uniform in [low, high), or normal of `mean` and `std`. `whole` and `start` place a piece; whole
/// of rank 0: the shape.
struct Random {
  Shape shape;
  DType dtype = DType::f32;
  Device device = kCpu;
  Distribution distribution = Distribution::normal;
  double mean = 0, std = 1, low = 0, high = 1;
  RngKey key;
  Shape whole, start;
  static constexpr std::string_view name = "random";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{"it has no tensor input"};
  auto attributes() const {
    return std::tie(shape, dtype, device, distribution, mean, std, low, high, key.seed, key.stream,
                    whole, start);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  Random local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Random>> samples();
  /// Element `i` of the whole.
  [[nodiscard]] TESSERA_HD float element(uint64_t i) const {
    if (distribution == Distribution::uniform) {
      const float u = rng::uniform4(key, i / 4).v[i % 4];
      const float l = static_cast<float>(low), h = static_cast<float>(high);
      const float x = rng::fma(u, static_cast<float>(high - low), l);
      return x < h ? x : l;  // rounding may reach the end that is left out
    }
    const float m = static_cast<float>(mean), s = static_cast<float>(std);
    RngKey k = key;
    float x = rng::fma(rng::normal4(k, i / 4).v[i % 4], s, m);
    if (distribution == Distribution::normal) return x;
    const float lo = static_cast<float>(low), hi = static_cast<float>(high);
    for (int redraw = 0; redraw < 64 && !(x >= lo && x <= hi); ++redraw) {
      k.stream += 0x9E3779B97F4A7C15ull;
      x = rng::fma(rng::normal4(k, i / 4).v[i % 4], s, m);
    }
    return x < lo ? lo : (x > hi ? hi : x);
  }
};

using fill_ops = OpList<Fill, Random>;

}  // namespace op

/// `shape` of one value, converted to `dtype`. ShapeError for a negative size.
inline Tensor full(const Shape& shape, Scalar value, DType dtype = DType::f32,
                   Device device = kCpu) {
  return call(op::Fill{shape, dtype, device, value}, {});
}
inline Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = kCpu) {
  return full(shape, 0, dtype, device);
}
inline Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = kCpu) {
  return full(shape, 1, dtype, device);
}
/// As x: shape, dtype, device and, of a distributed x, layout.
inline Tensor full_like(const Tensor& x, Scalar value) {
  return call_like(op::Fill{x.shape(), x.dtype(), x.device(), value}, x);
}
inline Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
/// Standard normals times std plus mean, of a floating dtype: the same bits for the same key on any
/// device and mesh. ValueError for a negative std, ShapeError for a negative size.
inline Tensor normal(const Shape& shape, RngKey key, double mean = 0, double std = 1,
                     DType dtype = DType::f32, Device device = kCpu) {
  return call(
      op::Random{shape, dtype, device, op::Distribution::normal, mean, std, 0, 1, key, {}, {}}, {});
}
/// The same, each drawn again until it lies in [low, high] (both ends in the values' units, not in
/// units of std). ValueError unless low < high.
inline Tensor truncated_normal(const Shape& shape, RngKey key, double mean, double std, double low,
                               double high, DType dtype = DType::f32, Device device = kCpu) {
  return call(op::Random{shape,
                         dtype,
                         device,
                         op::Distribution::truncated_normal,
                         mean,
                         std,
                         low,
                         high,
                         key,
                         {},
                         {}},
              {});
}
/// Even in [low, high), of a floating dtype, in steps of (high - low) / 2^23: the same bits for the
/// same key on any device and mesh. ValueError unless low < high.
inline Tensor uniform(const Shape& shape, RngKey key, double low = 0, double high = 1,
                      DType dtype = DType::f32, Device device = kCpu) {
  return call(
      op::Random{shape, dtype, device, op::Distribution::uniform, 0, 1, low, high, key, {}, {}},
      {});
}

/// What random functions without a key draw from here on is decided by `seed`.
TESSERA_API void manual_seed(uint64_t seed);
/// Even in [0, 1), of a floating dtype. The key is the next draw of the current module: calls
/// differ, and a program draws the same after the same seed. `uniform` takes a key.
TESSERA_API Tensor rand(const Shape& shape, DType dtype = DType::f32, Device device = kCpu);
/// Standard normals, in the same way. `normal` takes a key.
TESSERA_API Tensor randn(const Shape& shape, DType dtype = DType::f32, Device device = kCpu);
/// As x: shape, dtype, device and, of a distributed x, layout.
TESSERA_API Tensor rand_like(const Tensor& x);
TESSERA_API Tensor randn_like(const Tensor& x);

}  // namespace tessera

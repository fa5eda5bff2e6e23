// SPDX-License-Identifier: Apache-2.0
// More arithmetic of the pointwise family. Rounding and division with a whole quotient, exact also
// where the rounded quotient of two floats is one off. Choices between values: between two tensors
// (lerp), between bounds that are tensors (clamp), between a number and what stands for it
// (nan_to_num).
#pragma once

#include "tessera/kernels/pointwise/pointwise_arithmetic.h"

#include <optional>

namespace tessera {

Tensor trunc(const Tensor& x);

namespace op {

/// A step function: the dtype stays, the gradient is zero.
template <class Op> struct Steps : Unary<Op> {
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kMonotone = 1;
  static constexpr auto kFirst = kSmoothPoints;
  static Tensor grad(const Saved&, const Tensor&) { return {}; }
};
struct Ceil : Steps<Ceil> {
  static constexpr std::string_view name = "ceil";
  static constexpr double kKnown[][2] = {{-1.5, -1}, {1.25, 2}};
  template <class T> TESSERA_MATH static T f(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return std::ceil(x);
  }
};
/// Towards zero.
struct Trunc : Steps<Trunc> {
  static constexpr std::string_view name = "trunc";
  static constexpr double kKnown[][2] = {{-1.5, -1}, {2.75, 2}};
  template <class T> TESSERA_MATH static T f(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return std::trunc(x);
  }
};
/// x - trunc(x).
struct Frac : Unary<Frac> {
  static constexpr std::string_view name = "frac";
  static constexpr double kKnown[][2] = {{-1.25, -0.25}, {2.75, 0.75}};
  static constexpr Saves saves = Saves::none();
  static constexpr auto kFirst = kSmoothPoints;
  template <class T> TESSERA_MATH static T f(T x) { return x - std::trunc(x); }
  static Tensor grad(const Saved&, const Tensor& dy) { return dy; }
};

/// a - trunc(a / b) b, with the sign of a, as in C. ValueError where an integer b is zero (on CUDA
/// the result is 0 there: a kernel cannot throw).
struct Fmod : Binary<Fmod> {
  static constexpr std::string_view name = "fmod";
  static constexpr double kKnown[][3] = {{-7, 3, -1}, {7, -3, 1}, {5.5, 2, 1.5}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs();
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr auto kSecond = Remainder::kSecond;
  void cpu(Tensors in, Outputs y) const;
  template <class T> TESSERA_MATH static T f(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return b == 0 || b == -1 ? T(0) : a % b;  // the lowest number by -1 overflows
    } else {
#ifdef __CUDA_ARCH__
      return exact(a, b);
#else
      // Where the quotient was rounded up to a whole number the rest lies beyond zero.
      const T r = vmath::fma(-std::trunc(a / b), b, a), size = std::abs(b);
      const T above = (r < 0) & (a > 0) ? r + size : r;
      return std::copysign((r > 0) & (a < 0) ? r - size : above, a);
#endif
    }
  }
  template <class T> TESSERA_MATH static bool rare(T a, T b) { return Remainder::rare(a, b); }
  template <class T> TESSERA_MATH static T exact(T a, T b) { return std::fmod(a, b); }
  static Tensor grad_a(const Saved&, const Tensor& dy) { return dy; }
  static Tensor grad_b(const Saved& s, const Tensor& dy);
};

/// floor(a / b) of the exact quotient. The gradient is zero. ValueError where an integer b is zero
/// (on CUDA the result is 0 there).
struct FloorDivide : Pointwise<FloorDivide, 2> {
  static constexpr std::string_view name = "floor_divide";
  static constexpr double kKnown[][3] = {{-7, 3, -3}, {7, 3, 2}, {5.5, -2, -3}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr auto kSecond = Remainder::kSecond;
  void cpu(Tensors in, Outputs y) const;
  template <class T> TESSERA_MATH static T f(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      if (b == 0) return 0;
      if (b == -1) return static_cast<T>(U{0} - static_cast<U>(a));  // the lowest stays itself
      return static_cast<T>(a / b - ((a % b != 0) & ((a < 0) != (b < 0))));
    } else {
#ifdef __CUDA_ARCH__
      return exact(a, b);
#else
      // Where the quotient was rounded up to a whole number the rest has the sign that b lacks.
      const T q = std::floor(a / b), r = vmath::fma(-q, b, a);
      return ((r < 0) & (b > 0)) | ((r > 0) & (b < 0)) ? q - T(1) : q;
#endif
    }
  }
  template <class T> TESSERA_MATH static bool rare(T a, T b) { return Remainder::rare(a, b); }
  template <class T> TESSERA_MATH static T exact(T a, T b) {
    if (b == 0) return a / b;
    const T rest = std::fmod(a, b);
    const T q = (a - rest) / b - T((rest != 0) & ((rest < 0) != (b < 0)));  // whole, but rounded
    return q == 0 ? std::copysign(T(0), a / b) : std::rint(q);
  }
  Grads vjp(const Saved&, const Grads&, Needs) const { return Grads(2); }
};

/// a + weight (b - a), from whichever end is nearer, so that weight 1 gives b.
struct Lerp : Pointwise<Lerp, 3> {
  static constexpr std::string_view name = "lerp";
  static constexpr double kKnown[][4] = {{1, 3, 0.25, 1.5}, {2, -2, 0.75, -1}};
  static constexpr Saves saves = Saves::inputs();
  template <class T> TESSERA_MATH static T f(T a, T b, T weight) {
    return std::abs(weight) < T(0.5) ? a + weight * (b - a) : b - (b - a) * (T(1) - weight);
  }
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
};
/// The same by a constant weight.
struct LerpScalar : Pointwise<LerpScalar, 2> {
  double weight = 0.5;
  static constexpr std::string_view name = "lerp_scalar";
  static constexpr double kKnown[][3] = {{1, 3, 1.6}, {1, 3, 2.8}};
  static constexpr Saves saves = Saves::none();
  static constexpr int kLinear = kLinearAll;
  auto attributes() const { return std::tie(weight); }
  template <class T> TESSERA_MATH T f(T a, T b) const {
    return Lerp::f(a, b, static_cast<T>(weight));
  }
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
};

/// x, low, high -> min(max(x, low), high); NaN if any is. What is taken has the
/// gradient; x and a bound that equals it share it where low < high, as in PyTorch.
struct ClampTensor : Pointwise<ClampTensor, 3> {
  static constexpr std::string_view name = "clamp_tensor";
  static constexpr double kKnown[][4] = {{5, 0, 3, 3}, {-1, 0, 3, 0}, {1, 0, 3, 1}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs();
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr auto kSecond = Maximum::kSecond;
  static constexpr std::array<double, 5> kThird{0.45, 1.25, -0.15, 2.05, 0.95};  // no ties
  template <class T> TESSERA_MATH static T f(T x, T low, T high) {
    const T y = (x < low) | (low != low) ? low : x;
    return (y > high) | (high != high) ? high : y;
  }
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
};

/// x with these numbers in place of NaN and of the infinities, which have no gradient.
struct NanToNum : Fused<NanToNum> {
  double nan = 0, posinf = 0, neginf = 0;
  static constexpr std::string_view name = "nan_to_num", backward_name = "nan_to_num_backward";
  static constexpr double kKnown[][2] = {{NAN, 0}, {INFINITY, 1.5}, {-INFINITY, -2}, {2, 2}};
  static constexpr double kKnownBackward[][3] = {{INFINITY, 2, 0}, {1.5, 2, 2}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr std::array<double, 7> kFirst{0.7, INFINITY, -1.3, NAN, 2.1, -INFINITY, -0.4};
  auto attributes() const { return std::tie(nan, posinf, neginf); }
  template <class T> TESSERA_MATH T f(T x) const {
    constexpr T kTop = std::numeric_limits<T>::max();
    const T y = x > kTop ? static_cast<T>(posinf) : (x < -kTop ? static_cast<T>(neginf) : x);
    return x != x ? static_cast<T>(nan) : y;
  }
  template <class T> TESSERA_MATH T pull(T x, T dy) const { return x - x == T(0) ? dy : T(0); }
  static Tensor bend(const Tensor&, const Tensor&, const Tensor&) { return {}; }
};

using pointwise_rounding_ops = OpList<Ceil, Trunc, Frac, Fmod, FloorDivide, Lerp, LerpScalar,
                                      ClampTensor, NanToNum, Backward<NanToNum>>;

}  // namespace op

inline Tensor ceil(const Tensor& x) { return call(op::Ceil{}, {x}); }
/// Towards zero.
inline Tensor trunc(const Tensor& x) { return call(op::Trunc{}, {x}); }
/// x - trunc(x), of floats.
inline Tensor frac(const Tensor& x) { return call(op::Frac{}, {x}); }
/// a modulo b with the sign of a, as in C (`remainder` has the sign of b); ValueError where an
/// integer b is zero.
inline Tensor fmod(const Tensor& a, const Tensor& b) { return call(op::Fmod{}, {a, b}); }
/// floor(a / b), of integers too; ValueError where an integer b is zero.
inline Tensor floor_divide(const Tensor& a, const Tensor& b) {
  return call(op::FloorDivide{}, {a, b});
}

/// a + weight * (b - a), elementwise with broadcasting; weight 0 gives a and 1 gives b exactly.
inline Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight) {
  return call(op::Lerp{}, {a, b, weight});
}
inline Tensor lerp(const Tensor& a, const Tensor& b, double weight) {
  return call(op::LerpScalar{{}, weight}, {a, b});
}
/// min(max(x, min), max) with bounds that broadcast; leave one out as `{}` (UsageError without
/// both). NaN where any of the three is.
TESSERA_API Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max = {});

/// What stands for NaN and the infinities; the dtype's largest and lowest number where not given.
struct NanToNumOptions {
  double nan = 0;
  std::optional<double> posinf = {}, neginf = {};  // none: the largest and the lowest finite number
};
/// x with NaN and the infinities replaced, e.g. `nan_to_num(x, {.posinf = 1e4})`.
TESSERA_API Tensor nan_to_num(const Tensor& x, const NanToNumOptions& options = {});

}  // namespace tessera

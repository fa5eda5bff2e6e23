// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the pointwise family: sums, products, powers, rounding, the larger and the smaller,
// and what moves values unchanged. PyTorch's conventions at the edges (ties, NaN, signs).
#pragma once

#include "tessera/kernels/pointwise/pointwise_family.h"

#include <concepts>
#include <limits>
#include <type_traits>

namespace tessera {

Tensor floor(const Tensor& x);
Tensor log(const Tensor& x);
Tensor pow(const Tensor& x, const Tensor& exponent);
Tensor pow(const Tensor& x, double exponent);
Tensor equal(const Tensor& a, const Tensor& b);
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

namespace op {

/// The type in which sums and products of T are computed: integers wrap around.
template <class T> struct WrappingOf { using type = T; };
template <std::integral T> struct WrappingOf<T> { using type = std::make_unsigned_t<T>; };
template <class T> using Wrapping = typename WrappingOf<T>::type;

/// a + b; integers wrap around.
struct Add : Binary<Add> {
  static constexpr std::string_view name = "add";
  static constexpr double kKnown[][3] = {{1, 2, 3}, {-0.5, 0.25, -0.25}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kLinear = kLinearAll;
  template <class T> TESSERA_MATH static T f(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) + Wrapping<T>(b));
  }
  static Tensor grad_a(const Saved&, const Tensor& dy) { return dy; }
  static Tensor grad_b(const Saved&, const Tensor& dy) { return dy; }
};

/// a - b; integers wrap around.
struct Sub : Binary<Sub> {
  static constexpr std::string_view name = "sub";
  static constexpr double kKnown[][3] = {{1, 2, -1}, {-0.5, 0.25, -0.75}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kLinear = kLinearAll;
  template <class T> TESSERA_MATH static T f(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) - Wrapping<T>(b));
  }
  static Tensor grad_a(const Saved&, const Tensor& dy) { return dy; }
  static Tensor grad_b(const Saved&, const Tensor& dy) { return neg(dy); }
};

/// a * b; integers wrap around.
struct Mul : Binary<Mul> {
  static constexpr std::string_view name = "mul";
  static constexpr double kKnown[][3] = {{3, -2, -6}, {-0.5, 0.25, -0.125}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs();
  static constexpr int kLinear = 1 | 2;
  template <class T> TESSERA_MATH static T f(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b));
  }
  static Tensor grad_a(const Saved& s, const Tensor& dy) { return mul(dy, s.input(1)); }
  static Tensor grad_b(const Saved& s, const Tensor& dy) { return mul(dy, s.input(0)); }
};

struct Div : Binary<Div> {
  static constexpr std::string_view name = "div";
  static constexpr double kKnown[][3] = {{1, 4, 0.25}, {-3, 2, -1.5}};
  static constexpr Saves saves = Saves::inputs();
  static constexpr int kLinear = 1;
  static constexpr double kSecondLow = 0.5, kSecondHigh = 2;  // no difference is fair near zero
  template <class T> TESSERA_MATH static T f(T a, T b) { return a / b; }
  static Tensor grad_a(const Saved& s, const Tensor& dy) { return div(dy, s.input(1)); }
  static Tensor grad_b(const Saved& s, const Tensor& dy) {
    return neg(div(div(mul(dy, s.input(0)), s.input(1)), s.input(1)));
  }
};

/// x * scale + shift, by constants; integers wrap around, as in mul and add. A shift of -0.0
/// changes nothing, not even the sign of a zero: products are made with it.
struct Affine : Unary<Affine> {
  Scalar scale = 1, shift = -0.0;
  static constexpr std::string_view name = "affine";
  static constexpr double kKnown[][2] = {{2, 4}, {3, -9}, {-4, -1}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(scale, shift); }
  auto plan_key() const { return std::tuple(linear(DType::f32), monotone()); }
  bool linear(DType) const { return shift.real() == 0; }
  int monotone() const { return scale.real() >= 0 ? 1 : -1; }
  MetaList meta(Metas in) const;
  template <class T> TESSERA_MATH T f(T x) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(x) * static_cast<U>(scale.whole()) +
                            static_cast<U>(shift.whole()));
    } else {
      return x * static_cast<T>(scale.real()) + static_cast<T>(shift.real());
    }
  }
  Tensor grad(const Saved&, const Tensor& dy) const { return affine(dy, scale, -0.0); }
};

/// a modulo b with the sign of b, as in Python: below b but for its rounding, which gives b where a
/// is tiny and of the other sign. ValueError where an integer b is zero (on CUDA the
/// result is 0 there: a kernel cannot throw).
struct Remainder : Binary<Remainder> {
  static constexpr std::string_view name = "remainder";
  static constexpr double kKnown[][3] = {{7, 3, 1}, {-7, 3, 2}, {7, -3, -2}, {5.5, 2, 1.5}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs();
  static constexpr auto kFirst = kSmoothPoints;
  // No quotient of the two lists is near a whole number.
  static constexpr std::array<double, 5> kSecond{1.03, -1.57, 2.41, -3.3, 1.03};
  void cpu(Tensors in, Outputs y) const;
  template <class T> TESSERA_MATH static T f(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0 || b == -1) return 0;  // the lowest number by -1 overflows
      const T r = a % b;
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    } else {
#ifdef __CUDA_ARCH__
      return exact(a, b);
#else
      // Exact: where the rounded quotient is off, it is so by one.
      const T r = vmath::fma(-std::floor(a / b), b, a);
      return ((b < 0) & (r > 0)) | (!(b < 0) & (r < 0)) ? r + b : r;  // of branches no vector
#endif
    }
  }
  template <class T> TESSERA_MATH static bool rare(T a, T b) {
    if constexpr (std::is_integral_v<T>) return false;
    else return !(std::abs(a) < T(2097152) * std::abs(b)) | !(std::abs(b) < T(1e30));
  }
  template <class T> TESSERA_MATH static T exact(T a, T b) {
    const T r = std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
  static Tensor grad_a(const Saved&, const Tensor& dy) { return dy; }
  static Tensor grad_b(const Saved& s, const Tensor& dy);
};

/// a^b. Integers wrap around; to a negative power they are 0 but for 1 and -1.
struct Pow : Binary<Pow> {
  static constexpr std::string_view name = "pow";
  static constexpr double kKnown[][3] = {
      {3, 4, 81}, {2, 0.5, 1.4142135623730951}, {1.5, -2, 0.4444444444444444}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs() | Saves::output();
  static constexpr double kLow = 0.3, kHigh = 2.5;
  template <class T> TESSERA_MATH static T f(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      if (b < 0) return a == 1 ? 1 : (a == -1 ? (b % 2 ? -1 : 1) : 0);
      U power = 1;
      for (U base = static_cast<U>(a); b > 0; b /= 2, base *= base) power *= b % 2 ? base : 1;
      return static_cast<T>(power);
    } else {
      return vmath::pow(a, b);
    }
  }
  template <class T> TESSERA_MATH static bool rare(T a, T b) {
    if constexpr (std::is_integral_v<T>) return false;
    else return vmath::rare_power(a, b);
  }
  template <class T> static T exact(T a, T b) { return static_cast<T>(std::pow(a, b)); }
  static Tensor grad_a(const Saved& s, const Tensor& dy);
  static Tensor grad_b(const Saved& s, const Tensor& dy);
};

/// Powers that need no logarithm.
struct Square {
  template <class T> TESSERA_MATH static T f(T x) { return x * x; }
};
struct Cube {
  template <class T> TESSERA_MATH static T f(T x) { return x * x * x; }
};

/// x^exponent. Integers take whole exponents from 0.
struct PowScalar : Unary<PowScalar> {
  double exponent = 2;
  static constexpr std::string_view name = "pow_scalar";
  static constexpr double kKnown[][2] = {{1.5, 2.25}, {-2, -8}, {3, 81}, {-1.5, -1.5}, {5, 1}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(0);
  static constexpr double kLow = 0.3, kHigh = 2.5;
  auto attributes() const { return std::tie(exponent); }
  bool linear(DType) const { return exponent == 1; }
  MetaList meta(Metas in) const;
  template <class Run> void visit(Run&& run) const {
    if (exponent == 2) run(Square{});
    else if (exponent == 3) run(Cube{});
    else run(*this);
  }
  template <class T> TESSERA_MATH T f(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return Pow::f(x, static_cast<T>(exponent));
    } else {
      if (exponent == 2) return Square::f(x);
      if (exponent == 3) return Cube::f(x);
      return Pow::f(x, static_cast<T>(exponent));
    }
  }
  template <class T> TESSERA_MATH bool rare(T x) const {
    return Pow::rare(x, static_cast<T>(exponent));
  }
  template <class T> T exact(T x) const { return Pow::exact(x, static_cast<T>(exponent)); }
  Tensor grad(const Saved& s, const Tensor& dy) const;
};

struct Reciprocal : Unary<Reciprocal> {
  static constexpr std::string_view name = "reciprocal";
  static constexpr double kKnown[][2] = {{4, 0.25}, {-0.5, -2}};
  static constexpr Saves saves = Saves::output();
  static constexpr double kLow = 0.5, kHigh = 2;
  template <class T> TESSERA_MATH static T f(T x) { return T(1) / x; }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return neg(mul(dy, mul(s.output(), s.output())));
  }
};

/// |x|; the lowest integer stays itself. The gradient at 0 is 0.
struct Abs : Unary<Abs> {
  static constexpr std::string_view name = "abs";
  static constexpr double kKnown[][2] = {{-2.5, 2.5}, {3, 3}, {-4, 4}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(0);
  static constexpr auto kFirst = kSmoothPoints;
  template <class T> TESSERA_MATH static T f(T x) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // the lowest number stays itself
      return x < 0 ? static_cast<T>(U{0} - static_cast<U>(x)) : x;
    } else {
      return std::abs(x);
    }
  }
  static Tensor grad(const Saved& s, const Tensor& dy) { return mul(dy, sign(s.input(0))); }
};

/// -1, 0 or 1; 0 of NaN.
struct Sign : Unary<Sign> {
  static constexpr std::string_view name = "sign";
  static constexpr double kKnown[][2] = {{-2.5, -1}, {0, 0}, {3, 1}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kMonotone = 1;
  static constexpr auto kFirst = kSmoothPoints;
  template <class T> TESSERA_MATH static T f(T x) {
    return static_cast<T>((x > T(0)) - (x < T(0)));
  }
  static Tensor grad(const Saved&, const Tensor&) { return {}; }
};

/// The largest whole number that is not above x. The gradient is zero.
struct Floor : Unary<Floor> {
  static constexpr std::string_view name = "floor";
  static constexpr double kKnown[][2] = {{-1.5, -2}, {1.75, 1}, {3, 3}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kMonotone = 1;
  static constexpr auto kFirst = kSmoothPoints;
  template <class T> TESSERA_MATH static T f(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return std::floor(x);
  }
  static Tensor grad(const Saved&, const Tensor&) { return {}; }
};

/// To the nearest whole number, halves to the even one.
struct Round : Unary<Round> {
  static constexpr std::string_view name = "round";
  static constexpr double kKnown[][2] = {{2.5, 2}, {3.5, 4}, {-1.25, -1}, {3, 3}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kMonotone = 1;
  static constexpr auto kFirst = kSmoothPoints;
  template <class T> TESSERA_MATH static T f(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return std::rint(x);
  }
  static Tensor grad(const Saved&, const Tensor&) { return {}; }
};

/// min(max(x, low), high); infinite bounds do nothing. NaN stays. The gradient passes at the
/// bounds.
struct Clamp : Fused<Clamp> {
  double low = -std::numeric_limits<double>::infinity(),
         high = std::numeric_limits<double>::infinity();
  static constexpr std::string_view name = "clamp", backward_name = "clamp_backward";
  static constexpr double kKnown[][2] = {{3.5, 2}, {-0.5, 0},  {-4, -4},
                                         {-3, -1}, {2.5, 2.5}, {1.5, 1}};
  static constexpr double kKnownBackward[][3] = {{3.5, 2, 0}, {-0.5, 3, 0}, {-4, 3, 3}, {-1, 3, 3}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(0);
  static constexpr int kMonotone = 1;
  static constexpr auto kFirst = kSmoothPoints;
  auto attributes() const { return std::tie(low, high); }
  bool linear(DType) const {
    return low == -std::numeric_limits<double>::infinity() &&
           high == std::numeric_limits<double>::infinity();
  }
  MetaList meta(Metas in) const;
  /// A bound in T; what lies beyond T's range is its end.
  template <class T> TESSERA_MATH static T bound(double b) {
    if constexpr (std::is_integral_v<T>) {
      constexpr double kEnd = sizeof(T) == 8 ? 9223372036854775808.0 : 2147483648.0;
      if (b >= kEnd) return std::numeric_limits<T>::max();
      if (b < -kEnd) return std::numeric_limits<T>::lowest();
    }
    return static_cast<T>(b);
  }
  template <class T> TESSERA_MATH T f(T x) const {
    const T l = bound<T>(low), h = bound<T>(high);
    const T y = x < l ? l : x;
    return y > h ? h : y;
  }
  template <class T> TESSERA_MATH T pull(T x, T dy) const {
    return (x >= static_cast<T>(low)) & (x <= static_cast<T>(high)) ? dy : T(0);
  }
  static Tensor bend(const Tensor&, const Tensor&, const Tensor&) { return {}; }
};

/// The larger of two; NaN if either is. At ties each gets half of the gradient.
struct Maximum : Binary<Maximum> {
  static constexpr std::string_view name = "maximum";
  static constexpr double kKnown[][3] = {{1, 2, 2}, {-0.5, -3, -0.5}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs();
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr std::array<double, 7> kSecond{0.1, -0.5, 1.6, -2.1, 0.75, 1.1, -1.4};
  template <class T> TESSERA_MATH static T f(T a, T b) { return (a > b) | (a != a) ? a : b; }
  static Tensor grad_a(const Saved& s, const Tensor& dy);
  static Tensor grad_b(const Saved& s, const Tensor& dy);
};
struct Minimum : Binary<Minimum> {
  static constexpr std::string_view name = "minimum";
  static constexpr double kKnown[][3] = {{1, 2, 1}, {-0.5, -3, -3}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs();
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr auto kSecond = Maximum::kSecond;
  template <class T> TESSERA_MATH static T f(T a, T b) { return (a < b) | (a != a) ? a : b; }
  static Tensor grad_a(const Saved& s, const Tensor& dy);
  static Tensor grad_b(const Saved& s, const Tensor& dy);
};
/// What of dy goes to a in maximum(a, b), and to b in minimum(a, b): nothing where a < b, half
/// where they are equal.
struct MaximumBackward : Pointwise<MaximumBackward, 3> {
  static constexpr std::string_view name = "maximum_backward";
  static constexpr double kKnown[][4] = {{1, 2, 3, 0}, {2, 1, 3, 3}, {2, 2, 3, 1.5}};
  static constexpr Saves saves = Saves::input(0, 1);
  static constexpr int kLinear = 4;
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr auto kSecond = Maximum::kSecond;
  template <class T> TESSERA_MATH static T f(T a, T b, T dy) {
    return a < b ? T(0) : (a == b ? T(0.5) * dy : dy);
  }
  Grads vjp(const Saved& s, const Grads& g, Needs needs) const;
};

/// The largest finite number of a floating dtype.
constexpr double largest_number(DType t) {
  switch (t) {
    case DType::f64: return std::numeric_limits<double>::max();
    case DType::f16: return 65504;
    case DType::bf16: return 0x1.fep127;
    case DType::f8_e4m3: return 448;
    case DType::f8_e5m2: return 57344;
    default: return static_cast<double>(std::numeric_limits<float>::max());
  }
}

/// The same values in another dtype: floats round to nearest even, floats to integers truncate.
/// What lies beyond the range of a float becomes infinite (NaN in f8_e4m3, which has no infinity),
/// or with `saturate` its largest number.
struct Cast : Unary<Cast> {
  DType to = DType::f32;
  bool saturate = false;
  static constexpr std::string_view name = "cast";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(to, saturate); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Tensor grad(const Saved& s, const Tensor& dy) const { return cast(dy, s.input_meta(0).dtype); }
  static std::vector<Sample<Cast>> samples();
};

/// A row-major copy.
struct Copy : Unary<Copy> {
  static constexpr std::string_view name = "copy";
  static constexpr double kKnown[][2] = {{-1.5, -1.5}, {1, 1}, {2, 2}};
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  static constexpr int kLinear = kLinearAll;
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return x; }
  static Tensor grad(const Saved&, const Tensor& dy) { return dy; }
};

/// condition ? a : b, elementwise; the condition is bool.
struct Where : Pointwise<Where, 3> {
  static constexpr std::string_view name = "where";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(0);
  static constexpr int kBoolInput = 0;
  ShardingRule sharding(Metas in) const;
  template <class T> TESSERA_MATH static T f(bool c, T a, T b) { return c ? a : b; }
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Where>> samples();
};

/// mask ? value : x, elementwise; the mask is bool.
struct MaskedFill : Pointwise<MaskedFill, 2> {
  Scalar value = 0;
  static constexpr std::string_view name = "masked_fill";
  static constexpr double kKnown[][3] = {{1.5, 1, 3}, {1.5, 1, 0}, {1.5, 0, 1.5}, {-2, 0, -2}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::input(1);
  static constexpr int kBoolInput = 1;
  auto attributes() const { return std::tie(value); }
  auto plan_key() const { return std::tuple(linear(DType::f32)); }
  bool linear(DType) const { return value.real() == 0; }
  MetaList meta(Metas in) const;
  /// The value as a T, where meta has found that it fits.
  template <class T> [[nodiscard]] TESSERA_MATH T constant() const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(value.whole());
    else return static_cast<T>(value.real());
  }
  template <class T> TESSERA_MATH T f(T x, bool m) const { return m ? constant<T>() : x; }
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
};

using pointwise_arithmetic_ops =
    OpList<Add, Sub, Mul, Div, Affine, Remainder, Pow, PowScalar, Reciprocal, Abs, Sign, Floor,
           Round, Clamp, Backward<Clamp>, Maximum, Minimum, MaximumBackward, Cast, Copy, Where,
           MaskedFill>;

}  // namespace op

// Elementwise with broadcasting; both operands of one dtype (cast first: nothing is promoted
// silently). DTypeError otherwise, ShapeError where the shapes do not broadcast.
inline Tensor add(const Tensor& a, const Tensor& b) { return call(op::Add{}, {a, b}); }
inline Tensor sub(const Tensor& a, const Tensor& b) { return call(op::Sub{}, {a, b}); }
inline Tensor mul(const Tensor& a, const Tensor& b) { return call(op::Mul{}, {a, b}); }
inline Tensor div(const Tensor& a, const Tensor& b) { return call(op::Div{}, {a, b}); }
/// a modulo b with the sign of b, as in Python; ValueError where an integer b is zero.
inline Tensor remainder(const Tensor& a, const Tensor& b) { return call(op::Remainder{}, {a, b}); }
/// The larger (smaller) of two, NaN if either is; half of the gradient to each at ties.
inline Tensor maximum(const Tensor& a, const Tensor& b) { return call(op::Maximum{}, {a, b}); }
inline Tensor minimum(const Tensor& a, const Tensor& b) { return call(op::Minimum{}, {a, b}); }
/// x * scale + shift in one pass, -0.0 as a shift being none. Integers wrap around, and take whole
/// numbers in their range (DTypeError, ValueError).
inline Tensor affine(const Tensor& x, Scalar scale, Scalar shift) {
  return call(op::Affine{{}, scale, shift}, {x});
}
inline Tensor neg(const Tensor& x) { return affine(x, -1, -0.0); }
/// x^exponent, by elements or by a constant. Integers take constants that are whole and not
/// negative (DTypeError).
inline Tensor pow(const Tensor& x, const Tensor& exponent) {
  return call(op::Pow{}, {x, exponent});
}
inline Tensor pow(const Tensor& x, double exponent) {
  return call(op::PowScalar{{}, exponent}, {x});
}
inline Tensor reciprocal(const Tensor& x) { return call(op::Reciprocal{}, {x}); }
inline Tensor abs(const Tensor& x) { return call(op::Abs{}, {x}); }
inline Tensor sign(const Tensor& x) { return call(op::Sign{}, {x}); }
inline Tensor floor(const Tensor& x) { return call(op::Floor{}, {x}); }
/// Halves go to the even neighbour.
inline Tensor round(const Tensor& x) { return call(op::Round{}, {x}); }

/// Bounds of clamp; leave one out by not naming it.
struct Bounds {
  double min = -std::numeric_limits<double>::infinity(),
         max = std::numeric_limits<double>::infinity();
};
/// x within `bounds`, e.g. `clamp(x, {.min = 0})`; `max` where min > max. Integers take whole
/// bounds (DTypeError).
inline Tensor clamp(const Tensor& x, Bounds bounds) {
  return call(op::Clamp{{}, bounds.min, bounds.max}, {x});
}
/// x itself when it already has `dtype`.
inline Tensor cast(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : call(op::Cast{{}, dtype}, {x});
}
/// How cast treats what lies beyond the range of `dtype`.
struct CastOptions {
  /// Numbers and infinities beyond the range of `dtype` become its largest and lowest number, as
  /// quantization wants; NaN stays. DTypeError unless `dtype` is a float.
  bool saturate = false;
};
/// cast(x, DType::f8_e4m3, {.saturate = true}): 1000 becomes 448, where it would be NaN without.
inline Tensor cast(const Tensor& x, DType dtype, CastOptions options) {
  return x.dtype() == dtype ? x : call(op::Cast{{}, dtype, options.saturate}, {x});
}
inline Tensor copy(const Tensor& x) { return call(op::Copy{}, {x}); }
/// x itself when it already is row-major.
inline Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : copy(x); }
/// condition ? a : b; the bool condition, a and b broadcast. One of a and b may be a number.
inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return call(op::Where{}, {condition, a, b});
}
inline Tensor where(const Tensor& condition, Scalar a, const Tensor& b) {
  return masked_fill(b, condition, a);
}
TESSERA_API Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
/// x, and `value` where the bool mask is true. The two broadcast.
inline Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
  return call(op::MaskedFill{{}, value}, {x, mask});
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Elementary functions and activations of the pointwise family, on floats.
#pragma once

#include "tessera/kernels/pointwise/pointwise_family.h"

namespace tessera {
namespace op {

struct Exp : Unary<Exp> {
  static constexpr std::string_view name = "exp";
  static constexpr double kKnown[][2] = {{1, 2.718281828459045}, {-0.5, 0.6065306597126334}};
  static constexpr Saves saves = Saves::output();
  static constexpr bool kLong = true;
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::exp(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return mul(dy, s.output()); }
};

struct Expm1 : Unary<Expm1> {
  static constexpr std::string_view name = "expm1";
  static constexpr double kKnown[][2] = {{1, 1.718281828459045}, {-0.5, -0.3934693402873666}};
  static constexpr Saves saves = Saves::output();
  static constexpr bool kLong = true;
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::expm1(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return mul(dy, affine(s.output(), 1, 1)); }
};

struct Log : Unary<Log> {
  static constexpr std::string_view name = "log";
  static constexpr double kKnown[][2] = {{2, 0.6931471805599453}, {0.25, -1.3862943611198906}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  static constexpr double kLow = 0.1, kHigh = 4;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::log_of_normal(x); }
  template <class T> TESSERA_MATH static bool rare(T x) { return vmath::rare_logarithm(x); }
  template <class T> TESSERA_MATH static T exact(T x) { return vmath::log(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return div(dy, s.input(0)); }
};

struct Log1p : Unary<Log1p> {
  static constexpr std::string_view name = "log1p";
  static constexpr double kKnown[][2] = {{1, 0.6931471805599453}, {-0.5, -0.6931471805599453}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  static constexpr double kLow = -0.8, kHigh = 4;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::log1p(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return div(dy, affine(s.input(0), 1, 1)); }
};

/// Logarithms to the bases 2 and 10.
template <class Op> struct LogToBase : Unary<Op> {
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  static constexpr double kLow = 0.1, kHigh = 4;
  template <class T> TESSERA_MATH static bool rare(T x) { return vmath::rare_logarithm(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return div(affine(dy, 1 / Op::kLogOfBase, 0), s.input(0));
  }
};
struct Log2 : LogToBase<Log2> {
  static constexpr std::string_view name = "log2";
  static constexpr double kKnown[][2] = {{8, 3}, {0.75, -0.41503749927884376}};
  static constexpr double kLogOfBase = 0.69314718055994531;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::log2_of_normal(x); }
  template <class T> TESSERA_MATH static T exact(T x) { return vmath::log2(x); }
};
struct Log10 : LogToBase<Log10> {
  static constexpr std::string_view name = "log10";
  static constexpr double kKnown[][2] = {{1000, 3}, {0.5, -0.3010299956639812}};
  static constexpr double kLogOfBase = 2.3025850929940457;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::log10_of_normal(x); }
  template <class T> TESSERA_MATH static T exact(T x) { return vmath::log10(x); }
};

/// 2^x.
struct Exp2 : Unary<Exp2> {
  static constexpr std::string_view name = "exp2";
  static constexpr double kKnown[][2] = {
      {3, 8}, {0.5, 1.4142135623730951}, {-1.5, 0.35355339059327373}};
  static constexpr Saves saves = Saves::output();
  static constexpr bool kLong = true;
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::exp2(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return affine(mul(dy, s.output()), Log2::kLogOfBase, 0);
  }
};

struct Sqrt : Unary<Sqrt> {
  static constexpr std::string_view name = "sqrt";
  static constexpr double kKnown[][2] = {{2, 1.4142135623730951}, {0.25, 0.5}};
  static constexpr Saves saves = Saves::output();
  static constexpr double kLow = 0.1, kHigh = 4;
  template <class T> TESSERA_MATH static T f(T x) { return std::sqrt(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return affine(div(dy, s.output()), 0.5, 0);
  }
};

struct Rsqrt : Fused<Rsqrt> {
  static constexpr std::string_view name = "rsqrt", backward_name = "rsqrt_backward";
  static constexpr double kKnown[][2] = {{2, 0.7071067811865475}, {0.25, 2}};
  static constexpr double kKnownBackward[][3] = {{0.5, 3, -0.1875}};
  static constexpr Saves saves = Saves::output();
  static constexpr double kLow = 0.1, kHigh = 4;
  template <class T> TESSERA_MATH static T f(T x) { return T(1) / std::sqrt(x); }
  template <class T> TESSERA_MATH static T pull(T y, T dy) { return T(-0.5) * dy * (y * y * y); }
  static Tensor bend(const Tensor& y, const Tensor& dy, const Tensor& g) {
    return affine(mul(mul(dy, g), mul(y, y)), -1.5, 0);
  }
};

struct Sin : Unary<Sin> {
  static constexpr std::string_view name = "sin";
  static constexpr double kKnown[][2] = {{1, 0.8414709848078965}, {-2.5, -0.5984721441039565}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::sin(x); }
  template <class T> TESSERA_MATH static bool rare(T x) { return vmath::rare_angle(x); }
  template <class T> static T exact(T x) { return std::sin(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return mul(dy, cos(s.input(0))); }
};

struct Cos : Unary<Cos> {
  static constexpr std::string_view name = "cos";
  static constexpr double kKnown[][2] = {{1, 0.5403023058681398}, {-2.5, -0.8011436155469337}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::cos(x); }
  template <class T> TESSERA_MATH static bool rare(T x) { return vmath::rare_angle(x); }
  template <class T> static T exact(T x) { return std::cos(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return affine(mul(dy, sin(s.input(0))), -1, 0);
  }
};

struct Tanh : Fused<Tanh> {
  static constexpr std::string_view name = "tanh", backward_name = "tanh_backward";
  static constexpr double kKnown[][2] = {{0.5, 0.46211715726000974}, {-1, -0.7615941559557649}};
  static constexpr double kKnownBackward[][3] = {{0.5, 3, 2.25}};
  static constexpr Saves saves = Saves::output();
  static constexpr bool kLong = true;
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::tanh(x); }
  template <class T> TESSERA_MATH static T pull(T y, T dy) { return dy * (T(1) - y * y); }
  static Tensor bend(const Tensor& y, const Tensor& dy, const Tensor& g) {
    return affine(mul(mul(dy, g), y), -2, 0);
  }
};

struct Erf : Fused<Erf> {
  static constexpr std::string_view name = "erf", backward_name = "erf_backward";
  static constexpr double kKnown[][2] = {{0.5, 0.5204998778130465}, {-1, -0.8427007929497149}};
  static constexpr double kKnownBackward[][3] = {{0.5, 3, 2.6363477368063344},
                                                 {-1, 1, 0.4151074974205947}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::erf(x); }
  template <class T> TESSERA_MATH static T pull(T x, T dy) {
    return dy * (T(1.1283791670955126) * vmath::exp(-x * x));
  }
  static Tensor bend(const Tensor& x, const Tensor& dy, const Tensor& g);
};

/// 1 / (1 + exp(-x)).
struct Sigmoid : Fused<Sigmoid> {
  static constexpr std::string_view name = "sigmoid", backward_name = "sigmoid_backward";
  static constexpr double kKnown[][2] = {{1, 0.7310585786300049}, {-2, 0.11920292202211755}};
  static constexpr double kKnownBackward[][3] = {{0.25, 2, 0.375}};
  static constexpr Saves saves = Saves::output();
  static constexpr bool kLong = true;
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::sigmoid(x); }
  template <class T> TESSERA_MATH static T pull(T y, T dy) { return dy * (y * (T(1) - y)); }
  static Tensor bend(const Tensor& y, const Tensor& dy, const Tensor& g) {
    return mul(mul(dy, g), affine(y, -2, 1));
  }
};

/// max(x, 0); NaN stays. The gradient at 0 is 0.
struct Relu : Fused<Relu> {
  static constexpr std::string_view name = "relu", backward_name = "relu_backward";
  static constexpr double kKnown[][2] = {{-1.5, 0}, {2, 2}};
  static constexpr double kKnownBackward[][3] = {{0, 3, 0}, {2, 3, 3}};
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::output();
  static constexpr int kMonotone = 1;
  static constexpr auto kFirst = kSmoothPoints;
  template <class T> TESSERA_MATH static T f(T x) { return x < T(0) ? T(0) : x; }
  template <class T> TESSERA_MATH static T pull(T y, T dy) { return y > T(0) ? dy : T(0); }
  static Tensor bend(const Tensor&, const Tensor&, const Tensor&) { return {}; }
};

/// x * sigmoid(x).
struct Silu : Fused<Silu> {
  static constexpr std::string_view name = "silu", backward_name = "silu_backward";
  static constexpr double kKnown[][2] = {{1, 0.7310585786300049}, {-2, -0.2384058440442351}};
  static constexpr double kKnownBackward[][3] = {{1, 1, 0.9276705118714869},
                                                 {-2, 3, -0.27235274635468637}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  template <class T> TESSERA_MATH static T f(T x) { return x * vmath::sigmoid(x); }
  template <class T> TESSERA_MATH static T pull(T x, T dy) {
    const T s = vmath::sigmoid(x);
    return dy * (s * (T(1) + x * (T(1) - s)));
  }
  static Tensor bend(const Tensor& x, const Tensor& dy, const Tensor& g);
};

/// The two formulas of gelu: x Phi(x), and its tanh approximation (Hendrycks and Gimpel, 2016).
struct ExactGelu {
  static constexpr bool kLong = true;
  /// Far out nothing changes any more, and infinity times 0 is no number.
  template <class T> TESSERA_MATH static T within(T x) { return vmath::within(x, T(-64), T(64)); }
  template <class T> TESSERA_MATH static T f(T x) {
    return x * vmath::normal_cdf(x, vmath::bell(within(x)));
  }
  template <class T> TESSERA_MATH static T pull(T x, T dy) {
    const T c = within(x), e = vmath::bell(c);
    const T slope = vmath::fma(c * T(0.3989422804014327), e, vmath::normal_cdf(x, e));
    return x != x ? x : dy * slope;
  }
};
/// x / 2 (1 + tanh(z / 2)) is x sigmoid(z), which keeps its digits if the tanh comes near -1.
struct TanhGelu {
  static constexpr bool kLong = true;
  /// z = slope x + cubic x^3, with sqrt(8 / pi) and 0.044715 of it. In f32 a coefficient is a float
  /// and what that lacks; the float of the slope has so few bits that differences from it are
  /// exact.
  static constexpr double kSlope = 1.5957691216057308, kCubic = 0.07135481627260025;
  template <class T> static constexpr double kSlopeOf = sizeof(T) < 8 ? 418321.0 / 262144 : kSlope;
  template <class T> static constexpr double kCubicOf = sizeof(T) < 8 ? 0.0713548139f : kCubic;
  /// Far out the sigmoid is 0 or 1 in every dtype, and powers of x would overflow.
  template <class T> TESSERA_MATH static T within(T x) { return vmath::within(x, T(-32), T(32)); }
  /// sigmoid(z). Its relative error in the tail is the error of z, which is large there: so what
  /// the roundings of z drop is added by the slope of the sigmoid.
  template <class T> TESSERA_MATH static T gate(T c) {
    constexpr T slope = T(kSlopeOf<T>), slope_rest = T(kSlope - kSlopeOf<T>);
    constexpr T cubic = T(kCubicOf<T>), cubic_rest = T(kCubic - kCubicOf<T>);
    const T square = c * c, factor = vmath::fma(cubic, square, slope), z = c * factor;
    const T factor_rest =
        vmath::fma(cubic, square, slope - factor) +
        vmath::fma(cubic, vmath::fma(c, c, -square), vmath::fma(cubic_rest, square, slope_rest));
    const T z_rest = vmath::fma(c, factor_rest, vmath::fma(c, factor, -z));
    const T s = vmath::sigmoid(z);
    return vmath::fma(s * (T(1) - s), z_rest, s);
  }
  template <class T> TESSERA_MATH static T f(T x) { return x * gate(within(x)); }
  /// The slopes at x and -x sum to 1, and the one below 0 keeps its digits.
  template <class T> TESSERA_MATH static T pull(T x, T dy) {
    const T c = within(x), below = c < T(0) ? c : -c, s = gate(below);
    const T dz = vmath::fma(T(3 * kCubic), c * c, T(kSlope));
    const T slope = s * vmath::fma(below * (T(1) - s), dz, T(1));
    return x != x ? x : dy * (c < T(0) ? slope : T(1) - slope);
  }
};
struct Gelu : Fused<Gelu> {
  bool tanh_approximation = false;
  static constexpr std::string_view name = "gelu", backward_name = "gelu_backward";
  static constexpr double kKnown[][2] = {{1, 0.8413447460685429}, {1, 0.8411919906082768}};
  static constexpr double kKnownBackward[][3] = {{1, 1, 1.0833154705876864},
                                                 {1, 1, 1.0829640838457826}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  auto attributes() const { return std::tie(tanh_approximation); }
  template <class T> TESSERA_MATH T f(T x) const {
    return tanh_approximation ? TanhGelu::f(x) : ExactGelu::f(x);
  }
  template <class T> TESSERA_MATH T pull(T x, T dy) const {
    return tanh_approximation ? TanhGelu::pull(x, dy) : ExactGelu::pull(x, dy);
  }
  template <class Run> void visit(Run&& run) const {
    tanh_approximation ? run(TanhGelu{}) : run(ExactGelu{});
  }
  Tensor bend(const Tensor& input, const Tensor& dy, const Tensor& g) const;
};

/// log(1 + exp(beta x)) / beta; x itself where beta x > threshold.
struct Softplus : Fused<Softplus> {
  double beta = 1, threshold = 20;
  static constexpr std::string_view name = "softplus", backward_name = "softplus_backward";
  static constexpr double kKnown[][2] = {
      {-2, 0.1269280110429725}, {0.5, 0.6007716325381491}, {1, 1.3132616875182228}, {1, 1}};
  static constexpr double kKnownBackward[][3] = {{-2, 3, 0.3576087660663526},
                                                 {0.5, 3, 2.3318995835240734},
                                                 {1, 1, 0.7310585786300049},
                                                 {1, 3, 3}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  static constexpr auto kFirst = kSmoothPoints;
  auto attributes() const { return std::tie(beta, threshold); }
  MetaList meta(Metas in) const;
  template <class T> TESSERA_MATH T f(T x) const {
    const T b = static_cast<T>(beta), z = b * x;
    return z > static_cast<T>(threshold) ? x : vmath::log1p(vmath::exp(z)) / b;
  }
  template <class T> TESSERA_MATH T pull(T x, T dy) const {
    const T z = static_cast<T>(beta) * x;
    return z > static_cast<T>(threshold) ? dy : dy * vmath::sigmoid(z);
  }
  Tensor bend(const Tensor& x, const Tensor& dy, const Tensor& g) const;
};

using pointwise_elementary_ops =
    OpList<Exp, Exp2, Expm1, Log, Log2, Log10, Log1p, Sqrt, Rsqrt, Backward<Rsqrt>, Sin, Cos, Tanh,
           Backward<Tanh>, Erf, Backward<Erf>, Sigmoid, Backward<Sigmoid>, Relu, Backward<Relu>,
           Silu, Backward<Silu>, Gelu, Backward<Gelu>, Softplus, Backward<Softplus>>;

}  // namespace op

inline Tensor exp(const Tensor& x) { return call(op::Exp{}, {x}); }
inline Tensor exp2(const Tensor& x) { return call(op::Exp2{}, {x}); }
/// exp(x) - 1, accurate near 0.
inline Tensor expm1(const Tensor& x) { return call(op::Expm1{}, {x}); }
inline Tensor log(const Tensor& x) { return call(op::Log{}, {x}); }
inline Tensor log2(const Tensor& x) { return call(op::Log2{}, {x}); }
inline Tensor log10(const Tensor& x) { return call(op::Log10{}, {x}); }
/// log(1 + x), accurate near 0.
inline Tensor log1p(const Tensor& x) { return call(op::Log1p{}, {x}); }
inline Tensor sqrt(const Tensor& x) { return call(op::Sqrt{}, {x}); }
inline Tensor rsqrt(const Tensor& x) { return call(op::Rsqrt{}, {x}); }
inline Tensor sin(const Tensor& x) { return call(op::Sin{}, {x}); }
inline Tensor cos(const Tensor& x) { return call(op::Cos{}, {x}); }
inline Tensor tanh(const Tensor& x) { return call(op::Tanh{}, {x}); }
inline Tensor erf(const Tensor& x) { return call(op::Erf{}, {x}); }
inline Tensor sigmoid(const Tensor& x) { return call(op::Sigmoid{}, {x}); }
inline Tensor relu(const Tensor& x) { return call(op::Relu{}, {x}); }
inline Tensor silu(const Tensor& x) { return call(op::Silu{}, {x}); }
inline Tensor gelu(const Tensor& x, bool tanh_approximation = false) {
  return call(op::Gelu{{}, tanh_approximation}, {x});
}
/// log(1 + exp(beta x)) / beta; x itself where beta x > threshold. ValueError unless beta > 0.
inline Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20) {
  return call(op::Softplus{{}, beta, threshold}, {x});
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The pointwise family: out[i] = f(a[i], b[i], ...) over broadcast inputs. The family gives meta,
// sharding, loops, CUDA launch and samples; an op gives its name, f, what it saves and its gradient
// in ops. f computes in f32 for narrower floats. To add one: a struct, its public function, its
// name in pointwise_ops at the end of this file.
#pragma once

#include "tessera/core/op.h"
#include "tessera/kernels/vector_math.h"

#include <cmath>

namespace tessera {

// What gradients below are written with.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor affine(const Tensor& x, double scale, double shift);
Tensor exp(const Tensor& x);
Tensor cast(const Tensor& x, DType dtype);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor greater(const Tensor& a, const Tensor& b);
/// Sums `g` over the dims in which `shape` was broadcast. Defined in the reduce room.
TESSERA_API Tensor sum_to(const Tensor& g, const Shape& shape);

namespace op {

/// What the family's kernels need to know of an op: its input count and output dtype.
template <class Op, int N> struct Pointwise {
  static constexpr int kInputs = N;
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr bool kBoolOutput = false;  // comparisons
  static constexpr int kLinear = 0;  // bit i: linear in input i alone; kLinearAll: in all jointly
  static constexpr int kLinearAll = 1 << 30;
  static constexpr int kMonotone = 0;  // +1: never falls, -1: never rises (of its one input)
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Op>> samples();
};

template <class Op> struct Unary : Pointwise<Op, 1> {
  Grads vjp(const Saved& s, const Grads& dy, Needs) const {
    return {static_cast<const Op*>(this)->grad(s, dy[0])};
  }
};

// grad_a and grad_b have the output's shape; the family sums them to the operands'.
template <class Op> struct Binary : Pointwise<Op, 2> {
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const {
    Grads g(2);
    if (needs[0]) g[0] = sum_to(Op::grad_a(s, dy[0]), s.input_meta(0).shape);
    if (needs[1]) g[1] = sum_to(Op::grad_b(s, dy[0]), s.input_meta(1).shape);
    return g;
  }
};

template <class Op> struct Comparison : Pointwise<Op, 2> {
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8, DType::bool_);
  static constexpr bool kBoolOutput = true;
  static constexpr NotDifferentiable vjp{"the output is a truth value"};
};

struct Add : Binary<Add> {
  static constexpr std::string_view name = "add";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kLinear = kLinearAll;
  template <class T> TESSERA_MATH static T f(T a, T b) { return a + b; }
  static Tensor grad_a(const Saved&, const Tensor& dy) { return dy; }
  static Tensor grad_b(const Saved&, const Tensor& dy) { return dy; }
};

struct Sub : Binary<Sub> {
  static constexpr std::string_view name = "sub";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  static constexpr int kLinear = kLinearAll;
  template <class T> TESSERA_MATH static T f(T a, T b) { return a - b; }
  static Tensor grad_a(const Saved&, const Tensor& dy) { return dy; }
  static Tensor grad_b(const Saved&, const Tensor& dy) { return affine(dy, -1, 0); }
};

struct Mul : Binary<Mul> {
  static constexpr std::string_view name = "mul";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::inputs();
  static constexpr int kLinear = 1 | 2;
  template <class T> TESSERA_MATH static T f(T a, T b) { return a * b; }
  static Tensor grad_a(const Saved& s, const Tensor& dy) { return mul(dy, s.input(1)); }
  static Tensor grad_b(const Saved& s, const Tensor& dy) { return mul(dy, s.input(0)); }
};

struct Div : Binary<Div> {
  static constexpr std::string_view name = "div";
  static constexpr Saves saves = Saves::inputs();
  static constexpr int kLinear = 1;
  template <class T> TESSERA_MATH static T f(T a, T b) { return a / b; }
  static Tensor grad_a(const Saved& s, const Tensor& dy) { return div(dy, s.input(1)); }
  static Tensor grad_b(const Saved& s, const Tensor& dy) {
    return affine(div(div(mul(dy, s.input(0)), s.input(1)), s.input(1)), -1, 0);
  }
};

struct Equal : Comparison<Equal> {
  static constexpr std::string_view name = "equal";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a == b; }
};
struct NotEqual : Comparison<NotEqual> {
  static constexpr std::string_view name = "not_equal";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a != b; }
};
struct Less : Comparison<Less> {
  static constexpr std::string_view name = "less";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a < b; }
};
struct LessEqual : Comparison<LessEqual> {
  static constexpr std::string_view name = "less_equal";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a <= b; }
};
struct Greater : Comparison<Greater> {
  static constexpr std::string_view name = "greater";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a > b; }
};
struct GreaterEqual : Comparison<GreaterEqual> {
  static constexpr std::string_view name = "greater_equal";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a >= b; }
};

/// x * scale + shift, by constants. On integers it is computed in f64 and truncated, so that no
/// constant is.
struct Affine : Unary<Affine> {
  double scale = 1, shift = 0;
  static constexpr std::string_view name = "affine";
  static constexpr DTypeSet dtypes = kNumbers;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(scale, shift); }
  auto plan_key() const { return std::tuple(linear(DType::f32), linear(DType::i64), monotone()); }
  /// Integers are truncated after scaling, so only whole factors are linear on them.
  bool linear(DType t) const {
    return shift == 0 &&
           (is_floating(t) || scale == static_cast<double>(static_cast<int64_t>(scale)));
  }
  int monotone() const { return scale >= 0 ? 1 : -1; }
  template <class T> TESSERA_MATH T f(T x) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<double>(x) * scale + shift);
    else return x * static_cast<T>(scale) + static_cast<T>(shift);
  }
  Tensor grad(const Saved&, const Tensor& dy) const { return affine(dy, scale, 0); }
};

struct Exp : Unary<Exp> {
  static constexpr std::string_view name = "exp";
  static constexpr Saves saves = Saves::output();
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::exp(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return mul(dy, s.output()); }
};

struct Log : Unary<Log> {
  static constexpr std::string_view name = "log";
  static constexpr Saves saves = Saves::input(0);
  static constexpr double kLow = 0.1, kHigh = 4;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::log(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return div(dy, s.input(0)); }
};

struct Rsqrt : Unary<Rsqrt> {
  static constexpr std::string_view name = "rsqrt";
  static constexpr Saves saves = Saves::output();
  static constexpr double kLow = 0.1, kHigh = 4;
  template <class T> TESSERA_MATH static T f(T x) { return T(1) / std::sqrt(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return affine(mul(dy, mul(s.output(), mul(s.output(), s.output()))), -0.5, 0);
  }
};

struct Sin : Unary<Sin> {
  static constexpr std::string_view name = "sin";
  static constexpr Saves saves = Saves::input(0);
  template <class T> TESSERA_MATH static T f(T x) { return std::sin(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) { return mul(dy, cos(s.input(0))); }
};

struct Cos : Unary<Cos> {
  static constexpr std::string_view name = "cos";
  static constexpr Saves saves = Saves::input(0);
  template <class T> TESSERA_MATH static T f(T x) { return std::cos(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return affine(mul(dy, sin(s.input(0))), -1, 0);
  }
};

struct Tanh : Unary<Tanh> {
  static constexpr std::string_view name = "tanh";
  static constexpr Saves saves = Saves::output();
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::tanh(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return mul(dy, affine(mul(s.output(), s.output()), -1, 1));
  }
};

struct Erf : Unary<Erf> {
  static constexpr std::string_view name = "erf";
  static constexpr Saves saves = Saves::input(0);
  static constexpr int kMonotone = 1;
  template <class T> TESSERA_MATH static T f(T x) { return vmath::erf(x); }
  static Tensor grad(const Saved& s, const Tensor& dy) {
    return mul(dy, affine(exp(affine(mul(s.input(0), s.input(0)), -1, 0)), 1.1283791670955126, 0));
  }
};

/// x * sigmoid(x).
struct Silu : Unary<Silu> {
  static constexpr std::string_view name = "silu";
  static constexpr Saves saves = Saves::input(0);
  template <class T> TESSERA_MATH static T f(T x) { return x * vmath::sigmoid(x); }
  static Tensor grad(const Saved& s, const Tensor& dy);
};

/// x * Phi(x), or its tanh approximation (Hendrycks and Gimpel, 2016).
struct Gelu : Unary<Gelu> {
  bool tanh_approximation = false;
  static constexpr std::string_view name = "gelu";
  static constexpr Saves saves = Saves::input(0);
  auto attributes() const { return std::tie(tanh_approximation); }
  template <class T> TESSERA_MATH T f(T x) const {
    if (!tanh_approximation) return T(0.5) * x * (T(1) + vmath::erf(x * T(0.70710678118654752)));
    return T(0.5) * x *
           (T(1) + vmath::tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x)));
  }
  Tensor grad(const Saved& s, const Tensor& dy) const;
};

/// The same values in another dtype: floats round to nearest even, floats to integers truncate.
struct Cast : Unary<Cast> {
  DType to = DType::f32;
  static constexpr std::string_view name = "cast";
  static constexpr DTypeSet dtypes = kAllDTypes;
  static constexpr Saves saves = Saves::none();
  auto attributes() const { return std::tie(to); }
  MetaList meta(Metas in) const { return {{in[0].shape, to, in[0].device}}; }
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Tensor grad(const Saved& s, const Tensor& dy) const { return cast(dy, s.input_meta(0).dtype); }
  static std::vector<Sample<Cast>> samples();
};

/// A row-major copy.
struct Copy : Unary<Copy> {
  static constexpr std::string_view name = "copy";
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
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  template <class T> TESSERA_MATH static T f(bool c, T a, T b) { return c ? a : b; }
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const;
  static std::vector<Sample<Where>> samples();
};

using pointwise_ops =
    OpList<Add, Sub, Mul, Div, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, Affine, Exp,
           Log, Rsqrt, Sin, Cos, Tanh, Erf, Silu, Gelu, Cast, Copy, Where>;

}  // namespace op

// Elementwise with broadcasting; both operands of one dtype (cast first: nothing is promoted
// silently).
inline Tensor add(const Tensor& a, const Tensor& b) { return call(op::Add{}, {a, b}); }
inline Tensor sub(const Tensor& a, const Tensor& b) { return call(op::Sub{}, {a, b}); }
inline Tensor mul(const Tensor& a, const Tensor& b) { return call(op::Mul{}, {a, b}); }
inline Tensor div(const Tensor& a, const Tensor& b) { return call(op::Div{}, {a, b}); }
inline Tensor equal(const Tensor& a, const Tensor& b) { return call(op::Equal{}, {a, b}); }
inline Tensor not_equal(const Tensor& a, const Tensor& b) { return call(op::NotEqual{}, {a, b}); }
inline Tensor less(const Tensor& a, const Tensor& b) { return call(op::Less{}, {a, b}); }
inline Tensor less_equal(const Tensor& a, const Tensor& b) { return call(op::LessEqual{}, {a, b}); }
inline Tensor greater(const Tensor& a, const Tensor& b) { return call(op::Greater{}, {a, b}); }
inline Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return call(op::GreaterEqual{}, {a, b});
}
/// x * scale + shift.
inline Tensor affine(const Tensor& x, double scale, double shift) {
  return call(op::Affine{{}, scale, shift}, {x});
}
inline Tensor neg(const Tensor& x) { return affine(x, -1, 0); }
inline Tensor exp(const Tensor& x) { return call(op::Exp{}, {x}); }
inline Tensor log(const Tensor& x) { return call(op::Log{}, {x}); }
inline Tensor rsqrt(const Tensor& x) { return call(op::Rsqrt{}, {x}); }
inline Tensor sin(const Tensor& x) { return call(op::Sin{}, {x}); }
inline Tensor cos(const Tensor& x) { return call(op::Cos{}, {x}); }
inline Tensor tanh(const Tensor& x) { return call(op::Tanh{}, {x}); }
inline Tensor erf(const Tensor& x) { return call(op::Erf{}, {x}); }
inline Tensor silu(const Tensor& x) { return call(op::Silu{}, {x}); }
inline Tensor gelu(const Tensor& x, bool tanh_approximation = false) {
  return call(op::Gelu{{}, tanh_approximation}, {x});
}
/// x itself when it already has `dtype`.
inline Tensor cast(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : call(op::Cast{{}, dtype}, {x});
}
inline Tensor copy(const Tensor& x) { return call(op::Copy{}, {x}); }
/// x itself when it already is row-major.
inline Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : copy(x); }
inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return call(op::Where{}, {condition, a, b});
}

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return affine(a, 1, b); }
inline Tensor operator-(const Tensor& a, double b) { return affine(a, 1, -b); }
inline Tensor operator*(const Tensor& a, double b) { return affine(a, b, 0); }
/// DTypeError on integers: their quotients are no integers; cast first.
inline Tensor operator/(const Tensor& a, double b) {
  if (!is_floating(a.dtype()))
    fail<DTypeError>("div", a.meta(), " / ", b, ": cast to a floating dtype first");
  return affine(a, 1 / b, 0);
}
inline Tensor operator*(double a, const Tensor& b) { return affine(b, a, 0); }
inline Tensor operator-(const Tensor& a) { return affine(a, -1, 0); }

}  // namespace tessera

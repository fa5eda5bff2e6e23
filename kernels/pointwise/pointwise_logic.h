// SPDX-License-Identifier: Apache-2.0
// Comparisons and logic of the pointwise family: outputs are bool and have no gradient. Logic takes
// bool alone; compare first (`not_equal(x, zero)`).
#pragma once

#include "tessera/kernels/pointwise/pointwise_family.h"

namespace tessera {
namespace op {

template <class Op> struct Comparison : Pointwise<Op, 2> {
  static constexpr DTypeSet dtypes = kNumbers | dtypes_of(DType::u8, DType::bool_);
  static constexpr bool kBoolOutput = true;
  static constexpr NotDifferentiable vjp{"the output is a truth value"};
};
template <class Op> struct Logic : Comparison<Op> {
  static constexpr DTypeSet dtypes = dtypes_of(DType::bool_);
};
template <class Op> struct Predicate : Pointwise<Op, 1> {
  static constexpr bool kBoolOutput = true;
  static constexpr NotDifferentiable vjp{"the output is a truth value"};
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

struct LogicalAnd : Logic<LogicalAnd> {
  static constexpr std::string_view name = "logical_and";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a & b; }
};
struct LogicalOr : Logic<LogicalOr> {
  static constexpr std::string_view name = "logical_or";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a | b; }
};
struct LogicalXor : Logic<LogicalXor> {
  static constexpr std::string_view name = "logical_xor";
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a != b; }
};
struct LogicalNot : Predicate<LogicalNot> {
  static constexpr std::string_view name = "logical_not";
  static constexpr DTypeSet dtypes = dtypes_of(DType::bool_);
  template <class T> TESSERA_MATH static bool f(T x) { return !x; }
};

struct IsNan : Predicate<IsNan> {
  static constexpr std::string_view name = "isnan";
  template <class T> TESSERA_MATH static bool f(T x) { return x != x; }
};
struct IsFinite : Predicate<IsFinite> {
  static constexpr std::string_view name = "isfinite";
  template <class T> TESSERA_MATH static bool f(T x) { return x - x == T(0); }
};

using pointwise_logic_ops = OpList<Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual,
                                   LogicalAnd, LogicalOr, LogicalXor, LogicalNot, IsNan, IsFinite>;

}  // namespace op

// Elementwise with broadcasting, operands of one dtype -> bool.
inline Tensor equal(const Tensor& a, const Tensor& b) { return call(op::Equal{}, {a, b}); }
inline Tensor not_equal(const Tensor& a, const Tensor& b) { return call(op::NotEqual{}, {a, b}); }
inline Tensor less(const Tensor& a, const Tensor& b) { return call(op::Less{}, {a, b}); }
inline Tensor less_equal(const Tensor& a, const Tensor& b) { return call(op::LessEqual{}, {a, b}); }
inline Tensor greater(const Tensor& a, const Tensor& b) { return call(op::Greater{}, {a, b}); }
inline Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return call(op::GreaterEqual{}, {a, b});
}
// bool -> bool; DTypeError for anything else.
inline Tensor logical_and(const Tensor& a, const Tensor& b) {
  return call(op::LogicalAnd{}, {a, b});
}
inline Tensor logical_or(const Tensor& a, const Tensor& b) { return call(op::LogicalOr{}, {a, b}); }
inline Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return call(op::LogicalXor{}, {a, b});
}
inline Tensor logical_not(const Tensor& x) { return call(op::LogicalNot{}, {x}); }
/// Floats -> bool.
inline Tensor isnan(const Tensor& x) { return call(op::IsNan{}, {x}); }
/// Neither NaN nor infinite.
inline Tensor isfinite(const Tensor& x) { return call(op::IsFinite{}, {x}); }

}  // namespace tessera

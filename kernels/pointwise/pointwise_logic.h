// SPDX-License-Identifier: Apache-2.0
// Comparisons and logic of the pointwise family: outputs are bool and have no gradient. Logic takes
// bool alone; compare first (`x != 0`).
#pragma once

#include "tessera/kernels/pointwise/pointwise_family.h"

#include <limits>

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
  static constexpr double kKnown[][3] = {{-1.5, 2, 0}, {1, 1, 1}, {3, 2, 0}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a == b; }
};
struct NotEqual : Comparison<NotEqual> {
  static constexpr std::string_view name = "not_equal";
  static constexpr double kKnown[][3] = {{-1.5, 2, 1}, {1, 1, 0}, {3, 2, 1}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a != b; }
};
struct Less : Comparison<Less> {
  static constexpr std::string_view name = "less";
  static constexpr double kKnown[][3] = {{-1.5, 2, 1}, {1, 1, 0}, {3, 2, 0}, {0, 1, 1}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a < b; }
};
struct LessEqual : Comparison<LessEqual> {
  static constexpr std::string_view name = "less_equal";
  static constexpr double kKnown[][3] = {{-1.5, 2, 1}, {1, 1, 1}, {3, 2, 0}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a <= b; }
};
struct Greater : Comparison<Greater> {
  static constexpr std::string_view name = "greater";
  static constexpr double kKnown[][3] = {{-1.5, 2, 0}, {1, 1, 0}, {3, 2, 1}, {1, 0, 1}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a > b; }
};
struct GreaterEqual : Comparison<GreaterEqual> {
  static constexpr std::string_view name = "greater_equal";
  static constexpr double kKnown[][3] = {{-1.5, 2, 0}, {1, 1, 1}, {3, 2, 1}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a >= b; }
};

/// How CompareScalar compares.
enum class Relation : uint8_t { equal, not_equal, less, less_equal, greater, greater_equal };
TESSERA_API std::ostream& operator<<(std::ostream&, Relation);

/// x compared with a number in one relation. Integers compare with all bits of a whole number, and
/// as doubles with another.
template <class Of> struct Against {
  Scalar value;
  template <class T> TESSERA_MATH bool f(T x) const {
    if constexpr (!std::is_integral_v<T>) return Of::f(x, static_cast<T>(value.real()));
    else if (value.is_whole()) return Of::f(static_cast<int64_t>(x), value.whole());
    else return Of::f(static_cast<double>(x), value.real());
  }
};

/// x compared with a number, by `relation`.
struct CompareScalar : Predicate<CompareScalar> {
  Relation relation = Relation::equal;
  Scalar value;
  static constexpr std::string_view name = "compare_scalar";
  static constexpr double kKnown[][2] = {{1, 1}, {0, 0}, {-1, 1}, {-1, 1}, {-1, 0}, {0, 0},
                                         {2, 0}, {3, 1}, {1, 0},  {0, 0},  {0, 1},  {1, 1}};
  static constexpr DTypeSet dtypes = Equal::dtypes;
  auto attributes() const { return std::tie(relation, value); }
  auto plan_key() const { return std::tuple<>(); }
  template <class Run> TESSERA_MATH decltype(auto) visit(Run&& run) const {
    switch (relation) {
      case Relation::equal: return run(Against<Equal>{value});
      case Relation::not_equal: return run(Against<NotEqual>{value});
      case Relation::less: return run(Against<Less>{value});
      case Relation::less_equal: return run(Against<LessEqual>{value});
      case Relation::greater: return run(Against<Greater>{value});
      default: return run(Against<GreaterEqual>{value});
    }
  }
  template <class T> TESSERA_MATH bool f(T x) const {
    return visit([x](const auto& formula) { return formula.f(x); });
  }
};

struct LogicalAnd : Logic<LogicalAnd> {
  static constexpr std::string_view name = "logical_and";
  static constexpr double kKnown[][3] = {{0, 0, 0}, {0, 1, 0}, {1, 1, 1}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a & b; }
};
struct LogicalOr : Logic<LogicalOr> {
  static constexpr std::string_view name = "logical_or";
  static constexpr double kKnown[][3] = {{0, 0, 0}, {0, 1, 1}, {1, 1, 1}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a | b; }
};
struct LogicalXor : Logic<LogicalXor> {
  static constexpr std::string_view name = "logical_xor";
  static constexpr double kKnown[][3] = {{0, 0, 0}, {0, 1, 1}, {1, 1, 0}};
  template <class T> TESSERA_MATH static bool f(T a, T b) { return a != b; }
};
struct LogicalNot : Predicate<LogicalNot> {
  static constexpr std::string_view name = "logical_not";
  static constexpr double kKnown[][2] = {{0, 1}, {1, 0}};
  static constexpr DTypeSet dtypes = dtypes_of(DType::bool_);
  template <class T> TESSERA_MATH static bool f(T x) { return !x; }
};

struct IsNan : Predicate<IsNan> {
  static constexpr std::string_view name = "isnan";
  static constexpr double kKnown[][2] = {{std::numeric_limits<double>::quiet_NaN(), 1}, {1, 0}};
  template <class T> TESSERA_MATH static bool f(T x) { return x != x; }
};
struct IsInf : Predicate<IsInf> {
  static constexpr std::string_view name = "isinf";
  static constexpr double kKnown[][2] = {{INFINITY, 1}, {-INFINITY, 1}, {NAN, 0}, {2, 0}};
  // inf - inf is NaN, and x itself is none.
  template <class T> TESSERA_MATH static bool f(T x) { return (x - x != x - x) & (x == x); }
};
struct IsFinite : Predicate<IsFinite> {
  static constexpr std::string_view name = "isfinite";
  static constexpr double kKnown[][2] = {{std::numeric_limits<double>::infinity(), 0}, {1, 1}};
  template <class T> TESSERA_MATH static bool f(T x) { return x - x == T(0); }
};

using pointwise_logic_ops =
    OpList<Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, CompareScalar, LogicalAnd,
           LogicalOr, LogicalXor, LogicalNot, IsNan, IsInf, IsFinite>;

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
/// x compared with a number, rounded to x's dtype where that is floating; integers compare with
/// fractions as numbers do.
TESSERA_API Tensor compare(const Tensor& x, op::Relation relation, Scalar value);
inline Tensor equal(const Tensor& x, Scalar b) { return compare(x, op::Relation::equal, b); }
inline Tensor not_equal(const Tensor& x, Scalar b) {
  return compare(x, op::Relation::not_equal, b);
}
inline Tensor less(const Tensor& x, Scalar b) { return compare(x, op::Relation::less, b); }
inline Tensor less_equal(const Tensor& x, Scalar b) {
  return compare(x, op::Relation::less_equal, b);
}
inline Tensor greater(const Tensor& x, Scalar b) { return compare(x, op::Relation::greater, b); }
inline Tensor greater_equal(const Tensor& x, Scalar b) {
  return compare(x, op::Relation::greater_equal, b);
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
inline Tensor isinf(const Tensor& x) { return call(op::IsInf{}, {x}); }
/// Neither NaN nor infinite.
inline Tensor isfinite(const Tensor& x) { return call(op::IsFinite{}, {x}); }

}  // namespace tessera

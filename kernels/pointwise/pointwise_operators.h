// SPDX-License-Identifier: Apache-2.0
// Operators on tensors, and tensors and numbers on either side: + - * / %, comparisons, and logic
// of bool tensors. Tensors share one dtype, numbers take the tensor's: nothing is promoted, an
// integer tensor and a fraction are a DTypeError. Writing in place (`x += y`) stands in assign.h.
#pragma once

#include "tessera/kernels/pointwise/pointwise_arithmetic.h"
#include "tessera/kernels/pointwise/pointwise_logic.h"

namespace tessera {

/// a / x and a % x of each element, a^x; the number is rounded to x's dtype.
TESSERA_API Tensor div(Scalar a, const Tensor& x);
TESSERA_API Tensor remainder(Scalar a, const Tensor& x);
TESSERA_API Tensor pow(Scalar a, const Tensor& x);
/// x modulo b with the sign of b; ValueError where x is of integers and b is 0.
TESSERA_API Tensor remainder(const Tensor& x, Scalar b);
/// x / b. DTypeError on integers: their quotients are no integers; cast first.
TESSERA_API Tensor div(const Tensor& x, Scalar b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& x, Scalar b) { return affine(x, 1, b); }
inline Tensor operator+(Scalar a, const Tensor& x) { return affine(x, 1, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& x, Scalar b) { return affine(x, 1, -b); }
inline Tensor operator-(Scalar a, const Tensor& x) { return affine(x, -1, a); }
inline Tensor operator-(const Tensor& x) { return neg(x); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& x, Scalar b) { return affine(x, b, -0.0); }
inline Tensor operator*(Scalar a, const Tensor& x) { return affine(x, a, -0.0); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& x, Scalar b) { return div(x, b); }
inline Tensor operator/(Scalar a, const Tensor& x) { return div(a, x); }
/// The sign of the divisor, as in Python.
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& x, Scalar b) { return remainder(x, b); }
inline Tensor operator%(Scalar a, const Tensor& x) { return remainder(a, x); }

// Comparisons give a bool tensor: `any(x > 0)`, `where(x > 0, x, y)`. A tensor is no condition.
inline Tensor operator==(const Tensor& a, const Tensor& b) { return equal(a, b); }
inline Tensor operator==(const Tensor& x, Scalar b) { return equal(x, b); }
inline Tensor operator==(Scalar a, const Tensor& x) { return equal(x, a); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return not_equal(a, b); }
inline Tensor operator!=(const Tensor& x, Scalar b) { return not_equal(x, b); }
inline Tensor operator!=(Scalar a, const Tensor& x) { return not_equal(x, a); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return less(a, b); }
inline Tensor operator<(const Tensor& x, Scalar b) { return less(x, b); }
inline Tensor operator<(Scalar a, const Tensor& x) { return greater(x, a); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return less_equal(a, b); }
inline Tensor operator<=(const Tensor& x, Scalar b) { return less_equal(x, b); }
inline Tensor operator<=(Scalar a, const Tensor& x) { return greater_equal(x, a); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return greater(a, b); }
inline Tensor operator>(const Tensor& x, Scalar b) { return greater(x, b); }
inline Tensor operator>(Scalar a, const Tensor& x) { return less(x, a); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return greater_equal(a, b); }
inline Tensor operator>=(const Tensor& x, Scalar b) { return greater_equal(x, b); }
inline Tensor operator>=(Scalar a, const Tensor& x) { return less_equal(x, a); }

// bool -> bool; DTypeError for anything else: compare first.
inline Tensor operator~(const Tensor& mask) { return logical_not(mask); }
inline Tensor operator&(const Tensor& a, const Tensor& b) { return logical_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return logical_or(a, b); }
inline Tensor operator^(const Tensor& a, const Tensor& b) { return logical_xor(a, b); }

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Products of matrices inside rooms. Declared here, so that rooms need no private header of
// matmul's, and defined in matmul/: the one thing of shared/ that links upwards.
#pragma once

#include "tessera/core/op_types.h"

#include <cstdint>
#include <span>

namespace tessera {

/// c (m, n) = a (m, k) b (k, n) for each of `batch`; strides in elements. One of each operand's row
/// and column strides is 1; c is row-major with row stride c_row. c is of `dtype`, or of f32 where
/// `wide`; with `accumulate` the product is added to it.
struct Gemm {
  DType dtype = DType::f32;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t a_row = 0, a_col = 1, a_batch = 0;
  const void* b = nullptr;
  int64_t b_row = 0, b_col = 1, b_batch = 0;
  void* c = nullptr;
  int64_t c_row = 0, c_batch = 0;
  bool wide = false, accumulate = false;
};

/// Any product of f64, f32 and what the library or tiles take, by whoever is fastest; k may be 0.
void gemm(const Gemm& g);
/// All of these products of one dtype, which may differ in all else, as one piece of work for the
/// rank's threads; no c overlaps another.
void grouped_gemm(std::span<const Gemm> all);
/// Whether gemm takes products of this dtype; others are cast by who asks.
[[nodiscard]] bool gemm_takes(DType dtype);
/// On a device: c (m, n) = op(a) op(b), all row-major matrices; c may be f32 where a and b are
/// narrower.
void device_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                 const Tensor& c, bool accumulate, Stream stream);

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// What the matmul room asks of a GEMM, whoever computes it.
#pragma once

#include "tessera/core/op_types.h"

#include <cstdint>
#include <string>

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
/// Whether gemm takes products of this dtype; others are cast by who asks.
[[nodiscard]] bool gemm_takes(DType dtype);
/// A product of few rows of f32 or bf16, each element of b read once; false, with nothing done,
/// where it is another.
[[nodiscard]] bool thin_gemm(const Gemm& g);
/// A product of bf16 by the machine's matrix tiles; false, with nothing done, where it has none or
/// the dtype is another.
[[nodiscard]] bool tile_gemm(const Gemm& g);
/// A product of f32 by vectors of 512 bits; false, with nothing done, where the machine has none,
/// the dtype is another or the product is tiny.
[[nodiscard]] bool vector_gemm(const Gemm& g);
/// Products of f32 on machines without those vectors and, where library_takes it, of bf16 on
/// machines without tiles (oneDNN, or Eigen where that is missing).
void library_gemm(const Gemm& g);
[[nodiscard]] bool library_takes(DType dtype);
/// The library, its version and the instruction set that it chose: "oneDNN 2.6.0 avx512_core_amx".
[[nodiscard]] std::string library_text();
/// Any product of f32 or f64 by the own kernel; quick to start, made for small ones.
void small_gemm(const Gemm& g);
/// On a device: c (m, n) = op(a) op(b), all row-major matrices; c may be f32 where a and b are
/// narrower.
void device_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                 const Tensor& c, bool accumulate, Stream stream);

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Who can compute a GEMM; matmul.cpp chooses.
#pragma once

#include "tessera/kernels/products/gemm_impl.h"

#include <string>

namespace tessera {

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

}  // namespace tessera

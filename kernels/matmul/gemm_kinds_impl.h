// SPDX-License-Identifier: Apache-2.0
// Who can compute a GEMM; matmul.cpp chooses. Those that take many share the parts of all of them
// among the threads.
#pragma once

#include "tessera/kernels/products/gemm_impl.h"

#include <span>
#include <string>

namespace tessera {

/// Few rows of f32 or bf16, each element of b read once.
[[nodiscard]] bool thin_takes(const Gemm& g);
void thin_gemm(std::span<const Gemm> all);
/// bf16 by the machine's matrix tiles.
[[nodiscard]] bool tile_takes(const Gemm& g);
void tile_gemm(std::span<const Gemm> all);
/// f32 by vectors of 512 bits, but for tiny products; bf16 by the same vectors, in pairs, on
/// machines that have those and no tiles.
[[nodiscard]] bool vector_takes(const Gemm& g);
void vector_gemm(std::span<const Gemm> all);
/// Products of f32 and, where library_takes it, of bf16 on machines without those instructions
/// (oneDNN, or Eigen where that is missing).
void library_gemm(const Gemm& g);
[[nodiscard]] bool library_takes(DType dtype);
/// The library, its version and the instruction set that it chose: "oneDNN 2.6.0 avx512_core_amx".
[[nodiscard]] std::string library_text();
/// Any product of f32 or f64 by the own kernel; quick to start, made for small ones.
void small_gemm(const Gemm& g);

}  // namespace tessera

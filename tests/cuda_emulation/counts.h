// SPDX-License-Identifier: Apache-2.0
// What a process has asked of its emulated devices, for tests that bound it.
#pragma once

#include "include/cuda_runtime_api.h"  // also found where the folder is in no path

#include <cstdint>
#include <map>
#include <string>

namespace cuda_emulation {

struct Counts {
  int64_t calls = 0;  ///< of the runtime, launches and library products included
  int64_t waits = 0;  ///< of the host for a device: synchronisations, copies to pageable memory
  std::map<std::string, int64_t> launches;  ///< by name: of kernels, and of calls of libraries
  int64_t products = 0;                     ///< mma.m16n8k16 of a warp
  /// Matrices that ldmatrix has read, and the accesses that it took: more where rows of a matrix
  /// lie in the same banks.
  int64_t matrices = 0, accesses = 0;
};

void count_call();
void count_wait();
/// `code`: the kernel, or an address in what a library enqueues.
void count_launch(const void* code);
void count_product();
void count_matrix(int accesses);

/// The mangled name of the function that `code` lies in, hidden and local ones too; empty if none.
std::string symbol_of(const void* code);
/// `tessera::op::row_parts<float>`: without return type, parameters and anonymous namespaces.
std::string name_of(const void* code);

}  // namespace cuda_emulation

/// Over all devices and threads; found by its name after CUDA's library was opened.
extern "C" CUDA_EMULATION_API void cuda_emulation_counts(cuda_emulation::Counts* counts);

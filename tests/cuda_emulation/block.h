// SPDX-License-Identifier: Apache-2.0
// Runs a grid: one block after the other, one thread at a time.
#pragma once

#include "cuda_runtime.h"

#include <random>
#include <string>

namespace cuda_emulation {

/// Of blocks in a grid, of threads in a block, and of a warp's lanes after a shuffle.
enum class Order { rising, falling, random };

inline constexpr size_t kSharedBytes = size_t{48} << 10;       // what every kernel may have
inline constexpr size_t kMostSharedBytes = size_t{227} << 10;  // with leave
inline constexpr int kMostThreads = 1024, kWarp = 32;

/// What the kernel did wrong, empty if nothing. `limit` is for static and launched shared bytes.
std::string run_grid(const Kernel& kernel, size_t limit, Order order, std::mt19937_64& random);

}  // namespace cuda_emulation

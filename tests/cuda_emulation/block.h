// SPDX-License-Identifier: Apache-2.0
// Runs a grid: one block after the other, one thread at a time.
#pragma once

#include "cuda_runtime.h"

#include <random>
#include <string>
#include <vector>

namespace cuda_emulation {

/// Of blocks in a grid, of threads in a block, and of a warp's lanes after a shuffle.
enum class Order { rising, falling, random };

inline constexpr size_t kSharedBytes = size_t{48} << 10;       // what every kernel may have
inline constexpr size_t kMostSharedBytes = size_t{227} << 10;  // with leave
inline constexpr int kMostThreads = 1024, kWarp = 32;

/// What the kernel did wrong, empty if nothing. `limit` is for static and launched shared bytes.
std::string run_grid(const Kernel& kernel, size_t limit, Order order, std::mt19937_64& random);

// --- for the instructions of a kernel that runs (cuda_ptx.h) ------------------------------------------------------

/// Waits until all lanes of `mask` stand at `site`; the last to come runs `act` on the operands of
/// each, null for a lane that is not in the mask.
void converge(unsigned mask, void* mine, void (*act)(void* const (&lanes)[kWarp]), Site site);
/// Whether these bytes lie in the block's shared memory.
bool is_shared(const void* p, size_t bytes);
/// Ends the grid with this fault.
[[noreturn]] void fail(const char* what, Site site);

/// A thread's asynchronous copies that have not landed, oldest first.
struct Copies {
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    int group;
  };
  std::vector<Copy> pending;
  int groups = 0;  // committed so far
};
Copies& copies();

}  // namespace cuda_emulation

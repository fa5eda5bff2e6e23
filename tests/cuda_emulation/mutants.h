// SPDX-License-Identifier: Apache-2.0
// Faults planted in kernels while they run, by what the emulation controls: who waits, whose value
// a shuffle gives, how wide a block says it is, which blocks run. A test that does not notice one
// would not notice the same slip in the sources.
#pragma once

#include "block.h"

#include <vector>

namespace cuda_emulation {

struct Mutant {
  enum Kind {
    skipped_barrier,  // nobody waits at `site`
    skipped_wait,     // nobody waits for asynchronous copies at `site`
    wrong_lane,       // a shuffle at `site` takes from the lane beside the right one
    wide_block,       // blockDim.x is one too large in a grid of several blocks: strides are wrong
    missing_block,    // the last block does not run
  } kind;
  const void* kernel;
  Site site;  // of the barrier, wait or shuffle
  CUDA_EMULATION_API bool operator==(const Mutant& o) const;
};

/// `tessera::op::topk_kernel<float> without barrier 2 of topk.cu`, and the like.
CUDA_EMULATION_API std::string text_of(const Mutant&);
/// Whether the running kernel has this mutant; a place where it could have one is noted.
bool mutated(Mutant::Kind kind, Site site);
/// From now on, each launch appends the mutants that apply to it to `found`, without duplicates;
/// null stops this.
CUDA_EMULATION_API void watch_for_mutants(std::vector<Mutant>* found);
/// From now on, launches run with `mutant`, and run their blocks and threads in this order, the
/// same random one in each process.
CUDA_EMULATION_API void plant(const Mutant& mutant, Order order);

}  // namespace cuda_emulation

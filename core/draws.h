// SPDX-License-Identifier: Apache-2.0
// Draws of random numbers while a model runs in micro-batches. A key is of the step, the module and
// the draw in it (call_keys.h); elements are numbered by their row in the batch of the whole step,
// so that a batch gets the same numbers however it is cut. The row is state of the rank, which
// recompute restores, and reaches ops as a 0-dim input where plans are to be kept (dropout).
#pragma once

#include "tessera/core/rng.h"

#include <cstdint>

namespace tessera {

/// A draw: its key, and the row of the step's batch at which dim 0 of what is drawn begins.
struct Draw {
  RngKey key;
  int64_t row = 0;
};

/// The next draw in the current module.
[[nodiscard]] TESSERA_API Draw next_draw();

/// Begins a micro-batch of `step`: the draws of each module restart, and row 0 is row `first_row`
/// of the step's batch. ValueError if it is negative.
TESSERA_API void begin_micro_batch(uint64_t step, int64_t first_row = 0);

/// The first row of the micro-batch that runs on this rank; 0 before the first one. For what saves
/// and restores draws, as checkpointing does.
[[nodiscard]] TESSERA_API int64_t& micro_batch_row();

}  // namespace tessera

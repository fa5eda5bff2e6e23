// SPDX-License-Identifier: Apache-2.0
// The lines at the start of a run: model, device, what computes attention, data, mesh, precision,
// training; and after its first step what it took to connect the GPUs, and what cuDNN refused.
#pragma once

#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/run_parts.h"

namespace tessera::train {

/// By rank 0; the data has been read.
void announce(const RunFacts& run, const RunParts& parts, const Print& print);
/// By rank 0, of its own; nothing where no communicators were made.
void announce_connections(const Print& print);
/// By rank 0, of its own; nothing if the kernels of the lines at the start ran.
void announce_refusals(const Print& print);

}  // namespace tessera::train

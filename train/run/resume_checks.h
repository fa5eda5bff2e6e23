// SPDX-License-Identifier: Apache-2.0
// Compares a checkpoint with the run that resumes from it: whether it fits, and which changes make
// the next steps differ.
#pragma once

#include "tessera/train/checkpoint/loading.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/run_parts.h"

namespace tessera::train {

/// DataError: the checkpoint, of this run or of another, cannot fill `target`, or its model or
/// tokens are not the run's. A tokenizer that differs is a warning.
void check_fits(const RunFacts& run, const CheckpointReader& from, bool own, bool with_optimizer,
                const LoadTarget& target, const Print& print);

/// Prints which data, rows, learning rates, products and fields changed since the checkpoint.
/// DataError: under debug.deterministic the run cannot go on with the same bits.
void tell_changes(const RunFacts& run, const RunParts& parts, const CheckpointReader& from,
                  const Print& print);

}  // namespace tessera::train

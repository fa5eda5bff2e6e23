// SPDX-License-Identifier: Apache-2.0
// Where a run begins: after a checkpoint of its own or of another run, or with a model of Hugging
// Face. Rank 0 decides which checkpoint; each rank reads what it holds.
#pragma once

#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/checkpoint/manifest.h"
#include "tessera/train/monitor/loss_history.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/run_parts.h"

namespace tessera::train {

/// Fills model, optimizer, feed and history; returns how far the run has got: nothing, without a
/// checkpoint. `own`: the run's checkpoints. Collective. DataError, IoError on all ranks: a
/// checkpoint or model that is damaged or does not fit.
[[nodiscard]] Progress resume(const RunFacts& run, RunParts& parts, const CheckpointFolder& own,
                              LossHistory& history, const Print& print);

}  // namespace tessera::train

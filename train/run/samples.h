// SPDX-License-Identifier: Apache-2.0
// Text that the model of a run generates at its end.
#pragma once

#include "tessera/models/model.h"
#include "tessera/train/run/run_facts.h"

namespace tessera::train {

/// Prints greedy and sampled text, or why there is none. Collective: all ranks run the model.
void print_samples(const RunFacts& run, models::LanguageModel& model, const Print& print);

}  // namespace tessera::train

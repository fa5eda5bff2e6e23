// SPDX-License-Identifier: Apache-2.0
// Which ops a memory budget keeps: a knapsack of bytes against the time that recompute saves.
#pragma once

#include "tessera/core/device.h"
#include "tessera/core/op_types.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// An op's outputs: what they weigh, and what computing them again takes.
struct Choice {
  int64_t bytes = 0;
  double seconds = 0;
};
/// The choices that fit into `bytes` together and save most time; exact but for the rounding of
/// bytes to a thousandth of the budget.
std::vector<bool> choose_kept(const std::vector<Choice>& choices, int64_t bytes);
/// Time of an op by its cost on a machine like `device`; only the ratio of two such times means
/// something.
double estimated_seconds(const Cost& cost, Device device);

}  // namespace tessera

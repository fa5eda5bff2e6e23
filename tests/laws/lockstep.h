// SPDX-License-Identifier: Apache-2.0
// Pieces that talk while they run: each on a thread, their joins in lockstep. No dist here: the
// laws stand below it.
#pragma once

#include "tessera/tests/laws/laws.h"

#include <memory>

namespace tessera::laws {

/// Runs body(i, joiner of piece i) for each of n pieces at once and gives their results; joins add
/// up in the order of the pieces, so all get the same bits. What the first failing piece threw is
/// rethrown; a piece that waits for one which has left throws UsageError.
std::vector<TensorVector> run_in_lockstep(
    size_t n, const std::function<TensorVector(size_t, std::shared_ptr<Joiner>)>& body);

}  // namespace tessera::laws

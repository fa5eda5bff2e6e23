// SPDX-License-Identifier: Apache-2.0
// How the ranks of a run share the batch: its rows are sharded over the data axes of the mesh, so a
// rank's rows follow from its coordinates there and never from its rank in the world.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/dist/mesh.h"

#include <vector>

namespace tessera::train {

/// The rows of each batch that this rank reads. Ranks that differ only on other axes read the same.
struct DataShare {
  std::vector<int> axes;  ///< data axes of the mesh: those called `dp...`
  int parts = 1;          ///< product of their sizes
  int part = 0;           ///< which of them is this rank's
  Layout by_rows = {};    ///< of a batch (B, ...): dim 0 sharded over the data axes
  Layout replicated = {};
};
/// Of the calling rank.
[[nodiscard]] TESSERA_API DataShare data_share(const Mesh& mesh);

}  // namespace tessera::train

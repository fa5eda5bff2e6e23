// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/parallelism.h"

namespace tessera::train {

DataShare data_share(const Mesh& mesh) {
  DataShare share;
  std::vector<Placement> placements;
  for (int i = 0; i < mesh.axes(); ++i) {
    const bool of_data = mesh.axis(i).name.starts_with("dp");
    placements.push_back(of_data ? Shard(0) : Replicate());
    if (!of_data) continue;
    share.axes.push_back(i);
    share.parts *= mesh.size(i);
    share.part = share.part * mesh.size(i) + mesh.coordinate(i);
  }
  share.by_rows = Layout::of(mesh, placements);
  share.replicated = Layout::replicated(mesh);
  return share;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Every pair of layouts of a tensor on devices, forward and backward: the mesh is the host's, the
// tensor's device chooses who moves it.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/tests/support/redistribution.h"

namespace tessera {
namespace {

TEST(RedistributeCuda, EveryPairWithData) {
  const int devices = Process::get().cuda().device_count();
  const std::vector<MeshAxis> axes = devices >= 4
                                         ? std::vector<MeshAxis>{{"a", 2}, {"b", 2}}
                                         : std::vector<MeshAxis>{{"a", devices >= 2 ? 2 : 1}};
  trial::every_pair(axes, {5, 3}, [](int rank) { return cuda(rank); });
}

}  // namespace
}  // namespace tessera

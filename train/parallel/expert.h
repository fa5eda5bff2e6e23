// SPDX-License-Identifier: Apache-2.0
// Expert parallelism: ranks share the experts of a layer, to which tokens travel. It has no axis of
// its own and borrows the ranks that parameters are cut over and the tensor-parallel ranks.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/nn/parallel/expert_parallel.h"
#include "tessera/train/parallel/pass.h"

namespace tessera::train {

struct TESSERA_API ExpertParallel {
  struct TESSERA_API Fields {
    int64_t expert_parallel_degree = 1, expert_tensor_parallel_degree = 1;
    double expert_parallel_padding = 0;  ///< as nn::ExpertParallel
    void fields(config::Fields& f);
  };
  static ParallelPass row();
};

/// What nn::expert_parallel is to do on `ranks` ranks. ConfigError: they do not fit these.
[[nodiscard]] TESSERA_API nn::ExpertParallel expert_degrees(const ParallelismConfig& p,
                                                            int64_t ranks);

}  // namespace tessera::train

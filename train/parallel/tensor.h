// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: ranks share each layer's matmuls, by the plan of the model's family.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/train/parallel/pass.h"

namespace tessera::train {

struct TESSERA_API TensorParallel {
  struct TESSERA_API Fields {
    int64_t tensor_parallel_degree = 1;
    bool enable_sequence_parallel = true, disable_loss_parallel = false;
    void fields(config::Fields& f);
  };
  static ParallelPass row();
};

}  // namespace tessera::train

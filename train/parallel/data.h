// SPDX-License-Identifier: Apache-2.0
// Data parallelism: ranks read different rows. fully_shard cuts parameters over some of them,
// replicate keeps copies on the others.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/nn/parallel/policy.h"
#include "tessera/train/parallel/pass.h"

namespace tessera::train {

struct TESSERA_API DataParallel {
  struct TESSERA_API Fields {
    int64_t data_parallel_replicate_degree = 1;
    int64_t data_parallel_shard_degree = -1;  ///< -1: the ranks that the other degrees leave
    std::string fsdp_reshard_after_forward = "default";  ///< as nn::parse_reshard
    void fields(config::Fields& f);
  };
  static ParallelPass row();
};

/// The policy of fully_shard on `ranks` ranks. ConfigError: the text is none, or its number of
/// ranks does not divide those over which parameters are cut.
[[nodiscard]] TESSERA_API nn::Reshard reshard_policy(const ParallelismConfig& p, int64_t ranks);

}  // namespace tessera::train

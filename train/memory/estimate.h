// SPDX-License-Identifier: Apache-2.0
// The memory that training needs, known before any of it is allocated: a step of the model on the
// meta device, on one rank of a fake world, whose tensors are counted and not made.
#pragma once

#include "tessera/nn/optim/optimizer.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/config/config.h"
#include "tessera/train/memory/free_memory.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

/// Bytes of one rank at the peak of a step.
struct MemoryEstimate {
  struct Part {
    std::string name;
    int64_t bytes = 0;
    bool tensors = true;  ///< of training, on its device: of `counted`
  };
  std::vector<Part> parts;    ///< largest first; they sum to `total`
  int64_t counted = 0;        ///< tensors of training: what a run reports as `memory at its peak`
  int64_t total = 0;          ///< also text kept as tokens and what no count sees
  int64_t walks = 0;          ///< over all of the model, during the step: the same for any size
  int64_t pipeline_rank = 0;  ///< of the ranks of a pipeline, the one that needs the most
  std::vector<int64_t> of_pipeline_ranks = {};  ///< `counted` of each
};

/// The table of `--estimate`: a line per part with its share.
[[nodiscard]] TESSERA_API std::string memory_table(const MemoryEstimate& estimate);

/// Makes an optimizer for these parameters.
using OptimizerFactory =
    std::function<std::unique_ptr<optim::Optimizer>(const std::vector<nn::NamedParameter>&)>;

/// For one rank of `ranks` in a run of `config`, which has no faults; of a pipeline for the rank
/// whose stages need the most. Allocates no tensor of the model's size; takes about a tenth of a
/// second per hundred layers. Data are counted as far as the size of their files tells.
/// `make_optimizer` replaces the run's own.
[[nodiscard]] TESSERA_API MemoryEstimate
estimate_memory(const Config& config, int ranks, const OptimizerFactory& make_optimizer = {});

/// The ranks of a run as this host sees them.
struct HostRanks {
  int all = 1;         ///< of the run
  int of_host = 1;     ///< those that share this host's memory
  int of_process = 1;  ///< those that are threads of this process
};

/// Compares what training needs with what is free. StorageError, with the largest parts and the
/// settings that would need less, if the counted tensors alone do not fit, on a device too. Returns
/// a warning if the total does not, and nothing otherwise.
[[nodiscard]] TESSERA_API std::string check_memory(const Config& config, const HostRanks& ranks,
                                                   const FreeMemory& free);

/// A line for `--estimate`: whether training fits into what is free, as far as that is known.
[[nodiscard]] TESSERA_API std::string fit_line(const MemoryEstimate& estimate,
                                               const HostRanks& ranks, const FreeMemory& free);

/// What a rank of such a run needs, its largest parts, and the settings that would need less: for
/// the error of a run that had not enough.
[[nodiscard]] TESSERA_API std::string memory_advice(const Config& config, int ranks);

}  // namespace tessera::train

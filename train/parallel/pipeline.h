// SPDX-License-Identifier: Apache-2.0
// Pipeline parallelism: ranks have different layers, and micro-batches pass through them. The mesh
// of a run is that of the ranks with one rank's stages; all stages read the same rows.
#pragma once

#include "tessera/dist/schedules/schedule.h"
#include "tessera/models/config/fields.h"
#include "tessera/models/pipeline/split.h"
#include "tessera/train/parallel/pass.h"

#include <optional>
#include <string>

namespace tessera::train {

struct TESSERA_API PipelineParallel {
  struct TESSERA_API Fields {
    int64_t pipeline_parallel_degree = 1, pipeline_parallel_microbatch_size = 1;
    std::string pipeline_parallel_schedule = "1F1B", pipeline_parallel_schedule_csv;
    std::optional<int64_t> pipeline_parallel_layers_per_stage;
    int64_t pipeline_parallel_first_stage_less_layers = 1,
            pipeline_parallel_last_stage_less_layers = 1;
    std::vector<std::string> module_fqns_per_model_part;  ///< of each stage, its parts with blanks
    void fields(config::Fields& f);

    [[nodiscard]] bool pipelines() const { return pipeline_parallel_degree > 1; }
    /// The parts of each stage, of a model with these. ConfigError: they do not fit.
    [[nodiscard]] models::Split split(std::span<const std::string> parts) const;
    /// ConfigError: it does not fit these stages or micro-batches, or is not to be read.
    [[nodiscard]] PipelineSchedule schedule(int64_t stages, int64_t micro_batches) const;
  };
  static ParallelPass row();
};

}  // namespace tessera::train

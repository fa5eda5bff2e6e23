// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/pipeline.h"

#include "tessera/core/message.h"
#include "tessera/dist/schedules/passes.h"
#include "tessera/dist/schedules/simulate.h"
#include "tessera/models/config/collect_impl.h"
#include "tessera/nn/io/files.h"
#include "tessera/train/parallel/parallelism.h"

#include <algorithm>
#include <sstream>

namespace tessera::train {
namespace {

constexpr std::string_view kSchedule = "--parallelism.pipeline_parallel_schedule";

// A stage a rank, or two, if the schedule is for several, as torchtitan has it.
int64_t stages_of(const PipelineParallel::Fields& p, std::span<const std::string> parts) {
  const int64_t degree = p.pipeline_parallel_degree;
  if (!p.pipeline_parallel_layers_per_stage) {
    const auto named =
        std::ranges::find(named_schedules(), p.pipeline_parallel_schedule, &NamedSchedule::name);
    return degree * (named != named_schedules().end() && named->several_stages ? 2 : 1);
  }
  const int64_t each = *p.pipeline_parallel_layers_per_stage;
  const int64_t layers = std::ranges::count_if(parts, models::is_layer) +
                         p.pipeline_parallel_first_stage_less_layers +
                         p.pipeline_parallel_last_stage_less_layers;
  const int64_t stages = (layers + each - 1) / each;
  if (stages % degree != 0) {
    fail<ConfigError>("--parallelism.pipeline_parallel_layers_per_stage", each, " of ",
                      counted(layers, "layer"), ", with embedding and head counted, are ",
                      counted(stages, "stage"), ", not the same number on each of ",
                      counted(degree, "rank"), ": give ", (layers + degree - 1) / degree,
                      " for one stage a rank");
  }
  return stages;
}

Faults faults(const PassFacts& facts) {
  Faults faults;
  const ParallelismConfig& p = facts.parallelism;
  if (p.pipelines() && facts.model)
    config::collect(faults, [&] { (void)p.split(facts.model->parts()); });
  return faults;
}

std::string announce(const ParallelismConfig& p) {
  if (!p.pipelines()) return {};
  return concat("pipeline: ", counted(p.pipeline_parallel_degree, "rank"), ", schedule ",
                p.pipeline_parallel_schedule_csv.empty() ? p.pipeline_parallel_schedule
                                                         : p.pipeline_parallel_schedule_csv,
                ", micro-batches of ", counted(p.pipeline_parallel_microbatch_size, "row"));
}

std::vector<Remedy> remedies(const PassSettings& settings) {
  const ParallelismConfig& p = settings.parallelism;
  std::vector<Remedy> all;
  if (!p.pipelines()) return all;
  if (const int64_t rows = p.pipeline_parallel_microbatch_size; rows > 1)
    all.push_back({{{"parallelism.pipeline_parallel_microbatch_size", std::to_string(rows / 2)}}});
  if (p.pipeline_parallel_schedule_csv.empty() && p.pipeline_parallel_schedule == "GPipe")
    all.push_back({{{"parallelism.pipeline_parallel_schedule", "1F1B"}}});
  return all;
}

// The message without the name in brackets, which is the field's here.
template <class F> auto as_config_error(std::string_view field, F&& f) {
  try {
    return f();
  } catch (const ValueError& error) {
    const std::string_view text = error.what();
    const size_t end = text.find("] ");
    fail<ConfigError>(field, text.substr(end == text.npos ? 0 : end + 2));
  }
}

}  // namespace

models::Split PipelineParallel::Fields::split(std::span<const std::string> parts) const {
  if (module_fqns_per_model_part.empty()) {
    return as_config_error("--parallelism.pipeline_parallel_degree", [&] {
      return models::split_parts(parts, stages_of(*this, parts),
                                 {.first = pipeline_parallel_first_stage_less_layers,
                                  .last = pipeline_parallel_last_stage_less_layers});
    });
  }
  constexpr std::string_view kField = "--parallelism.module_fqns_per_model_part";
  models::Split split;
  for (const std::string& stage : module_fqns_per_model_part) {
    std::istringstream names(stage);
    split.emplace_back();
    for (std::string name; names >> name;) split.back().push_back(name);
  }
  if (const std::string fault = models::split_fault(parts, split); !fault.empty())
    fail<ConfigError>(kField, fault);
  if (std::ssize(split) % pipeline_parallel_degree != 0) {
    fail<ConfigError>(kField, counted(split.size(), "stage"),
                      " are not the same number on each of ",
                      counted(pipeline_parallel_degree, "rank"));
  }
  return split;
}

PipelineSchedule PipelineParallel::Fields::schedule(int64_t stages, int64_t micro_batches) const {
  const bool by_name = pipeline_parallel_schedule_csv.empty();
  return as_config_error(by_name ? kSchedule : "--parallelism.pipeline_parallel_schedule_csv", [&] {
    const auto degree = static_cast<int>(pipeline_parallel_degree);
    PipelineSchedule schedule =
        by_name ? make_schedule(pipeline_parallel_schedule,
                                {.ranks = degree,
                                 .stages_per_rank = static_cast<int>(stages) / degree,
                                 .micro_batches = static_cast<int>(micro_batches)})
                : read_schedule(io::read_file(pipeline_parallel_schedule_csv));
    if (schedule.stages() != stages || schedule.micro_batches != micro_batches ||
        std::ssize(schedule.ranks) != degree) {
      fail<ValueError>("pipeline schedule", "is for ", counted(schedule.ranks.size(), "rank"), ", ",
                       counted(schedule.stages(), "stage"), " and ",
                       counted(schedule.micro_batches, "micro-batch"), "; the run has ", degree,
                       ", ", stages, " and ", micro_batches);
    }
    for (int rank = 0; rank < degree; ++rank) {
      if (std::ranges::find(schedule.rank_of_stage, rank) == schedule.rank_of_stage.end())
        fail<ValueError>("pipeline schedule", "rank ", rank, " has no stage");
    }
    (void)simulate(schedule);  // ranks that wait for each other for ever
    return schedule;
  });
}

void PipelineParallel::Fields::fields(config::Fields& f) {
  f.add("pipeline_parallel_degree", pipeline_parallel_degree,
        "ranks that have different layers, through which micro-batches pass",
        {.min = 1, .max = 1 << 12, .unit = "ranks"});
  std::vector<std::string> names;
  std::string help = "order in which pipeline ranks compute";
  for (const NamedSchedule& s : named_schedules()) {
    names.emplace_back(s.name);
    help += concat("; ", s.name, ": ", s.help);
  }
  f.add("pipeline_parallel_schedule", pipeline_parallel_schedule, help, {.choices = names});
  f.add("pipeline_parallel_schedule_csv", pipeline_parallel_schedule_csv,
        "file of a schedule to use instead (a line per rank, a cell per action, as `tessera "
        "schedule --out` writes it)");
  f.add("pipeline_parallel_microbatch_size", pipeline_parallel_microbatch_size,
        "rows of a micro-batch on a rank, with pipeline parallelism; local_batch_size, or "
        "global_batch_size, is cut into them",
        {.min = 1, .unit = "rows"});
  f.add("pipeline_parallel_layers_per_stage", pipeline_parallel_layers_per_stage,
        "layers of a stage, which decide how many stages a pipeline rank has; none: one, or two "
        "with a schedule for several",
        {.min = 1, .unit = "layers"});
  f.add("pipeline_parallel_first_stage_less_layers", pipeline_parallel_first_stage_less_layers,
        "by how many layers the first stage has fewer, for the embedding",
        {.min = 0, .unit = "layers"});
  f.add("pipeline_parallel_last_stage_less_layers", pipeline_parallel_last_stage_less_layers,
        "by how many layers the last stage has fewer, for the head", {.min = 0, .unit = "layers"});
  f.add("module_fqns_per_model_part", module_fqns_per_model_part,
        "parts of each stage, in order: \"tok_embeddings layers.0,layers.1 norm output\"; empty: "
        "equally many layers");
}

ParallelPass PipelineParallel::row() {
  return {.faults = faults, .announce = announce, .remedies = remedies};
}

}  // namespace tessera::train

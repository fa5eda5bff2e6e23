// SPDX-License-Identifier: Apache-2.0
// The ranks open the checkpoint each for itself, and may find another one, so they compare what
// they found.
#include "tessera/train/cli/model_on_ranks.h"

#include "tessera/models/pipeline/whole.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/step/build_model.h"

#include <algorithm>
#include <ostream>

namespace tessera::train {

void ComputeConfig::fields(config::Fields& f) {
  f.add_choice("mixed_precision_param", mixed_precision_param,
               "dtype that the model computes in; run: that of the run",
               std::vector<std::pair<std::string, std::optional<DType>>>{
                   {kOfRun, {}}, {"float32", DType::f32}, {"bfloat16", DType::bf16}});
}

void ModelOnRanksConfig::fields(config::Fields& f) {
  f.add("checkpoint", checkpoint, "dump folder of a run, or one of its checkpoints");
  f.add("hf_assets_path", hf_assets_path,
        "folder or file of a tokenizer to use in place of the checkpoint's; bytes: a token per "
        "byte");
  f.add("ranks", ranks,
        "ranks to run as threads of this process; 0: one rank, or one per process of a launcher",
        {.min = 0, .max = 4096, .unit = "ranks"});
  f.add("threads", threads,
        "kernel threads per rank; 0: the cores divided among the ranks of the host",
        {.min = 0, .max = 4096, .unit = "threads", .per_rank = true});
  add_device(f, device);
}

std::vector<std::string> ModelOnRanks::faults(config::Fields fields, const ModelOnRanksConfig& on,
                                              Arguments arguments) {
  std::vector<std::string> faults = fields.parse(arguments);
  const auto of_checkpoint = [](const std::string& f) { return f.starts_with("[--checkpoint]"); };
  if (on.checkpoint.empty() && std::ranges::none_of(faults, of_checkpoint))
    faults.emplace_back("[--checkpoint] is missing: give the dump folder of a run");
  for (std::string& fault : on.parallelism.conflicts()) faults.push_back(std::move(fault));
  return faults;
}

ModelOnRanks::ModelOnRanks(const ModelOnRanksConfig& on, std::ostream& out,
                           const Catalogue& catalogue)
    : on_(on), launch_(detect_launch(static_cast<int>(on.ranks))) {
  // Before the checkpoint is read.
  config::throw_if_any(parallelism_faults({on_.parallelism, nullptr, launch_.size}));
  (void)rank_device(on_.device, launch_);
  warn_ = [&out, first = launch_.rank == 0](const std::string& line) {
    if (first) out << line << '\n';
  };
  trained_ = open_trained_model(on_.checkpoint, warn_, catalogue);
  if (on_.training.mixed_precision_param && trained_.config.model.dtype() == DType::f64)
    fail<ConfigError>("--training.mixed_precision_param", name(*on_.training.mixed_precision_param),
                      ": the parameters of this model are float64, which compute in float64; leave "
                      "the field out");
  const auto model = trained_.config.model.make();
  config::throw_if_any(parallelism_faults({on_.parallelism, model.get(), launch_.size}));
  tokenizer_ = trained_.tokenizer;
  if (tokenizer_ && on_.hf_assets_path.empty()) return;
  Config config = trained_.config;
  if (!on_.hf_assets_path.empty()) config.hf_assets_path = on_.hf_assets_path;
  tokenizer_ = open_tokenizer(config);
}

std::vector<int64_t> ModelOnRanks::end_ids() const {
  return train::end_ids(config().special_tokens, *tokenizer_,
                        answer_end(config(), *tokenizer_, warn_));
}

EvaluationPlan ModelOnRanks::evaluation_plan(const std::string& path) const {
  return {.path = path,
          .path_field = "dataset_path",
          .seq_len = config().training.seq_len,
          .vocabulary = config().model.vocab_size(),
          .rows = config().training.local_batch_size,
          .tokenizer = tokenizer_};
}

Config ModelOnRanks::on_mesh() const {
  Config config = trained_.config;
  config.parallelism = on_.parallelism;
  // Nothing is trained, so the schedule and the batch of the run need not fit these ranks.
  config.training.global_batch_size = -1;
  config.parallelism.pipeline_parallel_microbatch_size = 1;
  if (const auto compute = on_.training.mixed_precision_param)
    config.training.mixed_precision_param = *compute;
  // It measures the speed of training; a model is judged by the experts that its routers choose.
  config.debug.moe_force_load_balance = false;
  return config;
}

void ModelOnRanks::run(std::string_view name, const config::Fields& fields, RankFacts facts,
                       const std::function<void(World&, models::LanguageModel&)>& body) const {
  Config run = trained_.config;
  const Config config = on_mesh();
  facts.add("command", std::string(name));
  facts.add_fields(fields);
  facts.add_fields(run.fields(), "the checkpoint's ");
  facts.add_tokenizer(tokenizer_->files(), "the tokenizer");
  const bool strict = config.debug.deterministic && !config.debug.deterministic_warn_only;
  const auto on_rank = [&](World& world) {
    set_storage_timeout(std::chrono::seconds(on_.comm.storage_timeout_seconds));
    const Device device = rank_device(on_.device, world.local_rank(), world.local_ranks());
    RankFacts of_rank = facts;
    of_rank.add_device(device);
    require_equal_ranks(name, of_rank);
    compare_kernels(name, device, strict, warn_);
    const Mesh mesh = make_mesh(config.parallelism);
    const auto model =
        build_model(config, mesh, [&](models::LanguageModel& m, const nn::LayoutOf& layouts) {
          trained_.fill(m, layouts, device, warn_);
        });
    check_replicas(name, models::whole_tensors(*model), "after loading");
    body(world, *model);
  };
  run_launched(launch_, on_rank,
               {.threads = static_cast<int>(on_.threads),
                .init_timeout = std::chrono::seconds(on_.comm.init_timeout_seconds)});
}

}  // namespace tessera::train

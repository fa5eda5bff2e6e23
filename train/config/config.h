// SPDX-License-Identifier: Apache-2.0
// The configuration of a training run, a value: it opens no file and builds no model. Each
// component owns a small Config and sees no other; this one only composes them. Section and field
// names are torchtitan's if the meaning is the same.
#pragma once

#include "tessera/dist/launch/rank_device.h"
#include "tessera/models/config/fields.h"
#include "tessera/models/models.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/config/optimizer.h"
#include "tessera/train/config/schedule.h"
#include "tessera/train/data/data.h"
#include "tessera/train/exchange/special_tokens.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/profiler.h"
#include "tessera/train/parallel/parallelism.h"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Batch sizes and precision. The dtype of parameters, `training.dtype`, is a field of the model.
struct TESSERA_API TrainingConfig {
  int64_t steps = 10000, local_batch_size = 8;
  int64_t global_batch_size = -1;  ///< sequences of a step over all ranks; -1: one micro-batch
  int64_t seq_len = 2048;
  double max_norm = 1;
  DType mixed_precision_param = DType::bf16, mixed_precision_reduce = DType::f32;
  void fields(config::Fields& f);
  /// Number of micro-batches that a rank accumulates in a step whose rows are cut into `parts`
  /// parts (ParallelismConfig::data_parts). ConfigError: global_batch_size is not a multiple of
  /// local_batch_size x parts.
  [[nodiscard]] int64_t micro_batches(int64_t parts) const;
};

/// The rows of a step on a rank.
struct StepSizes {
  int64_t rows = 1;  ///< of a micro-batch
  int64_t micro_batches = 1;
};

struct TESSERA_API ValidationConfig {
  bool enable = false;
  std::string dataset_path;
  int64_t freq = 10, steps = -1;                     ///< -1: all windows of the data set
  std::optional<int64_t> local_batch_size, seq_len;  ///< none: as in training
  void fields(config::Fields& f);
};

/// Deadlines of every command with ranks.
struct TESSERA_API CommDeadlines {
  int64_t init_timeout_seconds = 300, storage_timeout_seconds = 3600;
  void fields(config::Fields& f);
};

/// Deadlines of the start and of collectives, and their record.
struct TESSERA_API CommConfig : CommDeadlines {
  int64_t train_timeout_seconds = 100, trace_buf_size = 2000;
  void fields(config::Fields& f);
};

struct TESSERA_API DebugConfig {
  int64_t seed = 0;
  bool deterministic = false, deterministic_warn_only = false, detect_anomaly = false;
  int64_t replica_check_freq = 100;
  bool moe_force_load_balance = false;
  void fields(config::Fields& f);
};

struct TESSERA_API MemoryConfig {
  bool check = true;
  void fields(config::Fields& f);
};

struct TESSERA_API SampleConfig {
  std::string prompt;
  int64_t tokens = 200, top_k = 40;
  double temperature = 0.8, top_p = 1;
  void fields(config::Fields& f);
};

struct TESSERA_API Config {
  std::string recipe, dump_folder = "./outputs";
  std::string hf_assets_path;  ///< of the tokenizer; empty: tokenizer_path() says which
  std::string initial_hf;      ///< folder of Hugging Face that the model is from; empty: none
  std::vector<std::string> ignore_hf_fields;  ///< of its config.json, which change nothing
  bool overwrite = false;
  int64_t ranks = 0, threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  models::ModelConfig model;
  TrainingConfig training;
  OptimizerConfig optimizer;
  ScheduleConfig lr_scheduler;
  ParallelismConfig parallelism;
  nn::ActivationCheckpointConfig activation_checkpoint;
  DataConfig dataloader;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  CommConfig comm;
  DebugConfig debug;
  MemoryConfig memory;
  MetricsConfig metrics;
  ProfilerConfig profiler;
  SampleConfig sample;
  SpecialTokensConfig special_tokens;

  /// Where the tokenizer is: `hf_assets_path`, else the folder of Hugging Face that the model is
  /// from; empty: a token is a byte.
  [[nodiscard]] std::string tokenizer_path() const;
  /// The folder of Hugging Face that training starts from; empty: none.
  [[nodiscard]] std::string initial_hf_folder() const;
  /// The recipe, or else family and flavor.
  [[nodiscard]] std::string title() const;
  /// Of a step whose rows are cut into `parts` parts (ParallelismConfig::data_parts). With a
  /// pipeline a micro-batch has parallelism.pipeline_parallel_microbatch_size rows. ConfigError:
  /// the rows of a step are not a multiple of a micro-batch's.
  [[nodiscard]] StepSizes step_sizes(int64_t parts) const;
  /// All fields, bound to this object, which must outlive the list.
  [[nodiscard]] config::Fields fields();
  /// Their values, a JSON object: what config.json and checkpoints hold.
  [[nodiscard]] std::string json() const;
  /// Conflicts between fields. run/faults.h tells all faults, also those with the model.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  /// What a run should know of its fields, though it may go on: sentences without a full stop.
  [[nodiscard]] std::vector<std::string> warnings() const;
  /// What the parallel passes read of it, which must outlive the result.
  [[nodiscard]] PassSettings pass_settings() const;
};

/// Adds the field `device`, which commands that compute have in common.
TESSERA_API void add_device(config::Fields& f, DeviceChoice& device);

struct Recipe {
  std::string name, description;
  std::function<Config()> make;
};
/// The recipes of this repository.
TESSERA_API std::vector<Recipe> recipes();

/// The families and recipes that a configuration may name. A program adds its own to these lists.
struct Catalogue {
  /// The first is the default of files that name no family.
  std::vector<models::Family> families = models::families();
  /// The first is the default if neither a recipe nor a model is named.
  std::vector<Recipe> recipes = train::recipes();
};
/// ConfigError with a suggestion if there is no such recipe.
TESSERA_API Config recipe(std::string_view name, const Catalogue& catalogue = {});

struct ParsedConfig {
  Config config;
  std::vector<std::string> faults;  ///< of the arguments, and conflicts between fields
  std::string note = {};            ///< what to tell of where the run goes; empty: nothing
};
/// Starts from the recipe and the model that the arguments or the file of `--config FILE` name
/// (`--recipe`, `--model.name`, `--model.flavor`, at any position; a model without a recipe gets
/// the default fields, with seq_len at most its max_seq_len). With `--model.initial_hf DIR` the
/// model is that of DIR, and its tokenizer the default; a file that names DIR and the model is
/// enough without DIR once the run has a checkpoint. Then sets the fields of the file (the
/// dump_folder of a run's own config.json is the folder where that lies), then
/// `--section.field value` in order. Fields with a fault keep their values. DataError: DIR, as an
/// argument, holds no model.
TESSERA_API ParsedConfig read_arguments(std::span<const std::string> arguments,
                                        const Catalogue& catalogue = {});
/// The same; ConfigError: the faults, a line each. For a run, run/faults.h finds all of them.
TESSERA_API Config parse_config(std::span<const std::string> arguments,
                                const Catalogue& catalogue = {});
/// The text of `--help`: the fields for these arguments, with their defaults.
TESSERA_API std::string config_help(std::span<const std::string> arguments,
                                    const Catalogue& catalogue = {});
/// Reads the config.json of a run. DataError if it is not a configuration.
TESSERA_API Config read_config(const std::string& path, const Catalogue& catalogue = {});
/// The same from its text; errors name `where`.
TESSERA_API Config parse_run_config(std::string_view json, const std::string& where,
                                    const Catalogue& catalogue = {});

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// What a training run is made of. Each component owns a small Config and sees no other; this one
// only composes them. Section and field names are torchtitan's where the meaning is the same.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/models/models.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/data/data.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/profiler.h"
#include "tessera/train/run/optimizer.h"
#include "tessera/train/run/schedule.h"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Sizes of a step and its precision. The dtype of parameters, `training.dtype`, is the model's.
struct TESSERA_API TrainingConfig {
  int64_t steps = 10000, local_batch_size = 8;
  int64_t global_batch_size = -1;  ///< sequences of a step on all ranks; -1: one micro-batch each
  int64_t seq_len = 2048;
  double max_norm = 1;
  DType mixed_precision_param = DType::bf16;
  void fields(config::Fields& f);
  /// Micro-batches that each of `ranks` ranks adds up in a step. ConfigError: global_batch_size is
  /// no multiple of what the ranks take at once.
  [[nodiscard]] int64_t micro_batches(int64_t ranks) const;
};

struct TESSERA_API ValidationConfig {
  bool enable = false;
  std::string dataset_path;
  int64_t freq = 10, steps = -1;                     ///< -1: all windows of the data set
  std::optional<int64_t> local_batch_size, seq_len;  ///< none: as in training
  void fields(config::Fields& f);
};

struct TESSERA_API DebugConfig {
  int64_t seed = 0;
  bool deterministic = false, detect_anomaly = false;
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
  int64_t ranks = 0, threads = 0;
  models::ModelConfig model;
  TrainingConfig training;
  OptimizerConfig optimizer;
  ScheduleConfig lr_scheduler;
  nn::ActivationCheckpointConfig activation_checkpoint;
  DataConfig dataloader;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  DebugConfig debug;
  MetricsConfig metrics;
  ProfilerConfig profiler;
  SampleConfig sample;

  /// The recipe, or else family and flavor.
  [[nodiscard]] std::string title() const;
  /// All fields, bound to this object, which must outlive the list.
  [[nodiscard]] config::Fields fields();
  /// Faults that no single field shows: parts that do not fit together.
  [[nodiscard]] std::vector<std::string> conflicts() const;
  /// Faults of single fields and conflicts.
  [[nodiscard]] std::vector<std::string> faults() const;
};

struct Recipe {
  std::string name, description;
  std::function<Config()> make;
};
/// Those of this repository.
TESSERA_API std::vector<Recipe> recipes();

/// What a configuration may name. A program with a family or recipe of its own adds to the lists.
struct Catalogue {
  /// The first is that of files that name none.
  std::vector<models::Family> families = models::families();
  /// The first is taken where neither a recipe nor a model is named.
  std::vector<Recipe> recipes = train::recipes();
};
/// ConfigError with a suggestion if there is no such recipe.
TESSERA_API Config recipe(std::string_view name, const Catalogue& catalogue = {});

/// The recipe and the model that the words or the file of `--config FILE` name (`--recipe`,
/// `--model.name`, `--model.flavor`, wherever they stand; a model without a recipe has the plain
/// defaults, and rows no longer than it takes), then the fields of the file, then
/// `--section.field value` in order. ConfigError: every fault, a line each.
TESSERA_API Config parse_config(std::span<const std::string> arguments,
                                const Catalogue& catalogue = {});
/// The fields that these arguments may set, with their defaults: the text of `--help`.
TESSERA_API std::string config_help(std::span<const std::string> arguments,
                                    const Catalogue& catalogue = {});
/// A configuration that a run wrote as config.json. DataError if it does not hold one.
TESSERA_API Config read_config(const std::string& path, const Catalogue& catalogue = {});
/// The same from its text; errors name `where`.
TESSERA_API Config parse_run_config(std::string_view json, const std::string& where,
                                    const Catalogue& catalogue = {});

}  // namespace tessera::train

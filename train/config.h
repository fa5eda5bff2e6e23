// SPDX-License-Identifier: Apache-2.0
// What a training run is made of. Each component owns a small Config and sees no other; this one
// only composes them. Section and field names are torchtitan's where the meaning is the same.
#pragma once

#include "tessera/models/llama3/llama3.h"
#include "tessera/train/data.h"
#include "tessera/train/fields.h"
#include "tessera/train/metrics.h"
#include "tessera/train/optimizer.h"
#include "tessera/train/profiler.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct TrainingConfig {
  int64_t steps = 10000, local_batch_size = 8, seq_len = 2048;
  double max_norm = 1;
  void fields(Fields& f);
};

struct DebugConfig {
  int64_t seed = 0;
  bool deterministic = false, detect_anomaly = false;
  void fields(Fields& f);
};

struct SampleConfig {
  std::string prompt;
  int64_t tokens = 200, top_k = 40;
  double temperature = 0.8, top_p = 1;
  void fields(Fields& f);
};

struct TESSERA_API Config {
  std::string recipe, dump_folder = "./outputs";
  int64_t ranks = 0, threads = 0;
  llama3::Config model;
  TrainingConfig training;
  OptimizerConfig optimizer;
  ScheduleConfig lr_scheduler;
  DataConfig dataloader;
  DebugConfig debug;
  MetricsConfig metrics;
  ProfilerConfig profiler;
  SampleConfig sample;

  /// All fields, bound to this object, which must outlive the list.
  [[nodiscard]] Fields fields();
  /// Faults that no single field shows: parts that do not fit together.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

struct Recipe {
  std::string_view name, description;
  Config (*make)();
};
TESSERA_API std::span<const Recipe> recipes();
/// ConfigError with a suggestion if there is no such recipe.
TESSERA_API Config recipe(std::string_view name);

/// The recipe that `--recipe NAME` names, then `--section.field value` in order. ConfigError: every
/// fault, a line each.
TESSERA_API Config parse_config(std::span<const std::string> arguments);
/// A configuration that a run wrote as config.json. DataError if it does not hold one.
TESSERA_API Config read_config(const std::string& path);

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// What the commands that run a trained model share: their fields, what is checked before ranks
// start, and what each rank does before it has the model.
#pragma once

#include "tessera/dist/launch/run.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/run/rank_check.h"
#include "tessera/train/step/evaluate.h"
#include "tessera/train/step/trained_model.h"

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// The word for the value that the run has.
inline constexpr const char* kOfRun = "run";

/// What a trained model is computed with.
struct ComputeConfig {
  std::optional<DType> mixed_precision_param = {};  ///< none: as the run
  void fields(config::Fields& f);
};

struct ModelOnRanksConfig {
  std::string checkpoint, hf_assets_path;
  int64_t ranks = 0, threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  ComputeConfig training;
  ParallelismConfig parallelism;  ///< not that of the run: any mesh can load its checkpoint
  CommDeadlines comm;
  void fields(config::Fields& f);
};

/// The fields of a command with such a member `on`, bound to `c`, which must outlive the list.
template <class C> config::Fields fields_of(C& c) {
  config::Fields fields;
  fields.section("", c.on);
  fields.section("", c);
  fields.section("training", c.on.training);
  fields.section("parallelism", c.on.parallelism);
  fields.section("comm", c.on.comm);
  return fields;
}

template <class C> std::string help_of_fields_on_ranks() {
  C config;
  return "fields:\n" + fields_of(config).help();
}

class ModelOnRanks {
 public:
  /// Faults of `arguments`, a missing checkpoint among them.
  static std::vector<std::string> faults(config::Fields fields, const ModelOnRanksConfig& on,
                                         Arguments arguments);
  /// Opens the checkpoint and the tokenizer. ConfigError: degrees that do not fit the ranks or the
  /// model. Errors of detect_launch, open_trained_model and open_tokenizer. Warnings go to
  /// `out`, on rank 0.
  ModelOnRanks(const ModelOnRanksConfig& on, std::ostream& out, const Catalogue& catalogue);

  /// Of the run that trained the model.
  [[nodiscard]] const Config& config() const { return trained_.config; }
  /// That of --hf_assets_path, else the checkpoint's, else that of its configuration.
  [[nodiscard]] const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  /// The ids that end a text: the tokenizer's, what the model's folder said, and the mark that ends
  /// an answer of the run's chat template.
  [[nodiscard]] std::vector<int64_t> end_ids() const;
  /// How data at `path`, of the field --dataset_path, is evaluated with the run's batch size and
  /// sequence length.
  [[nodiscard]] EvaluationPlan evaluation_plan(const std::string& path) const;
  /// Calls `body` on every rank. Before it, the ranks must agree on the command's `name`, its
  /// `fields`, the checkpoint's configuration, the tokenizer and `facts`, and then on the
  /// parameters that they loaded (CollectiveMismatch on all).
  void run(std::string_view name, const config::Fields& fields, RankFacts facts,
           const std::function<void(World&, models::LanguageModel&)>& body) const;

 private:
  /// The run's, with the parallelism and precision of this command.
  [[nodiscard]] Config on_mesh() const;

  ModelOnRanksConfig on_;
  Launch launch_;
  Warn warn_;
  TrainedModel trained_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace tessera::train

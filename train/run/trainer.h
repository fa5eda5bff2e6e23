// SPDX-License-Identifier: Apache-2.0
// Trainer: composes model, data, optimizer and schedule, runs the steps and writes what a run
// leaves behind: config.json, metrics.jsonl, loss.svg and model.safetensors in the dump folder.
// Data parallel by layouts alone: parameters are replicated over the mesh's one axis, the batch is
// cut over it, gradients come out partial, add up over micro-batches and are reduced once a step.
// One rank is a mesh like any other.
#pragma once

#include "tessera/dist/mesh.h"
#include "tessera/dist/world.h"
#include "tessera/models/model.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/monitor/monitor.h"
#include "tessera/train/run/config.h"
#include "tessera/train/run/evaluate.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::train {

/// What a World must be made with for a run of `config`.
[[nodiscard]] TESSERA_API WorldOptions world_options(const Config& config);

/// Rows [first, first + count) of the `rows` rows of step `step` (from 0), plain tensors.
using BatchSource = std::function<Batch(int64_t step, int64_t rows, int64_t first, int64_t count)>;

class TESSERA_API Trainer {
 public:
  /// Checks the configuration (ConfigError: every fault) and that the dump folder can be written
  /// and is no other run's, reads the data, makes the model and takes up the checkpoint that the
  /// run goes on from, before anything is trained. Made on every rank of a World; rank 0 writes.
  /// `print` gets the lines that people read, on rank 0, and `screen` the bar. A `source` takes the
  /// place of dataloader's data.
  explicit Trainer(const Config& config, std::function<void(const std::string&)> print = {},
                   Screen* screen = nullptr, BatchSource source = {});

  /// One optimizer step. NumericError, before parameters change, if loss or gradient norm is not
  /// finite; it names the step and the op and module that made the first such value.
  StepRecord step();
  /// The loss on validation.dataset_path; UsageError unless validation is enabled.
  Evaluation validate();
  /// All steps that are left, with checkpoints between them, then the plot and the model. A request
  /// of a signal to stop ends it after a checkpoint.
  void run();
  /// Writes the checkpoint of the steps done so far; called on every rank.
  void save(bool model_only = false);
  /// Greedy and sampled text of the model as it is.
  void print_samples();

  [[nodiscard]] models::LanguageModel& model() { return *model_; }
  /// Records of past steps for the plot: all of them up to some thousands, then every second,
  /// fourth, ...
  [[nodiscard]] const std::vector<StepRecord>& records() const { return records_; }

 private:
  [[nodiscard]] std::vector<Batch> next_batches();
  [[nodiscard]] models::Loss loss_of(const Batch& batch, const Tensor& scale) const;
  void open_data();
  /// Of all ranks and micro-batches.
  [[nodiscard]] int64_t tokens_per_step() const;
  void reduce_gradients();
  [[noreturn]] void diagnose(const std::vector<Batch>& batches, const Tensor& scale, double loss,
                             double grad_norm);
  [[nodiscard]] std::string in_folder(std::string_view file) const;
  void announce();
  void remember(const StepRecord& record);
  // trainer_state.cpp
  void restore();
  [[nodiscard]] std::unique_ptr<CheckpointReader> choose_checkpoint(bool& own);
  void check_fits(const CheckpointReader& from, bool own, bool with_optimizer);
  void load(const CheckpointReader* from, const std::vector<nn::NamedParameter>& tensors);
  void load_optimizer(const CheckpointReader* from, int64_t steps);
  void remember_earlier_steps();
  [[nodiscard]] int64_t data_windows() { return data_ ? data_->info().windows : 0; }
  /// Saves where it is time or a signal asks; true if the run is to end.
  [[nodiscard]] bool checkpoint_or_stop();

  Config config_;
  World& world_;
  Mesh mesh_;
  std::function<void(const std::string&)> print_;
  std::unique_ptr<io::FolderLock> lock_, checkpoint_lock_;  // rank 0's
  BatchSource source_;
  std::optional<DataLoader> data_, validation_data_;
  std::unique_ptr<models::LanguageModel> model_;
  int64_t micro_batches_ = 1;
  models::Metadata metadata_;
  std::vector<Tensor> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<Monitor> monitor_;
  std::vector<StepRecord> records_;
  CheckpointFolder checkpoints_;
  int64_t done_ = 0, stride_ = 1;
  int64_t schedule_start_ = 0, data_start_ = 0;  // the steps at which they stood at 0
  bool stopped_ = false;
  bool stepped_ = false;  // a step of this process has ended
};

}  // namespace tessera::train

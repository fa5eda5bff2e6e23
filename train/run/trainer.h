// SPDX-License-Identifier: Apache-2.0
// Trainer: composes model, data, optimizer and schedule, runs the steps and writes config.json,
// metrics.jsonl, loss.svg and model.safetensors to the dump folder. Always on a mesh of
// dp_replicate, dp_shard, cp (or cp_ring and cp_heads) and tp, where one rank is a mesh too.
// build_model wraps the model with the passes that its degrees ask for; the rows of a batch are cut
// over the data axes, its sequences over cp, and gradients are there as the parameters lie when the
// last micro-batch's backward ends.
#pragma once

#include "tessera/core/host_read.h"
#include "tessera/dist/mesh.h"
#include "tessera/dist/world.h"
#include "tessera/models/model.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/config/config.h"
#include "tessera/train/monitor/monitor.h"
#include "tessera/train/parallel/parallelism.h"
#include "tessera/train/step/build_model.h"
#include "tessera/train/step/evaluate.h"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

class ChatEncoder;

/// The options of the World for a run of `config`.
[[nodiscard]] TESSERA_API WorldOptions world_options(const Config& config);

/// The rows that a rank with `share` of them reads for a run of `config`.
[[nodiscard]] TESSERA_API BatchPlan batch_plan(const Config& config, const DataShare& share);

/// Rows [first, first + count) of the run, counted from 0, as plain tensors.
using BatchSource = std::function<Batch(int64_t first, int64_t count)>;

class TESSERA_API Trainer {
 public:
  /// Chooses the rank's device (ConfigError: there is none such), checks that the ranks agree on
  /// configuration, build and data (CollectiveMismatch on all ranks: what differs, with values and
  /// ranks) and the configuration (ConfigError: every fault), locks the dump folder and checks that
  /// it is writable and holds no other run's results (ConfigError on all ranks; `overwrite` removes
  /// them), reads the data, builds the model and loads the checkpoint to resume from. Created on
  /// every rank of a World; rank 0 writes files. `print` gets lines for people on rank 0, and
  /// `screen` the progress bar. A `source` replaces the data of dataloader.
  explicit Trainer(const Config& config, std::function<void(const std::string&)> print = {},
                   Screen* screen = nullptr, BatchSource source = {});

  /// One optimizer step. CollectiveMismatch if parameters differ between ranks, which every
  /// debug.replica_check_freq steps are compared. NumericError on all ranks if loss or gradient
  /// norm is not finite: parameters, states and buffers are those before the step; it names the
  /// step and the rank, op and module that made the first non-finite value.
  StepRecord step();
  /// The same without its record: the step is given to the device, and the host reads no value of
  /// it before a step that is logged, or settle(). On the CPU each step is read at its end. A step
  /// that was not finite is found then, and no step after it has changed anything. OutOfMemory
  /// says what the memory held.
  void advance();
  /// Reads and records all steps so far. Errors as of step().
  void settle();
  /// The loss on validation.dataset_path; UsageError unless validation is enabled.
  Evaluation validate();
  /// Runs all remaining steps with checkpoints between them, then writes the plot and the model. A
  /// stop signal ends it after a checkpoint.
  void run();
  /// Writes a checkpoint of the current step, and waits for it; called on every rank. Errors as of
  /// Saving, on all ranks; earlier checkpoints are unchanged.
  void save(bool model_only = false);
  /// Prints greedy and sampled text of the current model. Collective: all ranks run the model.
  void print_samples();

  [[nodiscard]] models::LanguageModel& model() { return *model_; }
  /// Records of past steps for the plot: all of them up to several thousand, then every second,
  /// fourth, ...
  [[nodiscard]] const std::vector<StepRecord>& records() const { return records_; }

 private:
  /// Before any work: what the ranks disagree on, then faults of the configuration.
  [[nodiscard]] DataFingerprint checked_fingerprint();
  /// The micro-batches of one step.
  struct Input {
    int64_t first = 0;  ///< the first of its rows, over all ranks
    /// Of this rank's rows: tokens with a target, all tokens but padding, operations.
    double targets = 0, tokens = 0, flops = 0;
    std::vector<PlacedBatch> batches = {};  ///< micro-batches of all ranks, on their devices
    std::exception_ptr failure = {};        ///< why they could not be read
  };
  /// Of the step that begins at row `first`. Meets no other rank.
  [[nodiscard]] Input input_from(int64_t first);
  /// The same; a failure is kept for the step.
  [[nodiscard]] Input read_input(int64_t first);
  /// That of the next step: what was made ahead, if it has the rows that follow.
  [[nodiscard]] Input next_input();
  /// Makes the input of the step after this one, if there is one.
  void look_ahead();
  /// (3) f64, equal on all ranks: sums of targets, tokens and flops over them.
  [[nodiscard]] Tensor counts_of(const Input& input);
  /// 1 / tokens of a step with a target, and 1 / all tokens, of 0 dims.
  struct Scales {
    Tensor of_targets, of_tokens;
  };
  [[nodiscard]] Scales scales_of(const Tensor& counts) const;
  /// A micro-batch's sums over tokens as its part of the step's means: the loss over tokens with a
  /// target, auxiliary losses over all.
  [[nodiscard]] models::Loss loss_of(const PlacedBatch& batch, const Scales& scales) const;
  void open_data();
  /// Over all ranks, of a micro-batch and of a step.
  [[nodiscard]] int64_t rows_at_once() const;
  [[nodiscard]] int64_t rows_per_step() const { return rows_at_once() * micro_batches_; }
  [[nodiscard]] int64_t tokens_per_step() const;
  /// Calls run(batch) for each micro-batch, whose random numbers follow its rows in the step.
  template <class F> void for_each_micro_batch(const std::vector<PlacedBatch>& batches, F&& run);
  /// A step whose values are on their device.
  struct Unread {
    StepRecord record;  ///< without values
    std::chrono::steady_clock::time_point began;
    std::vector<std::string> names = {};
    Tensor values = {};      ///< (names) f64
    size_t norm = 0;         ///< place of the gradient norm
    Tensor not_finite = {};  ///< tokens of experts that are not; may be undefined
    int64_t first = 0;       ///< of its rows
    int64_t steps = 0;       ///< of the optimizer before it
    std::vector<int64_t> parameter_steps = {};
  };
  /// Gives the device a step, whose values are then the last of unread_.
  void queue_step();
  void begin_reading();
  void finish_reading();
  [[nodiscard]] StepRecord record_of(const Unread& step, std::span<const double> values) const;
  /// Goes back to before a step that was not finite, and says why it was not.
  [[noreturn]] void fail_at(const Unread& step, const StepRecord& record);
  [[nodiscard]] std::string non_finite_parameter();
  [[nodiscard]] std::string first_non_finite_op();
  [[nodiscard]] std::string in_folder(std::string_view file) const;
  void announce();
  void remember(const StepRecord& record);
  // trainer_state.cpp
  void claim_folder();
  [[nodiscard]] std::string results_in_the_way();
  [[nodiscard]] std::string source_in_the_way() const;
  void remove_results();
  void restore();
  /// Whether there was a checkpoint to resume from or to begin with.
  [[nodiscard]] bool load_checkpoint();
  void load_hugging_face(const std::string& folder);
  void save_hugging_face();
  struct Candidates {
    StepFolders steps;
    bool own = true;  ///< of this run, not of initial_load_path
  };
  [[nodiscard]] Candidates choose_checkpoints();
  [[nodiscard]] int64_t rows_taken(const CheckpointReader& from);
  void check_fits(const CheckpointReader& from, bool own, bool with_optimizer,
                  const LoadTarget& target);
  /// Says what makes the steps that follow others than they would have been.
  void tell_changes(const CheckpointReader& from);
  void remember_earlier_steps(const Tensor& losses);
  [[nodiscard]] Checkpoint checkpoint(bool model_only);
  /// Saves without waiting for the files, after the save in flight, if there is one.
  void begin_save();
  /// Commits the save in flight, which it waits for. One that cannot be written is a warning.
  void finish_save();
  void saved(int64_t step, uint64_t bytes, double seconds);
  [[nodiscard]] int64_t data_windows() { return data_ ? data_->info().windows : 0; }
  /// Saves a checkpoint if one is due or requested by a signal; true if the run must stop.
  [[nodiscard]] bool checkpoint_or_stop();

  Config config_;
  World& world_;
  Device device_;
  std::function<void(const std::string&)> print_;
  BatchSource source_;
  DataFingerprint fingerprint_;  // of the training data
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatEncoder> chat_;  // of a fine-tuning set; null for others
  Mesh mesh_;
  DataShare share_;
  std::unique_ptr<io::FolderLock> lock_, checkpoint_lock_;  // rank 0's
  std::optional<DataLoader> data_, validation_data_;
  std::unique_ptr<models::LanguageModel> model_;
  int64_t micro_batches_ = 1;
  std::optional<BatchPlacer> placer_;
  std::optional<Input> ahead_;
  std::vector<Tensor> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<Monitor> monitor_;
  std::vector<StepRecord> records_;
  std::vector<Unread> unread_, reading_;  // the latest steps; before them those on their way
  std::optional<HostRead> on_the_way_;    // values of reading_
  Tensor spoiled_;                        // () bool: an unread step was not finite
  StepRecord latest_;
  std::chrono::steady_clock::time_point last_read_;
  CheckpointFolder checkpoints_;
  std::unique_ptr<BackgroundSave> in_flight_;
  int64_t done_ = 0, stride_ = 1;
  int64_t schedule_start_ = 0;  // the step at which the schedule began
  int64_t rows_ = 0;            // of all steps so far, not those read ahead
  bool overwrite_ = false;
  bool stopped_ = false;
  bool stepped_ = false;  // a step of this process has ended
};

}  // namespace tessera::train

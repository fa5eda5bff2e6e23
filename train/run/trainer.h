// SPDX-License-Identifier: Apache-2.0
// Trainer: the loop of a run. It owns the run's parts and hands each its turn: batch, forward and
// backward, clip, step, log, save. Always on a mesh of dp_replicate, dp_shard, cp (or cp_ring and
// cp_heads) and tp, where one rank is a mesh too.
#pragma once

#include "tessera/dist/world.h"
#include "tessera/models/model.h"
#include "tessera/train/config/config.h"
#include "tessera/train/monitor/loss_history.h"
#include "tessera/train/monitor/monitor.h"
#include "tessera/train/run/checkpointing.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/run/run_folder.h"
#include "tessera/train/step/evaluate.h"
#include "tessera/train/step/run_parts.h"
#include "tessera/train/step/step_queue.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

class TESSERA_API Trainer {
 public:
  /// Chooses the rank's device (ConfigError: there is none such), checks that the ranks agree on
  /// configuration, build and data (CollectiveMismatch on all ranks: what differs, with values and
  /// ranks) and the configuration (ConfigError: every fault), locks the dump folder and checks that
  /// it is writable and holds no other run's results (ConfigError on all ranks; `overwrite` removes
  /// them), reads the data, builds the model and loads the checkpoint to resume from. Created on
  /// every rank of a World; rank 0 writes files. `print` gets lines for people on rank 0, and
  /// `screen` the progress bar. A `source` replaces the data of dataloader.
  explicit Trainer(const Config& config, Print print = {}, Screen* screen = nullptr,
                   BatchSource source = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

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
  /// Runs all remaining steps with checkpoints between them, then writes the plot, and the model
  /// unless a checkpoint holds it. A stop signal ends it after the step, saved in the same way.
  void run();
  /// Writes a checkpoint of the current step, and waits for it; called on every rank. Errors as of
  /// Saving, on all ranks; earlier checkpoints are unchanged.
  void save(bool model_only = false);
  /// Prints greedy and sampled text of the current model. Collective: all ranks run the model.
  void print_samples();

  /// The signal that stopped the run, or none.
  [[nodiscard]] SignalRequest stopped_by() const { return checkpoints_.stopped_by(); }
  [[nodiscard]] models::LanguageModel& model() { return *parts_.model; }
  /// Records of past steps for the plot, as LossHistory keeps them.
  [[nodiscard]] const std::vector<StepRecord>& records() const { return history_.records(); }

 private:
  void begin_monitor(Screen* screen);
  // The parts of a step, in order.
  void queue_step();
  [[nodiscard]] StepInput next_input();
  /// Inputs of the optimizer's step, which the host has not read.
  struct Finished {
    Tensor not_finite;   ///< () bool: the step, or one before it
    Tensor skip;         ///< () bool: that, or no token has a target
    Tensor grad_factor;  ///< () f64: of clipping
  };
  /// Takes the norm of the gradients, lets the model act before its update, and adds the values of
  /// the step besides its losses.
  [[nodiscard]] Finished finish_gradients(StepOutput& output, const Tensor& counts);
  /// Clips the gradients while it reads them.
  void update(const Finished& finished, double lr_factor);
  /// Records the steps whose values were on their way.
  void finish_reading();
  /// Goes back to before a step that was not finite, and says why it was not.
  [[noreturn]] void fail_at(const ReadStep& step);

  [[nodiscard]] Around phases();
  [[nodiscard]] Progress progress() const;
  /// True if the run must stop.
  [[nodiscard]] bool checkpoint_or_stop();
  void print_memory_of_pipeline();
  void write_model();

  World& world_;
  Print print_;
  RunFacts run_;
  RunFolder folder_;
  RunParts parts_;
  LossHistory history_;
  Checkpointing checkpoints_;
  std::unique_ptr<Monitor> monitor_;
  StepQueue queue_;
  int64_t done_ = 0;            // steps so far, earlier runs included
  int64_t schedule_start_ = 0;  // the step at which the schedule began
  bool stepped_ = false;        // a step of this process has ended
  StepRecord latest_;
};

}  // namespace tessera::train

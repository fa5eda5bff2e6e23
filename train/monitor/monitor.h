// SPDX-License-Identifier: Apache-2.0
// Monitor: all output of a run, behind a few calls of the trainer: step lines and the progress bar,
// metrics.jsonl, TensorBoard, profiler traces, memory by kind, the ceiling. Created on
// each rank; rank 0 prints and writes metrics.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/profiler.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/monitor/tensorboard.h"

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {
class World;
}  // namespace tessera

namespace tessera::train {

/// Properties of a run that its monitor needs.
struct MonitorFacts {
  std::string dump_folder;
  int64_t steps = 0;
  int64_t tokens_per_step = 0;  ///< over all ranks
  int64_t done = 0;             ///< steps done before this run resumed
  DType compute = DType::f32;   ///< dtype of most matmuls, whose peak is measured
  Device device = kCpu;         ///< whose memory is counted; the peak is that of the CPU alone
  std::vector<Tensor> parameters = {};
  int64_t optimizer_bytes = 0;  ///< on this rank
  /// Bytes that whole parameters take now beside those, where ranks hold shards; none: 0.
  std::function<int64_t()> gathered_bytes = {};
};

/// Peak bytes of one rank's tensors, by kind. `rest`: temporaries of ops, buffers, data, and
/// gradients that existed at the peak.
struct MemoryByKind {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t gathered = 0;     ///< whole or cast parameters that forward leaves for backward
  int64_t activations = 0;  ///< stored by forward for backward
  int64_t peak = 0;         ///< of all kinds together
  [[nodiscard]] int64_t rest() const;
  [[nodiscard]] std::string text() const;
};

class TESSERA_API Monitor {
 public:
  /// `print` gets lines for people; `screen`, if any, the progress bar. IoError: a file cannot be
  /// created. ConfigError: profiler fields that conflict.
  Monitor(const MetricsConfig& metrics, const ProfilerConfig& profiler, MonitorFacts facts,
          World& world, std::function<void(const std::string&)> print = {},
          Screen* screen = nullptr);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// A phase of a step during its lifetime: an event in the trace. Memory is measured in the phases
  /// "forward" and "backward" of each micro-batch, time in "data".
  class TESSERA_API Phase {
   public:
    /// `name` is a literal; `shown`: the event's name in the trace.
    Phase(Monitor& monitor, std::string_view name, std::string_view shown);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    Monitor& monitor_;
    Profiler::Span span_;
    std::string_view name_;
    int exceptions_;
    std::chrono::steady_clock::time_point begin_;
  };
  [[nodiscard]] Phase phase(std::string_view name) { return {*this, name, name}; }
  [[nodiscard]] Phase phase(std::string_view name, std::string_view shown) {
    return {*this, name, shown};
  }

  void begin_step(int64_t step);
  void end_step(int64_t step);
  /// Whether a step has a log line: the first of this run, the last, and every log_freq-th.
  [[nodiscard]] bool logs(int64_t step) const;
  /// Writes what a step gave, in order, at its end or later. Collective after this run's step 1, 2,
  /// 4, 8, ..., which measure the ceiling.
  void record(const StepRecord& record);
  /// Records the validation loss after a step in metrics.jsonl and TensorBoard.
  void validation(int64_t step, double loss, double perplexity);
  /// Ends traces and the progress bar; prints peak memory by kind.
  void finish();

  [[nodiscard]] const MemoryByKind& memory() const { return memory_; }
  /// The same, the step under way included, also one that an exception ended.
  [[nodiscard]] const MemoryByKind& memory_so_far();
  /// The ceiling: peak FLOP/s of all ranks as measured after the first step; 0 before.
  [[nodiscard]] double ceiling() const { return ceiling_; }
  /// Takes a measurement of the peak. The first is the ceiling; after one that is more than 10 %
  /// off, mfu is N/A until one is near the ceiling again.
  void peak_measured(double flops);

 private:
  [[nodiscard]] MemoryStats stats() const;
  [[nodiscard]] int64_t gathered() const;
  [[nodiscard]] int64_t gradients() const;
  void begin_passes();
  void end_forward(bool failed);
  void measure(double seconds);
  void explain_excess(const StepRecord& record);
  void write_tensorboard(const StepRecord& record);
  void show(const StepRecord& record);
  [[nodiscard]] double seconds_per_step(int64_t step) const;
  [[nodiscard]] double flops_per_token(const StepRecord& record) const;

  using Clock = std::chrono::steady_clock;
  MetricsConfig config_;
  MonitorFacts facts_;
  World& world_;
  std::function<void(const std::string&)> print_;
  Screen* screen_;
  Profiler profiler_;
  int64_t device_memory_;  // all of it
  std::optional<MetricsLog> log_;
  std::optional<TensorBoardWriter> tensorboard_;
  MemoryByKind memory_;
  double ceiling_ = 0;
  bool ceiling_holds_ = true, exceeded_ = false;
  int64_t first_ = 0, done_ = 0;  // steps of this run: the first and the latest
  Clock::time_point step_began_, first_ended_;
  double data_seconds_ = 0;                    // of the latest step
  std::optional<int64_t> live_before_passes_;  // without gathered parameters and gradients
};

}  // namespace tessera::train

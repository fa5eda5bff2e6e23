// SPDX-License-Identifier: Apache-2.0
// Monitor: all that is seen of a run, behind a few calls of the trainer: step lines and the bar,
// metrics.jsonl, TensorBoard, the profiler's traces, memory by kind, the measured ceiling. Made on
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

/// What a run is, as far as its monitor must know.
struct MonitorFacts {
  std::string dump_folder;
  int64_t steps = 0;
  int64_t tokens_per_step = 0;  ///< of all ranks
  int64_t done = 0;             ///< steps of the runs that this one goes on from
  DType compute = DType::f32;   ///< of most matrix products; the ceiling is measured in it
  std::vector<Tensor> parameters = {};
  int64_t optimizer_bytes = 0;  ///< of this rank
};

/// Bytes of one rank's tensors at their most, by kind. `rest`: what ops need for a moment, buffers,
/// data, and gradients that were there already at the peak.
struct MemoryByKind {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t activations = 0;  ///< kept by forward for backward
  int64_t peak = 0;         ///< of all together
  [[nodiscard]] int64_t rest() const;
  [[nodiscard]] std::string text() const;
};

class TESSERA_API Monitor {
 public:
  /// `print` gets lines for people; `screen`, if there is one, the bar. IoError: files that cannot
  /// be made. ConfigError: a profiler's cycle that does not fit.
  Monitor(const MetricsConfig& metrics, const ProfilerConfig& profiler, MonitorFacts facts,
          World& world, std::function<void(const std::string&)> print = {},
          Screen* screen = nullptr);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// A part of a step while it lives: a bar in the trace. Memory is watched in those called
  /// "forward" and "backward", time in "data".
  class TESSERA_API Phase {
   public:
    /// `name` is a literal.
    Phase(Monitor& monitor, std::string_view name);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    Monitor& monitor_;
    Profiler::Span span_;
    std::string_view name_;
    int64_t live_before_;
    std::chrono::steady_clock::time_point begin_;
  };
  [[nodiscard]] Phase phase(std::string_view name) { return {*this, name}; }

  void begin_step(int64_t step);
  /// Collective after the first step where the ceiling is measured.
  void end_step(const StepRecord& record);
  /// The loss on held-out data after a step, for metrics.jsonl and TensorBoard.
  void validation(int64_t step, double loss, double perplexity);
  /// Ends traces and the bar; says what memory was used for.
  void finish();

  [[nodiscard]] const MemoryByKind& memory() const { return memory_; }
  /// Operations per second of all ranks; 0 while not measured.
  [[nodiscard]] double ceiling() const { return ceiling_; }

 private:
  void measure();
  void write_tensorboard(const StepRecord& record);
  void show(const StepRecord& record);
  [[nodiscard]] double seconds_per_step() const;
  [[nodiscard]] double flops_per_token(const StepRecord& record) const;

  using Clock = std::chrono::steady_clock;
  MetricsConfig config_;
  MonitorFacts facts_;
  World& world_;
  std::function<void(const std::string&)> print_;
  Screen* screen_;
  Profiler profiler_;
  std::optional<MetricsLog> log_;
  std::optional<TensorBoardWriter> tensorboard_;
  MemoryByKind memory_;
  double ceiling_ = 0;
  int64_t first_ = 0, done_ = 0;  // steps of this run: the first and the latest
  Clock::time_point step_began_, first_ended_, bar_drawn_;
  double step_seconds_ = 0, data_seconds_ = 0;  // of the latest step
};

}  // namespace tessera::train

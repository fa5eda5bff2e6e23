// SPDX-License-Identifier: Apache-2.0
// Profiler: records some steps of a rank as a Chrome trace: phases of the step, every op with
// module path, shapes and bytes, collectives with their axes, memory over time. It intercepts ops
// only in warm-up and recorded steps, and costs nothing otherwise.
#pragma once

#include "tessera/core/device.h"
#include "tessera/models/config/fields.h"
#include "tessera/train/monitor/chrome_trace.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {
class World;
}

namespace tessera::train {

struct TESSERA_API ProfilerConfig {
  bool enable_profiling = false;
  std::string save_traces_folder = "profiling/traces";
  int64_t profile_freq = 10, profiler_active = 1, profiler_warmup = 3;
  void fields(config::Fields& f);
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// Created on each rank and used on its thread, except spans. Of every profile_freq steps the last
/// profiler_active ones are recorded, after profiler_warmup unrecorded ones, in
/// `<save_traces_folder>/iteration_<step>/rank<r>_trace.json`.
class TESSERA_API Profiler {
 public:
  /// A relative folder is below `dump_folder`. Tensors on `device` are counted.
  Profiler(const ProfilerConfig& config, const std::string& dump_folder, World& world,
           Device device = kCpu);
  /// Drops an incomplete trace.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void begin_step(int64_t step);
  /// Returns the path of the trace that ended with this step, if any.
  std::string end_step(int64_t step);
  /// Ends a trace that is still open, and returns its path.
  std::string finish();

  /// An event of the trace for its lifetime, in the row of the calling thread. Any thread may
  /// create one; it has no effect outside recorded steps.
  class TESSERA_API Span {
   public:
    Span(Profiler* profiler, std::string_view name);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    std::shared_ptr<TraceWriter> trace_;
    Profiler* profiler_;
    std::string name_;
    int64_t begin_ = 0;
  };

 private:
  class Recorder;
  [[nodiscard]] int tid();
  std::string end_trace();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::train

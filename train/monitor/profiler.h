// SPDX-License-Identifier: Apache-2.0
// Profiler: what a rank does in some steps, as a Chrome trace: phases of the step, every op with
// module path, shapes and bytes, collectives with their axes, memory over time. It stands between
// the program and its ops while a cycle warms up and records, and costs nothing otherwise.
#pragma once

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
  /// Faults that no single field shows.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// Made on each rank, used on its thread but for spans. Every profile_freq steps the last
/// profiler_active ones are recorded, after profiler_warmup steps that are not, into
/// `<save_traces_folder>/iteration_<step>/rank<r>_trace.json`.
class TESSERA_API Profiler {
 public:
  /// Folders are below `dump_folder` where they are not absolute.
  Profiler(const ProfilerConfig& config, const std::string& dump_folder, World& world);
  /// Drops a trace that is not whole.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void begin_step(int64_t step);
  /// Gives the path of the trace that ended with this step, if one did.
  std::string end_step(int64_t step);
  /// Ends a trace that the last step left open, and gives its path.
  std::string finish();

  /// From now to the end of its life: a bar in the trace, in the row of the calling thread. Any
  /// thread may make one; nothing happens while no step is recorded.
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

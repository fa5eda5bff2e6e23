// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/message.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/monitor/chrome_trace.h"
#include "tessera/train/monitor/traces.h"

#include <filesystem>
#include <ostream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct TraceConfig {
  std::string folder;
  void fields(config::Fields& f) {
    f.add("folder", folder,
          "traces of one iteration, such as profiling/traces/iteration_10, or a folder above such "
          "ones, as the dump folder of a run: then those of the last iteration; may be the first "
          "argument itself");
  }
};

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  const std::string folder = parsed_folders<TraceConfig>(arguments, 1).second[0];
  const std::vector<TraceFolder> found = trace_folders(folder);
  if (found.empty())
    fail<DataError>("trace", folder,
                    " holds no rank<r>_trace.json, and no folder iteration_<step> below it does; "
                    "give a run that trained with --profiler.enable_profiling");
  const auto& [last, paths] = found.back();
  if (last != folder) {
    out << "iterations below " << folder << ':';
    for (const TraceFolder& f : found)
      out << ' ' << fs::path(f.path).lexically_relative(folder).string();
    out << "; taking " << last << '\n';
  }
  const std::string to = (fs::path(last) / "trace.json").string();
  join_traces(paths, to);
  out << "wrote " << to << ", of " << counted(paths.size(), "rank") << "\n";
  return 0;
}

}  // namespace

Command trace_command() {
  return {.name = "trace",
          .arguments = " TRACE_FOLDER [fields]",
          .summary =
              "join the ranks' profiler traces of a run's last recorded step, or of the folder of "
              "one: tessera trace DIR",
          .run = run,
          .help = fields_help<TraceConfig>};
}

}  // namespace tessera::train

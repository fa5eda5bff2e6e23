// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/cli/commands.h"
#include "tessera/train/monitor/chrome_trace.h"

#include <algorithm>
#include <filesystem>
#include <ostream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct TraceConfig {
  std::string folder;
  void fields(config::Fields& f) {
    f.add(
        "folder", folder,
        "traces of one iteration, such as profiling/traces/iteration_10; the first argument may be "
        "the folder itself");
  }
};

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  const std::string folder = parsed_folders<TraceConfig>(arguments, 1).second[0];
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with("_trace.json"))
      paths.push_back(entry.path().string());
  }
  if (error) fail<IoError>("trace", "cannot read folder ", folder, ": ", error.message());
  if (paths.empty())
    fail<DataError>("trace", folder,
                    " holds no rank<r>_trace.json; give the folder of one "
                    "iteration, such as profiling/traces/iteration_10");
  std::ranges::sort(paths);
  const std::string to = (fs::path(folder) / "trace.json").string();
  join_traces(paths, to);
  out << "wrote " << to << ", of " << paths.size() << " ranks\n";
  return 0;
}

}  // namespace

Command trace_command() {
  return {
      .name = "trace",
      .arguments = " TRACE_FOLDER [fields]",
      .summary = "join the ranks' profiler traces: tessera trace DIR/profiling/traces/iteration_10",
      .run = run,
      .help = fields_help<TraceConfig>};
}

}  // namespace tessera::train

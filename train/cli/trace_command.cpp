// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/message.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/monitor/chrome_trace.h"

#include <algorithm>
#include <charconv>
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

// The ranks' traces in the folder itself.
std::vector<std::string> traces_in(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with("_trace.json"))
      paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  return paths;
}

// The step of `iteration_10`; -1: another name.
int64_t iteration_of(const fs::path& folder) {
  constexpr std::string_view kIteration = "iteration_";
  const std::string name = folder.filename().string();
  int64_t step = -1;
  if (name.starts_with(kIteration))
    std::from_chars(name.data() + kIteration.size(), name.data() + name.size(), step);
  return step;
}

// The folders of iterations with traces below a folder, the first iteration first.
std::vector<fs::path> iterations_below(const std::string& folder) {
  constexpr int kDeepest = 3;  // below a dump folder: profiling/traces/iteration_10
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error);
  if (error) fail<IoError>("trace", "cannot read folder ", folder, ": ", error.message());
  for (; at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (error) break;
    if (!at->is_directory(error)) continue;
    if (at.depth() + 1 == kDeepest) at.disable_recursion_pending();
    if (iteration_of(at->path()) >= 0 && !traces_in(at->path()).empty())
      found.push_back(at->path());
  }
  std::ranges::stable_sort(found, {}, iteration_of);
  return found;
}

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  std::string folder = parsed_folders<TraceConfig>(arguments, 1).second[0];
  std::vector<std::string> paths = traces_in(folder);
  if (paths.empty()) {
    const std::vector<fs::path> iterations = iterations_below(folder);
    if (iterations.empty())
      fail<DataError>("trace", folder,
                      " holds no rank<r>_trace.json, and no folder iteration_<step> below it does; "
                      "give a run that trained with --profiler.enable_profiling");
    out << "iterations below " << folder << ':';
    for (const fs::path& at : iterations) out << ' ' << at.lexically_relative(folder).string();
    folder = iterations.back().string();
    out << "; taking " << folder << '\n';
    paths = traces_in(folder);
  }
  const std::string to = (fs::path(folder) / "trace.json").string();
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

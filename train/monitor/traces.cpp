// SPDX-License-Identifier: Apache-2.0
// Events are lines of their files (chrome_trace.h), so a long trace is read line by line.
#include "tessera/train/monitor/traces.h"

#include "tessera/core/error.h"
#include "tessera/dist/schedules/action.h"
#include "tessera/nn/io/json_impl.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

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

// The actions of a step of one rank.
struct Step {
  double begin = std::numeric_limits<double>::infinity(), end = 0;  // microseconds
  std::map<std::string, double> of;
};

// Whether the name of a phase is that of an action that computes, or of another part of a step.
bool is_action(const std::string& name) {
  try {
    return computes(parse_action(name).kind);
  } catch (const ValueError&) {
    return false;
  }
}

// The steps of a trace. The event of a step comes behind those of its parts.
std::vector<Step> steps_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail<IoError>("trace", "cannot open ", path, ": ", std::strerror(errno));
  std::vector<Step> steps(1);
  for (std::string line; std::getline(file, line);) {
    const bool phase = line.find("\"cat\":\"phase\"") != std::string::npos;
    if (!phase && line.find("\"cat\":\"step\"") == std::string::npos) continue;
    if (line.ends_with(',')) line.pop_back();
    const auto parsed = io::parse_json(line);
    if (!parsed.faults.empty()) fail<DataError>("trace", path, ": ", parsed.faults[0]);
    if (!phase) {
      steps.emplace_back();
      continue;
    }
    const std::string name = parsed.value.at("name");
    if (!is_action(name)) continue;
    const double begin = parsed.value.at("ts"), length = parsed.value.at("dur");
    Step& step = steps.back();
    step.begin = std::min(step.begin, begin);
    step.end = std::max(step.end, begin + length);
    step.of[name] += length;
  }
  steps.pop_back();  // behind the last step
  return steps;
}

}  // namespace

std::vector<TraceFolder> trace_folders(const std::string& folder) {
  if (std::vector<std::string> own = traces_in(folder); !own.empty())
    return {{folder, std::move(own)}};
  constexpr int kDeepest = 3;  // below a dump folder: profiling/traces/iteration_10
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error);
  if (error) fail<IoError>("trace", "cannot read folder ", folder, ": ", error.message());
  for (; at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (error) break;
    if (!at->is_directory(error)) continue;
    if (at.depth() + 1 == kDeepest) at.disable_recursion_pending();
    if (iteration_of(at->path()) >= 0) found.push_back(at->path());
  }
  std::ranges::stable_sort(found, {}, iteration_of);
  std::vector<TraceFolder> all;
  for (const fs::path& path : found) {
    if (std::vector<std::string> ranks = traces_in(path); !ranks.empty())
      all.push_back({path.string(), std::move(ranks)});
  }
  return all;
}

MeasuredActions measured_actions(const TraceFolder& folder) {
  std::vector<std::vector<Step>> ranks;
  for (const std::string& path : folder.ranks) ranks.push_back(steps_of(path));
  MeasuredActions mean;
  const size_t steps = ranks.empty() ? 0 : ranks[0].size();
  for (size_t i = 0; i < steps; ++i) {
    Step all;
    for (const std::vector<Step>& rank : ranks) {
      if (rank.size() != steps)
        fail<DataError>("trace", folder.path, " has ranks with unlike numbers of steps");
      all.begin = std::min(all.begin, rank[i].begin);
      all.end = std::max(all.end, rank[i].end);
      for (const auto& [action, length] : rank[i].of)
        all.of[action] = std::max(all.of[action], length);
    }
    const double part = 1e-6 / static_cast<double>(steps);
    for (const auto& [action, length] : all.of) mean.of[action] += part * length;
    mean.step += part * (all.end - all.begin);
  }
  if (mean.of.empty())
    fail<DataError>("trace", folder.path,
                    " has no actions of a pipeline: give a run that trained with "
                    "--parallelism.pipeline_parallel_degree and --profiler.enable_profiling");
  return mean;
}

}  // namespace tessera::train

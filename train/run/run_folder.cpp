// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/run_folder.h"

#include "tessera/core/message.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/train/ranks/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <system_error>
#include <vector>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
// Files that a run writes into its dump folder, besides checkpoints.
constexpr std::array<const char*, 4> kResults{kConfig, "metrics.jsonl", "loss.svg",
                                              "model.safetensors"};

}  // namespace

RunFolder::RunFolder(const Config& config, const Print& print)
    : path_(config.dump_folder),
      overwrite_(config.overwrite),
      checkpoints_(file(config.checkpoint.folder), config.checkpoint.mode()) {
  const bool first = own_rank() == 0;
  if (first) lock_ = std::make_unique<io::FolderLock>(path_, "dump_folder");
  const Patience patience;
  std::string fault;
  if (first) {
    if (config.checkpoint.enable || (overwrite_ && !checkpoints_.steps().empty())) {
      checkpoint_lock_ = std::make_unique<io::FolderLock>(checkpoints_.path(), "checkpoint.folder");
      checkpoints_.recover();
    }
    fault = overwrite_ ? source_in_the_way(config) : results_in_the_way(config, print);
  }
  fault = text_of_first(fault);
  if (fault.empty()) {
    if (first) io::remove_unfinished(path_, kResults);
    return;
  }
  meet_before_failing();
  fail<ConfigError>("--dump_folder", fault);
}

std::string RunFolder::file(std::string_view name) const {
  return (fs::path(path_) / name).string();
}

// The error if the dump folder holds results that this run would replace; empty: none. A run that
// was killed before its first checkpoint may start again, because it makes the same results.
std::string RunFolder::results_in_the_way(const Config& config, const Print& print) const {
  const bool saves = config.checkpoint.enable;
  const std::vector<int64_t> steps = checkpoints_.steps();
  if (saves && !steps.empty()) return "";  // resumes, or says why it cannot
  const auto parsed = [](const std::string& text) {
    auto json = io::parse_json(text).value;
    if (json.is_object()) json.erase("dump_folder");  // which a run may be given in other words
    return json;
  };
  const bool same =
      fs::exists(file(kConfig)) && parsed(io::read_file(file(kConfig))) == parsed(config.json());
  std::vector<std::string> found;
  for (const std::string name : kResults) {
    const fs::path path = file(name);
    if (!fs::exists(fs::symlink_status(path)) || (same && name == kConfig)) continue;
    if (!fs::is_regular_file(path) || fs::file_size(path) > 0) found.push_back(name);
  }
  if (found.empty() && steps.empty()) return "";
  if (saves && same && found == std::vector<std::string>{"metrics.jsonl"}) {
    print(fmt::format("{} has no checkpoint yet: the run starts again at step 0", path_));
    return "";
  }
  if (!steps.empty()) {
    found.push_back(steps.size() == 1
                        ? checkpoints_.folder_of(steps[0])
                        : fmt::format("{} up to {}", counted(steps.size(), "checkpoint"),
                                      checkpoints_.folder_of(steps.back())));
  }
  return fmt::format(
      "{} holds the results of another run ({}), which are kept: give another --dump_folder, or "
      "--overwrite to remove them{}",
      path_, fmt::join(found, ", "),
      steps.empty() ? "" : ", or --checkpoint.enable to resume from the latest checkpoint");
}

// The error if the run would remove what it is to begin with; empty: it would not.
std::string RunFolder::source_in_the_way(const Config& config) const {
  const CheckpointConfig& c = config.checkpoint;
  const bool loads_hf = !config.initial_hf_folder().empty();
  const std::string source =
      loads_hf ? config.initial_hf_folder() : std::string(c.enable ? c.initial_load_path : "");
  if (source.empty()) return "";
  for (const std::string& folder : {path_, checkpoints_.path()}) {
    const fs::path from =
        fs::weakly_canonical(source).lexically_relative(fs::weakly_canonical(folder));
    if (from.empty() || *from.begin() == "..") continue;
    return fmt::format(
        "--overwrite would remove {}, which {} names: give another --dump_folder", source,
        !config.initial_hf.empty() ? "--model.initial_hf" : "--checkpoint.initial_load_path");
  }
  return "";
}

void RunFolder::remove_old_results() {
  if (!overwrite_ || own_rank() != 0) return;
  for (const char* name : kResults) {
    std::error_code error;
    fs::remove(file(name), error);
    if (error) fail<IoError>("--overwrite", "cannot remove ", file(name), ": ", error.message());
  }
  checkpoints_.clear();
}

}  // namespace tessera::train

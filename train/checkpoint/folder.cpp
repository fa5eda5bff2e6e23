// SPDX-License-Identifier: Apache-2.0
// A step that a save replaces is renamed to `step-N.replaced`. After a kill it gets its name back
// if there is no step-N, and `.partial` folders are removed. A purge renames before it removes, and
// counts only complete steps, so that damaged ones never displace a good one.
#include "tessera/train/checkpoint/folder.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/checkpoint/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// Suffixes of folders that are not checkpoints: being written or removed, and replaced by a newer
// save.
constexpr std::string_view kPartial = ".partial", kReplaced = ".replaced";

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(folder, error)) return names;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (error) fail<IoError>("checkpoint", "cannot list folder ", folder, ": ", error.message());
  return names;
}

void rename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail<IoError>("checkpoint", "cannot rename ", from, " to ", to, ": ", error.message());
}

// What cannot be removed now (a reader on a network file system holds it) goes at the next start.
void remove_quietly(const std::string& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

// After the renaming it is no longer a checkpoint, even if the removal fails.
void remove_step(const std::string& folder) {
  const std::string going = folder + std::string(kPartial);
  remove_quietly(going);
  rename(folder, going);
  remove_quietly(going);
}

// Without reading the tensors, which is enough for a purge.
bool looks_whole(const std::string& folder) {
  try {
    (void)read_manifest(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string CheckpointFolder::folder_of(int64_t step) const {
  return io::below(path_, concat("step-", step));
}

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(path_)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

std::vector<std::string> CheckpointFolder::latest_first() const {
  std::vector<std::string> folders;
  for (const int64_t step : steps()) folders.push_back(folder_of(step));
  std::ranges::reverse(folders);
  return folders;
}

std::string CheckpointFolder::existing(int64_t step) const {
  const std::vector<int64_t> all = steps();
  if (std::ranges::count(all, step)) return folder_of(step);
  fail<ConfigError>(
      "checkpoint.load_step", "there is no step-", step, " in ", io::excerpt(path_), "; it has ",
      all.empty() ? "no checkpoints" : fmt::format("step-{}", fmt::join(all, ", step-")));
}

void CheckpointFolder::recover() const {
  for (const std::string& name : names_in(path_)) {
    const bool replaced = name.ends_with(kReplaced);
    if (!replaced && !name.ends_with(kPartial)) continue;
    const std::string own = name.substr(0, name.rfind('.'));
    if (!step_of(own)) continue;
    std::error_code error;
    const std::string from = io::below(path_, name), to = io::below(path_, own);
    if (replaced && !fs::exists(to, error)) rename(from, to);
    else remove_quietly(from);
  }
  io::sync_folder(path_);
}

std::string CheckpointFolder::begin(int64_t step) const {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) fail<IoError>("checkpoint", "cannot create ", path_, ": ", error.message());
  const std::string partial = partial_of(step);
  fs::remove_all(partial, error);
  if (!fs::create_directory(partial, error) || error)  // nobody else's
    fail<IoError>("checkpoint", "cannot create ", partial, ": ",
                  error ? error.message() : "it exists already");
  set_mode(partial);  // before there is a file in it
  return partial;
}

void CheckpointFolder::set_mode(const std::string& folder) const {
  if (!mode_) return;
  const auto of_file = static_cast<fs::perms>(*mode_);
  const auto of_folder = static_cast<fs::perms>(*mode_ | (*mode_ & 0444U) >> 2);
  std::error_code error;
  fs::permissions(folder, of_folder, error);
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;) {
    fs::permissions(at->path(), at->is_directory() ? of_folder : of_file, error);
    if (!error) at.increment(error);
  }
  if (error)
    fail<IoError>("checkpoint", "cannot set the permissions of what is in ", folder, ": ",
                  error.message());
}

void CheckpointFolder::finish(int64_t step) const {
  set_mode(partial_of(step));
  const std::string whole = folder_of(step), replaced = whole + std::string(kReplaced);
  if (fs::exists(whole)) {
    std::error_code ignored;
    fs::remove_all(replaced, ignored);
    rename(whole, replaced);
  }
  rename(partial_of(step), whole);
  io::sync_folder(path_);
  remove_quietly(replaced);
}

std::string CheckpointFolder::partial_of(int64_t step) const {
  return folder_of(step) + std::string(kPartial);
}

void CheckpointFolder::clear() const {
  for (const int64_t step : steps()) remove_step(folder_of(step));
}

void CheckpointFolder::purge(int64_t keep, int64_t saved) const {
  if (keep == 0) return;
  std::vector<int64_t> whole;
  for (const int64_t step : steps()) {
    if (step != saved && looks_whole(folder_of(step))) whole.push_back(step);
  }
  while (static_cast<int64_t>(whole.size()) >= keep) {
    remove_step(folder_of(whole.front()));
    whole.erase(whole.begin());
  }
}

StepFolders any_steps_at(const std::string& path, const std::string& folder) {
  std::error_code error;
  if (fs::exists(io::below(path, kManifestFile), error)) return {{path}, IfDamaged::fail};
  for (const std::string& place : {path, io::below(path, folder)}) {
    if (auto steps = CheckpointFolder(place).latest_first(); !steps.empty())
      return {std::move(steps), IfDamaged::skip};
  }
  return {};
}

StepFolders steps_at(const std::string& path, const std::string& folder) {
  StepFolders steps = any_steps_at(path, folder);
  if (!steps.paths.empty()) return steps;
  if (std::error_code error; !fs::exists(path, error))
    fail<ConfigError>("checkpoint", io::excerpt(path), " does not exist");
  fail<DataError>("checkpoint", path, " is neither a step's folder (with a ", kManifestFile,
                  ") nor one that holds step folders, by itself or in ", folder);
}

std::unique_ptr<CheckpointReader> first_whole(const StepFolders& steps, const Warn& warn,
                                              const Check& check) {
  for (const std::string& step : steps.paths) {
    try {
      auto reader = std::make_unique<CheckpointReader>(step);
      check(*reader);
      return reader;
    } catch (const Error& error) {
      if (steps.if_damaged == IfDamaged::fail) throw;
      warn(concat("warning: skipped a checkpoint: ", error.what()));
    }
  }
  if (steps.paths.empty()) return nullptr;
  fail_none_whole(steps.paths.size(), fs::path(steps.paths[0]).parent_path().string());
}

void fail_none_whole(size_t steps, const std::string& folder) {
  fail<DataError>("checkpoint", "none of the ", steps, " step folders in ", folder,
                  " is complete; move them away to start again");
}

}  // namespace tessera::train

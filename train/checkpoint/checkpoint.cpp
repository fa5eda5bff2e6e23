// SPDX-License-Identifier: Apache-2.0
// A step that a save replaces is renamed to `step-N.replaced`. After a kill it gets its name back
// if there is no step-N, and `.partial` folders are removed. A purge renames before it removes, and
// counts only complete steps, so that damaged ones never displace a good one.
#include "tessera/train/checkpoint/checkpoint.h"

#include "tessera/kernels/matmul/matmul.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// Suffixes of folders that are not checkpoints: being written or removed, and replaced by a newer
// save.
constexpr std::string_view kPartial = ".partial", kReplaced = ".replaced";
constexpr std::array<std::string_view, 4> kExcludable{"optimizer", "lr_scheduler", "dataloader",
                                                      "train_state"};

std::string below(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

// The N of `step-N`, without leading zeros.
std::optional<int64_t> step_of(std::string_view name) {
  constexpr std::string_view kStep = "step-";
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool canonical = error == std::errc() && std::to_string(step) == name && step >= 0;
  return canonical ? std::optional(step) : std::nullopt;
}

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

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    words.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return words;
}

TensorEntry entry_of(const Tensor& t) {
  return {std::string(name(t.dtype())), {t.shape().begin(), t.shape().end()}};
}

std::string text_of(const TensorEntry& e) {
  return fmt::format("{}[{}]", io::excerpt(e.dtype), fmt::join(e.shape, ", "));
}

uint64_t bytes_of(const std::vector<nn::NamedParameter>& tensors) {
  constexpr uint64_t kHeader = 256;  // above what a tensor takes in headers and manifest
  uint64_t bytes = 0;
  for (const auto& t : tensors) {
    bytes += static_cast<uint64_t>(t.tensor.numel() * item_size(t.tensor.dtype())) +
             4 * (kHeader + t.name.size());
  }
  return bytes;
}

CheckpointFile write_part(const std::string& folder, const std::string& part,
                          const std::vector<nn::NamedParameter>& tensors, int64_t step) {
  CheckpointFile file{part + ".safetensors", part, {}, {}};
  file.sum =
      io::write_safetensors(below(folder, file.name), tensors, {{"step", std::to_string(step)}});
  for (const auto& t : tensors) file.tensors.emplace(t.name, entry_of(t.tensor));
  return file;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = below(folder, kManifestFile);
  std::error_code error;
  if (!fs::exists(path, error))
    fail<DataError>("checkpoint", folder, " is incomplete or damaged: it has no ", kManifestFile);
  Manifest manifest = parse_manifest(io::read_file(path), path);
  const fs::path whole = fs::absolute(folder).lexically_normal();
  const std::string name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  if (const auto step = step_of(name); step && *step != manifest.progress.step) {
    fail<DataError>("checkpoint", folder, " is named ", name, ", but its manifest is of step ",
                    manifest.progress.step, "; rename it to step-", manifest.progress.step,
                    " if that step is missing, or remove it");
  }
  return manifest;
}

// Faults of the files that a manifest lists; reads their bytes if `sums`.
std::vector<std::string> file_faults(const std::string& folder, const Manifest& manifest,
                                     bool sums) {
  std::vector<std::string> faults;
  for (const CheckpointFile& file : manifest.files) {
    std::error_code error;
    const std::string path = below(folder, file.name);
    const uint64_t bytes = fs::file_size(path, error);
    if (error) {
      faults.push_back(fmt::format("{}: {}", file.name, error.message()));
    } else if (bytes != file.sum.bytes) {
      faults.push_back(
          fmt::format("{} has {} bytes, expected {}", file.name, bytes, file.sum.bytes));
    } else if (sums) {
      const io::FileSum sum = io::sum_of_file(path);
      if (sum != file.sum)
        faults.push_back(fmt::format("{} has the checksum {:08x}, expected {:08x}", file.name,
                                     sum.crc32c, file.sum.crc32c));
    }
  }
  return faults;
}

// Without reading the tensors, which is enough for a purge.
bool looks_whole(const std::string& folder) {
  try {
    return file_faults(folder, read_manifest(folder), false).empty();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void CheckpointConfig::fields(config::Fields& f) {
  f.add("enable", enable, "save checkpoints and resume from the latest one");
  f.add("folder", folder, "checkpoint folder, below dump_folder");
  f.add("interval", interval, "steps between checkpoints", {.min = 1, .unit = "steps"});
  f.add("keep_latest_k", keep_latest_k, "checkpoints to keep; 0 keeps all",
        {.min = 0, .max = 1 << 30});
  f.add("last_save_model_only", last_save_model_only,
        "save only the model after the last step; training cannot resume from it");
  f.add("export_dtype", export_dtype, "dtype of a checkpoint that last_save_model_only saves",
        {.choices = {"float32", "bfloat16", "float16"}});
  f.add("load_step", load_step, "step of the checkpoint to resume from; -1: the latest valid one",
        {.min = -1, .unit = "steps"});
  f.add("initial_load_path", initial_load_path,
        "checkpoint to start from if the run has none of its own: a step folder or a dump folder");
  f.add("initial_load_model_only", initial_load_model_only,
        "load only the model from initial_load_path and start at step 0");
  f.add("exclude_from_loading", exclude_from_loading,
        "parts that are not loaded on resume, separated by commas: optimizer, lr_scheduler, "
        "dataloader, train_state");
}

std::vector<std::string> CheckpointConfig::conflicts() const {
  std::vector<std::string> faults;
  if (keep_latest_k == 1) {
    faults.emplace_back(
        "[--checkpoint.keep_latest_k] 1 would leave no checkpoint if that one is damaged: give 0 "
        "(keep all) or at least 2");
  }
  if (folder.empty()) faults.emplace_back("[--checkpoint.folder] is empty; give a folder");
  for (const std::string& part : split(exclude_from_loading)) {
    if (std::ranges::count(kExcludable, part)) continue;
    faults.push_back(fmt::format("[--checkpoint.exclude_from_loading] '{}' is not one of {}",
                                 io::excerpt(part), fmt::join(kExcludable, ", ")));
  }
  if (!last_save_model_only && export_dtype != "float32") {
    faults.emplace_back(
        "[--checkpoint.export_dtype] applies only to a checkpoint of the model alone: it needs "
        "--checkpoint.last_save_model_only");
  }
  if (excludes("train_state") && !excludes("lr_scheduler")) {
    faults.emplace_back(
        "[--checkpoint.exclude_from_loading] without train_state the step count restarts at 0, and "
        "the schedule must restart with it: exclude lr_scheduler too");
  }
  return faults;
}

bool CheckpointConfig::excludes(std::string_view part) const {
  return std::ranges::count(split(exclude_from_loading), part) > 0;
}

DType CheckpointConfig::exported_dtype() const {
  return export_dtype == "bfloat16"  ? DType::bf16
         : export_dtype == "float16" ? DType::f16
                                     : DType::f32;
}

std::string CheckpointFolder::folder_of(int64_t step) const {
  return below(path_, concat("step-", step));
}

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(path_)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

std::unique_ptr<CheckpointReader> CheckpointFolder::latest(const Warn& warn) const {
  const std::vector<int64_t> all = steps();
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    try {
      return std::make_unique<CheckpointReader>(folder_of(*step));
    } catch (const Error& error) {
      warn(concat("warning: skipped a checkpoint: ", error.what()));
    }
  }
  if (!all.empty()) {
    fail<DataError>("checkpoint", "none of the ", all.size(), " step folders in ", path_,
                    " is complete; move them away to start again");
  }
  return nullptr;
}

std::unique_ptr<CheckpointReader> CheckpointFolder::at(int64_t step) const {
  const std::vector<int64_t> all = steps();
  if (std::ranges::count(all, step)) return std::make_unique<CheckpointReader>(folder_of(step));
  fail<DataError>(
      "checkpoint.load_step", "there is no step-", step, " in ", path_, "; it has ",
      all.empty() ? "no checkpoints" : fmt::format("step-{}", fmt::join(all, ", step-")));
}

void CheckpointFolder::recover() const {
  for (const std::string& name : names_in(path_)) {
    const bool replaced = name.ends_with(kReplaced);
    if (!replaced && !name.ends_with(kPartial)) continue;
    const std::string own = name.substr(0, name.rfind('.'));
    if (!step_of(own)) continue;
    std::error_code error;
    const std::string from = below(path_, name), to = below(path_, own);
    if (replaced && !fs::exists(to, error)) rename(from, to);
    else remove_quietly(from);
  }
  io::sync_folder(path_);
}

uint64_t CheckpointFolder::save(const Checkpoint& c) const {
  const std::string whole = folder_of(c.progress.step);
  const std::string partial = whole + std::string(kPartial);
  const std::string replaced = whole + std::string(kReplaced);
  Manifest manifest{c.progress, c.seed, c.config, c.data_windows, {}, product_route(), c.data};
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) fail<IoError>("checkpoint", "cannot create ", path_, ": ", error.message());
  constexpr uint64_t kSlack = uint64_t{1} << 20;
  io::require_space(path_, bytes_of(c.model) + bytes_of(c.optimizer) + c.config.size() + kSlack,
                    "checkpoint");
  try {
    fs::remove_all(partial, error);
    if (!fs::create_directory(partial, error) || error)  // nobody else's
      fail<IoError>("checkpoint", "cannot create ", partial, ": ",
                    error ? error.message() : "it exists already");
    manifest.files.push_back(write_part(partial, "model", c.model, c.progress.step));
    if (!c.optimizer.empty())
      manifest.files.push_back(write_part(partial, "optimizer", c.optimizer, c.progress.step));
    io::write_file_atomically(below(partial, kManifestFile), manifest_text(manifest));
    if (fs::exists(whole)) {
      fs::remove_all(replaced, error);
      rename(whole, replaced);
    }
    rename(partial, whole);
    io::sync_folder(path_);
  } catch (...) {
    recover();
    throw;
  }
  remove_quietly(replaced);
  uint64_t bytes = 0;
  for (const CheckpointFile& file : manifest.files) bytes += file.sum.bytes;
  return bytes;
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

CheckpointReader::CheckpointReader(std::string step_folder)
    : path_(std::move(step_folder)), manifest_(read_manifest(path_)) {
  const std::vector<std::string> faults = file_faults(path_, manifest_, true);
  if (!faults.empty())
    fail<DataError>("checkpoint", path_,
                    " is incomplete or damaged: ", fmt::format("{}", fmt::join(faults, "; ")));
  for (const CheckpointFile& file : manifest_.files)
    files_.push_back(std::make_unique<io::SafetensorsFile>(below(path_, file.name)));
}

Tensor CheckpointReader::read(const std::string& tensor) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto listed = manifest_.files[i].tensors.find(tensor);
    if (listed == manifest_.files[i].tensors.end()) continue;
    Tensor t = files_[i]->read(tensor);
    if (entry_of(t) != listed->second) {
      fail<DataError>("checkpoint", path_, " is inconsistent: ", io::excerpt(tensor), " is ",
                      text_of(entry_of(t)), " in ", manifest_.files[i].name, " and ",
                      text_of(listed->second), " in its manifest");
    }
    return t;
  }
  fail<DataError>("checkpoint", path_, " has no tensor ", io::excerpt(tensor));
}

std::vector<nn::NamedParameter> CheckpointReader::read_all(std::string_view part) const {
  std::vector<nn::NamedParameter> all;
  for (const auto& [name, entry] : manifest_.tensors(part)) all.push_back({name, read(name)});
  return all;
}

std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path, const Warn& warn,
                                                  const std::string& folder) {
  std::error_code error;
  if (fs::exists(below(path, kManifestFile), error))
    return std::make_unique<CheckpointReader>(path);
  for (const std::string& place : {path, below(path, folder)}) {
    if (auto found = CheckpointFolder(place).latest(warn)) return found;
  }
  fail<DataError>("checkpoint", path, " is neither a step's folder (with a ", kManifestFile,
                  ") nor one that holds step folders, by itself or in ", folder);
}

std::vector<std::string> tensor_differences(const std::map<std::string, TensorEntry>& there,
                                            const std::vector<nn::NamedParameter>& wanted) {
  std::vector<std::string> differences;
  std::set<std::string_view> known;
  for (const auto& [name, tensor] : wanted) {
    known.insert(name);
    const auto at = there.find(name);
    const TensorEntry expected = entry_of(tensor);
    if (at == there.end()) {
      differences.push_back(concat(name, " is missing"));
    } else if (at->second != expected) {
      differences.push_back(
          concat(name, " is ", text_of(at->second), ", expected ", text_of(expected)));
    }
  }
  for (const auto& [name, entry] : there) {
    if (!known.contains(name))
      differences.push_back(
          concat(io::excerpt(name), ", ", text_of(entry), ", is not in this run"));
  }
  return differences;
}

std::vector<ConfigDifference> config_differences(std::string_view before, std::string_view now) {
  const auto fields = [](std::string_view text) {
    std::map<std::string, std::string> flat;
    const nlohmann::ordered_json json = io::parse_json(text).value;
    if (!json.is_object()) fail<DataError>("config", "not a JSON object");
    for (const auto& [section, value] : json.items()) {
      if (!value.is_object()) flat[section] = value.dump();
      else
        for (const auto& [key, member] : value.items()) flat[section + '.' + key] = member.dump();
    }
    return flat;
  };
  const auto a = fields(before), b = fields(now);
  std::vector<ConfigDifference> differences;
  for (const auto& [field, value] : a) {
    const auto other = b.find(field);
    if (other == b.end()) differences.push_back({field, value, ""});
    else if (other->second != value) differences.push_back({field, value, other->second});
  }
  for (const auto& [field, value] : b) {
    if (!a.contains(field)) differences.push_back({field, "", value});
  }
  return differences;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/config.h"

#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace tessera::train {
namespace {

constexpr std::array<std::string_view, 4> kExcludable{"optimizer", "lr_scheduler", "dataloader",
                                                      "train_state"};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    words.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return words;
}

// None: not permissions of a file that its owner can use.
io::FileMode mode_of(std::string_view text) {
  unsigned mode = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, mode, 8);
  constexpr unsigned kOwner = 0600, kAll = 0666;
  if (error != std::errc{} || stop != end || (mode & kOwner) != kOwner || (mode & ~kAll) != 0)
    return {};
  return mode;
}

}  // namespace

void CheckpointConfig::fields(config::Fields& f) {
  f.add("enable", enable, "save checkpoints and resume from the latest one");
  f.add("folder", folder, "checkpoint folder, below dump_folder");
  f.add("interval", interval, "steps between checkpoints", {.min = 1, .unit = "steps"});
  f.add_choice(
      "async_mode", async_mode,
      "async: training goes on while a copy of the state is written; the copy takes at most "
      "as much memory as the state that a rank holds",
      std::vector<std::pair<std::string, AsyncMode>>{{"disabled", AsyncMode::disabled},
                                                     {"async", AsyncMode::async}});
  f.add("enable_first_step_checkpoint", enable_first_step_checkpoint,
        "save after the first step too, to find out early that saving works");
  f.add("keep_latest_k", keep_latest_k, "checkpoints to keep; 0 keeps all",
        {.min = 0, .max = 1 << 30});
  f.add(
      "last_save_model_only", last_save_model_only,
      "save only the model after the last step, in a third of the space; a finished run cannot be "
      "continued then");
  f.add("export_dtype", export_dtype, "dtype of a checkpoint that last_save_model_only saves",
        {.choices = {"float32", "bfloat16", "float16"}});
  f.add("load_step", load_step, "step of the checkpoint to resume from; -1: the latest valid one",
        {.min = -1, .unit = "steps"});
  f.add("initial_load_path", initial_load_path,
        "checkpoint to start from if the run has none of its own: a step folder or a dump folder");
  f.add("initial_load_model_only", initial_load_model_only,
        "load only the model from initial_load_path and start at step 0");
  f.add("initial_load_in_hf", initial_load_in_hf,
        "initial_load_path, or else hf_assets_path, is a folder of Hugging Face: config.json and "
        "safetensors");
  f.add("last_save_in_hf", last_save_in_hf,
        "after the last step also write the folder hugging_face into its checkpoint, as "
        "transformers loads it");
  f.add("exclude_from_loading", exclude_from_loading,
        "parts that are not loaded on resume, separated by commas: optimizer, lr_scheduler, "
        "dataloader, train_state");
  f.add("file_mode", file_mode,
        "permissions of the files of checkpoints and of model.safetensors, in octal, such as 0600; "
        "who may read the files of a checkpoint may enter its folder; none: as the umask says");
}

std::vector<std::string> CheckpointConfig::conflicts() const {
  std::vector<std::string> faults;
  if (keep_latest_k == 1) {
    faults.emplace_back(
        "[--checkpoint.keep_latest_k] 1 would leave no checkpoint if that one is damaged: give 0 "
        "(keep all) or at least 2");
  }
  if (!file_mode.empty() && !mode_of(file_mode)) {
    faults.push_back(fmt::format(
        "[--checkpoint.file_mode] '{}': expected permissions in octal by which the owner may read "
        "and write, such as 0600 or 0640",
        io::excerpt(file_mode)));
  }
  if (folder.empty()) faults.emplace_back("[--checkpoint.folder] is empty; give a folder");
  for (const std::string& part : split(exclude_from_loading)) {
    if (std::ranges::count(kExcludable, part)) continue;
    faults.push_back(fmt::format("[--checkpoint.exclude_from_loading] '{}' is not one of {}",
                                 io::excerpt(part), fmt::join(kExcludable, ", ")));
  }
  if (excludes("train_state") && !excludes("lr_scheduler")) {
    faults.emplace_back(
        "[--checkpoint.exclude_from_loading] without train_state the step count restarts at 0, and "
        "the schedule must restart with it: exclude lr_scheduler too");
  }
  return faults;
}

std::vector<std::string> CheckpointConfig::warnings() const {
  if (last_save_model_only || export_dtype == "float32") return {};
  return {concat("checkpoint.export_dtype ", export_dtype,
                 " is not used: it applies only to a checkpoint of the model alone, by "
                 "--checkpoint.last_save_model_only")};
}

bool CheckpointConfig::excludes(std::string_view part) const {
  return std::ranges::count(split(exclude_from_loading), part) > 0;
}

DType CheckpointConfig::exported_dtype() const {
  return export_dtype == "bfloat16"  ? DType::bf16
         : export_dtype == "float16" ? DType::f16
                                     : DType::f32;
}

io::FileMode CheckpointConfig::mode() const { return mode_of(file_mode); }

}  // namespace tessera::train

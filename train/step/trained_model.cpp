// SPDX-License-Identifier: Apache-2.0
// Uses the checkpoint or model.safetensors, whichever has the higher step. A checkpoint contains
// its configuration and tokenizer: those of the folder may be of a later command. What a command
// does follows from both, so another step may take the place of a damaged one only if they are
// equal.
#include "tessera/train/step/trained_model.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/models/pipeline/whole.h"
#include "tessera/nn/lay_out.h"
#include "tessera/train/data/fine_tuning_rows.h"
#include "tessera/train/exchange/model.h"
#include "tessera/train/ranks/ranks.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";

// The step in the metadata of model.safetensors; 0 if missing.
int64_t step_of_file(const std::string& path) {
  if (!fs::exists(path)) return 0;
  const io::Metadata metadata = io::SafetensorsFile(path).metadata();
  const auto at = metadata.find("step");
  int64_t step = 0;
  if (at != metadata.end())
    std::from_chars(at->second.data(), at->second.data() + at->second.size(), step);
  return step;
}

// A model's file as a checkpoint of whole tensors, so that ranges of it are read in the same way.
Manifest manifest_of_file(const std::string& path) {
  const io::SafetensorsFile file(path);
  Manifest manifest;
  manifest.whole_tensors = true;
  manifest.files = {{kModelFile, fs::file_size(path)}};
  for (const auto& [name, entry] : file.entries()) {
    const std::optional<DType> dtype = io::dtype_of_file_type(entry.dtype);
    if (!dtype || entry.shape.size() > static_cast<size_t>(kMaxRank)) {
      fail<DataError>("checkpoint", path, ": ", name, " is ", entry.dtype, " of ",
                      counted(entry.shape.size(), "dim"), ", which is not supported");
    }
    TensorEntry tensor{*dtype, Shape(std::span<const int64_t>(entry.shape))};
    if (tensor.shape.numel() > 0) tensor.chunks.push_back({0, whole_box(tensor.shape)});
    manifest.model.emplace(name, std::move(tensor));
  }
  return manifest;
}

}  // namespace

std::shared_ptr<const CheckpointReader> open_model_file(const std::string& folder) {
  const std::string file = (fs::path(folder) / kModelFile).string();
  if (!fs::exists(file)) return nullptr;
  return std::make_shared<const CheckpointReader>(folder, manifest_of_file(file));
}

TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                const Catalogue& catalogue) {
  const std::string run = (fs::path(path) / "config.json").string();
  const std::string file = (fs::path(path) / kModelFile).string();
  const bool is_step = fs::exists(fs::path(path) / kManifestFile);
  TrainedModel model;
  if (is_step || !fs::exists(run)) {
    model.steps_ = steps_at(path);
  } else {
    if (is_hf_folder(path))
      fail<DataError>("checkpoint", path,
                      " is a folder of Hugging Face, expected one of a run: convert it with "
                      "`tessera import-hf ",
                      path, " --out DIR` and give DIR");
    model.config = read_config(run, catalogue);
    const fs::path folder = fs::path(path) / model.config.checkpoint.folder;
    model.steps_.paths = CheckpointFolder(folder.string()).latest_first();
  }
  model.from_ = first_whole(model.steps_, warn, [&](const CheckpointReader& from) {
    model.tokenizer = from.tokenizer();
  });
  if (model.from_ && step_of_file(file) <= model.from_->manifest().progress.step) {
    auto& steps = model.steps_.paths;
    steps.erase(steps.begin(), std::ranges::find(steps, model.from_->path()));
    const std::string& config = model.from_->manifest().config;
    if (config == "{}")
      fail<DataError>("checkpoint", model.from_->path(),
                      " does not say what model it is of: its program saved no configuration; give "
                      "Config::json() as `config` of train::save, or load it there by train::load");
    model.config = parse_run_config(config, model.from_->path(), catalogue);
    return model;
  }
  model.steps_ = {};
  model.tokenizer = nullptr;
  model.from_ = open_model_file(path);
  if (!model.from_)
    fail<DataError>("checkpoint", path, " contains neither a checkpoint nor ", kModelFile);
  return model;
}

int64_t answer_end(const Config& config, const Tokenizer& tokenizer, const Warn& warn) {
  if (config.dataloader.format == "text") return -1;
  try {
    return chat_encoder_of(config.dataloader, tokenizer).end_of_answer();
  } catch (const Error& error) {
    if (warn) warn(concat("warning: the mark that ends an answer is not known: ", error.what()));
    return -1;
  }
}

// A checkpoint of the model alone may have another dtype than the run: such tensors are read as
// they are stored, to be converted.
std::vector<nn::NamedParameter> TrainedModel::as_saved(models::LanguageModel& model,
                                                       const CheckpointReader& from) const {
  const Manifest &m = from.manifest(), &first = from_->manifest();
  const auto of_model = [](const ConfigDifference& d) { return d.field.starts_with("model."); };
  if (m.tokenizer != first.tokenizer ||
      (m.config != first.config &&
       std::ranges::any_of(config_differences(m.config, first.config), of_model))) {
    fail<DataError>("checkpoint", from_->path(), " is damaged, and ", from.path(),
                    " has another model or tokenizer: give the step's folder to use it");
  }
  std::vector<nn::NamedParameter> saved = model_tensors(model);
  for (auto& [name, t] : saved) {
    const auto at = m.model.find(name);
    if (at == m.model.end() || at->second.dtype == t.dtype() || !is_floating(t.dtype()) ||
        !is_floating(at->second.dtype))
      continue;
    const DType dtype = at->second.dtype;
    t = t.is_distributed()
            ? make_distributed(empty(local(t).shape(), dtype), t.shape(), layout_of(t))
            : empty(t.shape(), dtype);
  }
  const TensorEntries there = without(m.model, models::names_elsewhere(model));
  if (const auto faults = tensor_differences(there, saved); !faults.empty())
    fail<DataError>("checkpoint", from.path(), " does not fit the model: ", first_few(faults));
  return saved;
}

void TrainedModel::fill(models::LanguageModel& model, const nn::LayoutOf& layout_of, Device device,
                        const Warn& warn) const {
  const NoGrad guard;
  const Patience patience;
  nn::lay_out(model, layout_of);
  nn::allocate(model, device);
  const std::vector<nn::NamedParameter> own = model_tensors(model);
  std::vector<nn::NamedParameter> saved;
  if (steps_.paths.empty()) {
    on_all_or_none([&] {
      saved = as_saved(model, *from_);
      from_->fill(saved);
    });
  } else {
    const auto wanted = [&](const CheckpointReader& from) { return saved = as_saved(model, from); };
    (void)load_first_whole(steps_, wanted, warn);
  }
  for (size_t i = 0; i < own.size(); ++i) nn::copy_values(own[i].tensor, saved[i].tensor);
}

}  // namespace tessera::train

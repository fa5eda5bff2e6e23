// SPDX-License-Identifier: Apache-2.0
// Uses the checkpoint or model.safetensors, whichever has the higher step. A checkpoint contains
// its configuration: the folder's config.json may be of a later command.
#include "tessera/train/run/trained_model.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/lay_out.h"

#include <charconv>
#include <filesystem>
#include <map>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                const Catalogue& catalogue) {
  const std::string run = (fs::path(path) / "config.json").string();
  const std::string file = (fs::path(path) / "model.safetensors").string();
  const bool is_step = fs::exists(fs::path(path) / kManifestFile);
  TrainedModel model;
  std::unique_ptr<CheckpointReader> from;
  if (is_step || !fs::exists(run)) {
    from = first_whole(steps_at(path), warn);
  } else {
    model.config = read_config(run, catalogue);
    const fs::path folder = fs::path(path) / model.config.checkpoint.folder;
    from = CheckpointFolder(folder.string()).latest(warn);
    if (from && step_of_file(file) > from->manifest().progress.step) from = nullptr;
  }
  if (from) {
    model.config = parse_run_config(from->manifest().config, from->path(), catalogue);
    model.checkpoint_ = std::move(from);
    return model;
  }
  if (!fs::exists(file))
    fail<DataError>("checkpoint", path, " contains neither a checkpoint nor model.safetensors");
  model.file_ = std::make_shared<const io::SafetensorsFile>(file);
  return model;
}

std::vector<nn::NamedParameter> TrainedModel::tensors() const {
  const NoGrad guard;
  std::vector<nn::NamedParameter> all =
      checkpoint_ ? checkpoint_->read_all(checkpoint_->manifest().model) : file_->read_all();
  // A model saved alone may have been exported in another dtype.
  std::map<std::string, DType> dtypes;
  const auto model = config.model.make();
  for (const auto& p : nn::named_parameters(*model)) dtypes[p.name] = p.tensor.dtype();
  for (const auto& b : nn::named_buffers(*model)) dtypes[b.name] = b.tensor.dtype();
  for (auto& [name, tensor] : all) {
    const auto own = dtypes.find(name);
    if (own != dtypes.end() && is_floating(tensor.dtype())) tensor = cast(tensor, own->second);
  }
  return all;
}

void TrainedModel::fill(nn::Module& model, const nn::LayoutOf& layout_of) const {
  nn::lay_out(model, layout_of);
  nn::load(model, tensors());
}

}  // namespace tessera::train

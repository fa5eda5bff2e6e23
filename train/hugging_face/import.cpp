// SPDX-License-Identifier: Apache-2.0
// Everything is checked before the first byte is written: the configuration, then names, shapes and
// dtypes of all tensors. The folder gets its own name last, so paths in config.json are those that
// it will have.
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/new_folder.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/checkpoint/model_writer.h"
#include "tessera/train/hugging_face/hugging_face.h"
#include "tessera/train/hugging_face/weights.h"
#include "tessera/train/ranks/ranks.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostConfigBytes = size_t{16} << 20, kMostCopiedBytes = size_t{256} << 20;

std::string below(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

models::HfModel read_model(const std::string& folder, const Catalogue& catalogue) {
  const std::string path = hf_file(folder, kHfConfig);
  if (path.empty()) {
    fail<DataError>("hugging_face", folder, " has no ", kHfConfig,
                    ": give the folder of a model of Hugging Face");
  }
  return models::parse_hf_config(io::read_file(path, kMostConfigBytes), path, catalogue.families);
}

// The same name without the prefix, or with it.
std::string name_there(const std::string& name, const std::string_view prefix,
                       const HfWeights& weights) {
  if (prefix.empty() || !name.starts_with(prefix) || weights.entries().contains(name)) return name;
  return name.substr(prefix.size());
}

void check_tensors(const std::vector<models::HfTensor>& tensors, const models::HuggingFace& names,
                   const HfWeights& weights, const std::string& folder) {
  static constexpr std::array<std::string_view, 4> kFloats{"F64", "F32", "BF16", "F16"};
  std::vector<std::string> faults;
  std::set<std::string> expected;
  for (const models::HfTensor& t : tensors) {
    const std::string name = name_there(t.name, names.prefix, weights);
    expected.insert(name);
    const auto at = weights.entries().find(name);
    if (at == weights.entries().end()) {
      faults.push_back(concat(t.name, " is missing"));
      continue;
    }
    const auto& [dtype, shape, begin, end] = *at->second.entry;
    const std::vector<int64_t> own(t.shape.begin(), t.shape.end());
    if (shape != own)
      faults.push_back(concat(name, " has the shape ", Shape(std::span<const int64_t>(shape)),
                              ", expected ", t.shape));
    if (std::ranges::count(kFloats, dtype) == 0) {
      faults.push_back(
          concat(name, " is ", dtype,
                 ", expected F32, BF16, F16 or F64: quantised weights cannot be read"));
    }
  }
  for (const auto& [name, entry] : weights.entries()) {
    const bool known = expected.contains(name) || models::matches_any(name, names.passed_over) ||
                       models::matches_any(concat(names.prefix, name), names.passed_over);
    if (!known) faults.push_back(concat(io::excerpt(name), " is not a tensor of such a model"));
  }
  if (!faults.empty())
    fail<DataError>("hugging_face", folder, " does not fit its ", kHfConfig, ": ",
                    first_few(faults));
}

// The files that are there; whether a tokenizer is among them.
bool copy_files(const std::string& from, const std::string& to) {
  bool tokenizer = false;
  for (const std::string_view name : hf_copied_files()) {
    const std::string path = hf_file(from, name);
    if (path.empty()) continue;
    io::write_file_atomically(below(to, name), io::read_file(path, kMostCopiedBytes));
    tokenizer = tokenizer || name == "tokenizer.json" || name == "vocab.json";
  }
  return tokenizer;
}

// A run that computes as the model was published, on any data.
Config config_of(const models::HfModel& model, const ImportOptions& o) {
  Config c;
  c.model = model.config;
  c.model.dtype() = o.dtype;
  c.training.mixed_precision_param = o.dtype;
  c.training.seq_len = std::min(c.training.seq_len, c.model.max_seq_len());
  c.sample.tokens = 0;
  c.checkpoint.enable = true;
  c.checkpoint.initial_load_path = fs::absolute(o.out).lexically_normal().string();
  return c;
}

}  // namespace

uint64_t import_hugging_face(const ImportOptions& o, const Catalogue& catalogue, const Warn& note) {
  const NoGrad guard;
  const models::HfModel model = read_model(o.from, catalogue);
  if (!model.passed_over.empty())
    note(concat("without effect here: ", first_few(model.passed_over), " of ", kHfConfig));
  const HfWeights weights(o.from);
  const std::vector<models::HfTensor> tensors = models::hf_tensors(*model.names, model.config);
  check_tensors(tensors, *model.names, weights, o.from);

  Config config = config_of(model, o);
  std::vector<std::string> faults = config.faults();
  config::throw_if_any(faults);
  io::NewFolder out(o.out, "--out");
  if (copy_files(o.from, out.path())) {
    config.hf_assets_path = out.path();
    try {
      (void)config.open_tokenizer();
      config.hf_assets_path = config.checkpoint.initial_load_path;
    } catch (const Error& error) {
      config.hf_assets_path.clear();
      note(concat("warning: the tokenizer is copied, but not used: ", error.what()));
    }
  }

  std::vector<ComingTensor> coming;
  std::map<std::string, std::pair<const models::HfTensor*, size_t>> source;
  uint64_t bytes = 0;
  for (const models::HfTensor& t : tensors) {
    for (size_t i = 0; i < t.ours.size(); ++i) {
      coming.push_back({t.ours[i].name, o.dtype, t.ours[i].shape});
      source[t.ours[i].name] = {&t, i};
      bytes += static_cast<uint64_t>(t.ours[i].shape.numel() * item_size(o.dtype));
    }
  }
  Manifest manifest;
  manifest.config = config.fields().dump();
  io::write_file_atomically(below(out.path(), kHfConfig), manifest.config);
  const CheckpointFolder folder(below(out.path(), config.checkpoint.folder));
  (void)write_model(folder, std::move(manifest), coming, [&](const std::string& name) {
    const auto& [theirs, i] = source.at(name);
    const Tensor whole = weights.read(name_there(theirs->name, model.names->prefix, weights));
    return cast(theirs->part(whole, i), o.dtype);
  });
  out.commit();
  return bytes;
}

}  // namespace tessera::train

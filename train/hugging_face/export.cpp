// SPDX-License-Identifier: Apache-2.0
// Tensors are grouped into files by their sizes, which are known before the first byte is read.
// With a tokenizer the ids of its marks go to both configurations; a generation_config.json beside
// it is copied instead of written.
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/new_folder.h"
#include "tessera/train/hugging_face/hugging_face.h"
#include "tessera/train/hugging_face/weights.h"
#include "tessera/train/run/trained_model.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string below(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

using Shard = std::vector<io::TensorBytes>;

// In the order given, as many in a file as fit, at least one.
std::vector<Shard> shards_of(const std::vector<models::HfTensor>& tensors, DType dtype,
                             uint64_t most) {
  std::vector<Shard> shards(1);
  uint64_t used = 0;
  for (const models::HfTensor& t : tensors) {
    const auto bytes = static_cast<uint64_t>(t.shape.numel() * item_size(dtype));
    if (!shards.back().empty() && used + bytes > most) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back({t.name, dtype, t.shape});
    used += bytes;
  }
  return shards;
}

// The checkpoint's own tokenizer, or else that of the run's folder, with what lies beside it there.
models::HfMarks copy_tokenizer(const TrainedModel& model, const std::string& out) {
  const std::string& assets = model.config.hf_assets_path;
  const auto tokenizer = model.tokenizer ? model.tokenizer : model.config.open_tokenizer();
  if (tokenizer->files().empty()) return {};
  std::set<std::string> copied;
  for (const TokenizerFile& file : tokenizer->files()) {
    io::write_file_atomically(below(out, file.name), file.bytes);
    copied.insert(file.name);
  }
  for (const std::string_view name : hf_copied_files()) {
    if (!fs::is_directory(assets) || copied.contains(std::string(name))) continue;
    if (const std::string path = hf_file(assets, name); !path.empty())
      io::write_file_atomically(below(out, name), io::read_file(path));
  }
  return {tokenizer->begin_id(), tokenizer->end_id()};
}

void write_generation_config(const std::string& out, const models::HfMarks& marks) {
  const std::string path = below(out, kHfGeneration);
  if (fs::exists(path)) return;
  Json json = Json::object();
  if (marks.begin >= 0) json["bos_token_id"] = marks.begin;
  if (marks.end >= 0) json["eos_token_id"] = marks.end;
  io::write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace

uint64_t export_hugging_face(const ExportOptions& o, const Catalogue& catalogue, const Warn& note) {
  const NoGrad guard;
  const TrainedModel model = open_trained_model(o.checkpoint, note, catalogue);
  const models::ModelConfig& config = model.config.model;
  const models::Family& family = models::find_family(catalogue.families, config.family());
  if (!family.hugging_face)
    fail<ConfigError>("--checkpoint", o.checkpoint, " is of family ", family.name,
                      ", which has no names of Hugging Face");
  const std::vector<models::HfTensor> tensors = models::hf_tensors(*family.hugging_face, config);
  const DType dtype = o.dtype ? *o.dtype : model.read(tensors.at(0).ours.at(0).name).dtype();
  const std::vector<Shard> shards = shards_of(tensors, dtype, o.max_shard_bytes);

  io::NewFolder out(o.out, "--out");
  const models::HfMarks marks = copy_tokenizer(model, out.path());
  io::write_file_atomically(below(out.path(), kHfConfig),
                            models::hf_config(*family.hugging_face, config, dtype, marks));
  write_generation_config(out.path(), marks);

  uint64_t bytes = 0;
  for (const Shard& shard : shards) {
    for (const io::TensorBytes& t : shard)
      bytes += static_cast<uint64_t>(t.shape.numel() * item_size(dtype));
  }
  io::require_space(out.path(), bytes + (uint64_t{1} << 20), "--out");
  Json map = Json::object();
  size_t first = 0;  // of the shard's tensors
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file =
        shards.size() == 1 ? std::string(kHfWeights)
                           : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    Tensor one;  // at a time
    (void)io::write_safetensors(below(out.path(), file), shards[s], {}, [&](size_t i) {
      const models::HfTensor& t = tensors[first + i];
      std::vector<Tensor> parts;
      one = {};
      for (const auto& [name, shape] : t.ours) {
        parts.push_back(model.read(name));
        if (parts.back().shape() != shape)
          fail<DataError>("checkpoint", o.checkpoint, ": ", name, " is ", parts.back().meta(),
                          ", expected the shape ", shape);
      }
      one = cast(t.join(parts), dtype);
      return one.numel() > 0 ? one.read_data() : nullptr;
    });
    for (const io::TensorBytes& t : shards[s]) io::append_member(map, t.name, file);
    first += shards[s].size();
  }
  if (shards.size() > 1) {
    const Json index{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}};
    io::write_file_atomically(below(out.path(), kHfIndex), index.dump(2) + "\n");
  }
  out.commit();
  return bytes;
}

}  // namespace tessera::train

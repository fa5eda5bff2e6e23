// SPDX-License-Identifier: Apache-2.0
// Tensors are grouped into files by their sizes, which are known before the first byte is read.
// The ids of special tokens go to both configurations; the rest of a generation_config.json beside
// the tokenizer stays.
#include "tessera/train/exchange/writer.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/new_folder.h"
#include "tessera/train/exchange/weights.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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

void copy_tokenizer(const HfOutput& o, const std::string& out) {
  if (!o.tokenizer || o.tokenizer->files().empty()) return;
  std::set<std::string> copied;
  for (const TokenizerFile& file : o.tokenizer->files()) {
    io::write_file_atomically(io::below(out, file.name), file.bytes);
    copied.insert(file.name);
  }
  for (const std::string_view name : hf_copied_files()) {
    if (!fs::is_directory(o.assets) || copied.contains(std::string(name))) continue;
    if (const std::string path = hf_file(o.assets, name); !path.empty())
      io::write_file_atomically(io::below(out, name), io::read_file(path));
  }
}

// What goes out; a generation_config.json is there already if it was copied.
models::HfMarks write_generation_config(const HfOutput& o, const std::string& out) {
  const std::string path = io::below(out, kHfGeneration);
  const bool exists = fs::exists(path);
  Json json = exists ? io::parse_json(io::read_file(path)).value : Json::object();
  if (!json.is_object()) fail<DataError>(o.field, path, " is not a JSON object");
  SpecialTokensConfig said = o.special_tokens;
  if (exists && said.generation == models::HfMarks())
    said.generation = models::parse_hf_marks(json.dump(), path);
  const SpecialTokensConfig marks =
      special_tokens_to_write(said, o.tokenizer.get(), o.answer_end, exists);
  const auto set = [&](const char* key, const std::string& value) {
    const bool known = json.contains(key);
    if (value.empty() || (value == "null" && !known)) return;
    Json ids = io::parse_json(value).value;
    if (known) json[key] = std::move(ids);
    else io::append_member(json, key, std::move(ids));
  };
  set("bos_token_id", marks.generation.begin);
  set("eos_token_id", marks.generation.end);
  set("pad_token_id", marks.generation.pad);
  io::write_file_atomically(path, json.dump(2) + "\n");
  return marks.config;
}

// One of ours as far as it is in `t`: the whole, or an expert of it.
Tensor read_part(const CheckpointReader& from, const models::HfTensor& t,
                 const models::NamedShape& part) {
  const TensorEntry* entry = from.manifest().find(part.name);
  Box box = entry ? whole_box(entry->shape) : Box{};
  if (entry && t.expert >= 0 && entry->shape.rank() > 0 && entry->shape[0] > t.expert) {
    box.begin[0] = t.expert;
    box.size[0] = 1;
  }
  Tensor x = from.read(part.name, box);
  if (t.expert >= 0 && x.shape().rank() > 0) x = select(x, 0, 0);
  if (x.shape() != part.shape)
    fail<DataError>("checkpoint", from.path(), ": ", part.name, " is ", x.meta(),
                    ", expected the shape ", part.shape);
  return x;
}

}  // namespace

Tensor read_joined(const CheckpointReader& from, const models::HfTensor& t) {
  std::vector<Tensor> parts;
  for (const models::NamedShape& part : t.ours) parts.push_back(read_part(from, t, part));
  return t.join(parts);
}

DType stored_dtype(const CheckpointReader& from) {
  for (const auto& [name, entry] : from.manifest().model)
    if (is_floating(entry.dtype)) return entry.dtype;
  return DType::f32;
}

uint64_t write_hugging_face(const HfOutput& o, const models::ModelConfig& config,
                            const CheckpointReader& from, const BytesDone& progress) {
  const NoGrad guard;
  const models::HuggingFace* family = config.hugging_face();
  if (!family)
    fail<ConfigError>(o.field, from.path(), " is of family ", config.family(),
                      ", which has no names of Hugging Face");
  const models::HfTensors all(*family, config);
  const std::vector<models::HfTensor>& tensors = all.all();
  const std::vector<Shard> shards = shards_of(tensors, o.dtype, o.max_shard_bytes);

  io::NewFolder out(o.folder, o.field);
  copy_tokenizer(o, out.path());
  const models::HfMarks marks = write_generation_config(o, out.path());
  io::write_file_atomically(io::below(out.path(), kHfConfig),
                            models::hf_config(*family, config, o.dtype, marks));

  uint64_t bytes = 0, written = 0;
  for (const models::HfTensor& t : tensors)
    bytes += static_cast<uint64_t>(t.shape.numel() * item_size(o.dtype));
  io::require_space(out.path(), bytes + (uint64_t{1} << 20), o.field);
  Json map = Json::object();
  size_t first = 0;  // of the shard's tensors
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file =
        shards.size() == 1 ? std::string(kHfWeights)
                           : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    Tensor one;  // at a time
    (void)io::write_safetensors(io::below(out.path(), file), shards[s], {}, [&](size_t i) {
      const models::HfTensor& t = tensors[first + i];
      one = {};
      one = contiguous(cast(read_joined(from, t), o.dtype));
      written += static_cast<uint64_t>(one.numel() * item_size(o.dtype));
      if (progress) progress(written, bytes);
      return one.numel() > 0 ? one.read_data() : nullptr;
    });
    for (const io::TensorBytes& t : shards[s]) io::append_member(map, t.name, file);
    first += shards[s].size();
  }
  if (shards.size() > 1) {
    const Json index{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}};
    io::write_file_atomically(io::below(out.path(), kHfIndex), index.dump(2) + "\n");
  }
  out.commit();
  return bytes;
}

}  // namespace tessera::train

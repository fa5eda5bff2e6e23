// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/hugging_face/weights.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"

#include <array>
#include <filesystem>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostIndexBytes = size_t{100} << 20;
constexpr int kIndexDepth = 3;

constexpr std::array<std::string_view, 9> kCopied{"tokenizer.json",
                                                  "tokenizer_config.json",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "merges.txt",
                                                  "tokenizer.model",
                                                  "chat_template.jinja",
                                                  kHfGeneration};

bool is_plain(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

std::span<const std::string_view> hf_copied_files() { return kCopied; }

std::string hf_file(const std::string& folder, std::string_view name) {
  if (!is_plain(name)) {
    fail<DataError>("hugging_face", folder, " names the file '", io::excerpt(name),
                    "', expected the name of a file in the folder itself");
  }
  const fs::path path = fs::path(folder) / name;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return {};
  const fs::path real = fs::canonical(path, error);
  if (error) fail<DataError>("hugging_face", path.string(), ": ", error.message());
  const fs::path own = fs::canonical(folder);
  if (!is_below(real, own) && !is_below(real, own.parent_path().parent_path() / "blobs")) {
    fail<DataError>("hugging_face", path.string(), " is a link to ", real.string(),
                    ", which is not in the folder; copy the file there");
  }
  return path.string();
}

HfWeights::HfWeights(const std::string& folder) {
  if (const std::string index = hf_file(folder, kHfIndex); !index.empty()) {
    read_index(folder, index);
    return;
  }
  const std::string file = hf_file(folder, kHfWeights);
  if (file.empty()) {
    fail<DataError>("hugging_face", folder, " has no ", kHfWeights, " and no ", kHfIndex,
                    ": give the folder of a model in safetensors");
  }
  files_.push_back(std::make_unique<io::SafetensorsFile>(file));
  for (const auto& [name, entry] : files_[0]->entries()) entries_[name] = {files_[0].get(), &entry};
}

void HfWeights::read_index(const std::string& folder, const std::string& index) {
  const auto bad = [&](const auto&... what) {
    fail<DataError>("hugging_face", index, ": ", what...);
  };
  const io::ParsedJson parsed =
      io::parse_json(io::read_file(index, kMostIndexBytes), {.most_depth = kIndexDepth});
  if (!parsed.faults.empty()) bad(parsed.faults[0]);
  const auto map = parsed.value.is_object() ? parsed.value.find("weight_map") : parsed.value.end();
  if (map == parsed.value.end() || !map->is_object()) bad("it has no weight_map, an object");
  std::map<std::string, const io::SafetensorsFile*> opened;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) bad("the file of ", io::excerpt(tensor), " is not text");
    const std::string name = file.get<std::string>();
    const io::SafetensorsFile*& there = opened[name];
    if (!there) {
      if (!name.ends_with(".safetensors")) bad("'", io::excerpt(name), "' is no safetensors file");
      const std::string path = hf_file(folder, name);
      if (path.empty())
        bad("there is no file ", io::excerpt(name), ", which holds ", io::excerpt(tensor));
      files_.push_back(std::make_unique<io::SafetensorsFile>(path));
      there = files_.back().get();
    }
    const auto entry = there->entries().find(tensor);
    if (entry == there->entries().end())
      bad(io::excerpt(name), " has no tensor ", io::excerpt(tensor));
    entries_[tensor] = {there, &entry->second};
  }
}

Tensor HfWeights::read(const std::string& name) const {
  const auto at = entries_.find(name);
  if (at == entries_.end())
    fail<DataError>("hugging_face", "there is no tensor ", io::excerpt(name));
  return at->second.file->read(name);
}

}  // namespace tessera::train

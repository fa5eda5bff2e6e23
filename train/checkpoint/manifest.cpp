// SPDX-License-Identifier: Apache-2.0
// The checksum is of the text, not of the values: it is compared before the JSON is parsed. Then
// the parser is strict: every member must be known. Version 3 has chunks; versions 1 and 2 had a
// file per part, of whole tensors.
#include "tessera/train/checkpoint/manifest.h"

#include "tessera/core/dtype.h"
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/json_object_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;
using io::sum_text;
using Object = io::JsonObject;
using Where = io::JsonSubject;

constexpr int64_t kVersion = 3, kLastOfWholeTensors = 2;
constexpr std::string_view kFormat = "tessera checkpoint";
// The end of the text is fixed exactly, so that the checksum covers every byte before it.
constexpr std::string_view kBeforeSum = ",\n \"crc32c\": \"", kAfterSum = "\"\n}\n";
constexpr size_t kSumDigits = 8;

// A file in the folder itself: the name cannot contain a path.
bool is_plain_name(std::string_view name) {
  const auto ok = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= 200 && name.front() != '.' && name != kManifestFile &&
         std::ranges::all_of(name, ok);
}

// Sizes or begins of dims.
Shape shape_of(const Json& json, const Object& object, const char* what) {
  if (!json.is_array()) object.bad(concat("has a ", what, " that is not a list"));
  if (json.size() > static_cast<size_t>(kMaxRank))
    object.bad(concat("has a ", what, " of more than ", kMaxRank, " dims"));
  Shape shape;
  for (const Json& size : json) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{1} << 48)
      object.bad(concat("has a ", what, " that is not of integers from 0 to 2^48"));
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

DType dtype_named(const std::string& dtype, const Object& object) {
  for (int i = 0; i < kDTypes; ++i) {
    if (name(static_cast<DType>(i)) == dtype) return static_cast<DType>(i);
  }
  object.bad(concat("has the unknown dtype ", io::excerpt(dtype)));
}

// `[file, [begins], [sizes], checksum]`
ChunkEntry chunk_entry(const Json& json, const Shape& shape, size_t files, const Object& tensor) {
  constexpr size_t kMembers = 4;
  if (!json.is_array() || json.size() != kMembers || !json[0].is_number_unsigned() ||
      !json[3].is_string())
    tensor.bad("has a chunk that is not [file, [begins], [sizes], checksum]");
  ChunkEntry chunk{json[0].get<size_t>(),
                   {shape_of(json[1], tensor, "chunk"), shape_of(json[2], tensor, "chunk")}};
  const Box& box = chunk.box;
  if (box.begin.rank() != shape.rank() || box.size.rank() != shape.rank())
    tensor.bad("has a chunk of another number of dims");
  for (int d = 0; d < shape.rank(); ++d) {
    if (box.size[d] == 0 || box.begin[d] + box.size[d] > shape[d])
      tensor.bad(concat("has a chunk ", text_of(box), " that is empty or beyond its shape"));
  }
  if (chunk.file >= files) tensor.bad(concat("has a chunk in a file that is not listed"));
  const auto sum = io::parsed_sum(json[3].get_ref<const std::string&>());
  if (!sum) tensor.bad("has a chunk whose checksum is not eight hexadecimal digits");
  chunk.crc32c = *sum;
  return chunk;
}

void check_cover(const TensorEntry& entry, const std::vector<CheckpointFile>& files,
                 const Object& tensor) {
  std::vector<Box> boxes;
  for (const ChunkEntry& c : entry.chunks) boxes.push_back(c.box);
  const auto fault = cover_fault(entry.shape, boxes);
  if (!fault) return;
  const auto text = [&](size_t i) {
    return concat(text_of(boxes[i]), " in ", files[entry.chunks[i].file].name);
  };
  if (fault->missing != 0)
    tensor.bad(concat("has chunks that leave ", fault->missing, " of its ",
                      counted(entry.shape.numel(), "element"), " out"));
  tensor.bad(concat("has chunks that overlap: ", text(fault->first), " and ", text(fault->second)));
}

// With its chunks, or, without `files`, of a file of whole tensors.
TensorEntry tensor_entry(const std::string& name, const Json& json, const Where& where,
                         const std::vector<CheckpointFile>* files) {
  Object object(json, concat("tensor ", io::excerpt(name)), where);
  TensorEntry entry{dtype_named(object.text("dtype"), object),
                    shape_of(object.at("shape"), object, "shape")};
  try {
    (void)checked_numel(entry.shape, item_size(entry.dtype), "shape");
  } catch (const ShapeError&) {
    object.bad("has a shape whose bytes overflow");
  }
  if (files) {
    const Json& chunks = object.at("chunks");
    if (!chunks.is_array()) object.bad("has chunks that are not a list");
    for (const Json& chunk : chunks)
      entry.chunks.push_back(chunk_entry(chunk, entry.shape, files->size(), object));
    check_cover(entry, *files, object);
  }
  object.finish();
  return entry;
}

void add_tensor(TensorEntries& part, const std::string& name, TensorEntry entry,
                std::set<std::string>& names, Object& top) {
  if (!names.insert(name).second) top.bad(concat("has two tensors ", io::excerpt(name)));
  part.emplace(name, std::move(entry));
}

CheckpointFile file_entry(const std::string& name, Object& object) {
  if (!is_plain_name(name)) object.bad("has a name that is not of a-z, 0-9, '.', '-' and '_'");
  return {name, static_cast<uint64_t>(object.integer("bytes")), {}};
}

void read_files(const Json& json, Manifest& m, const Where& where) {
  for (const auto& [name, value] : json.items()) {
    Object object(value, concat("file ", io::excerpt(name)), where);
    CheckpointFile file = file_entry(name, object);
    file.head = {static_cast<uint64_t>(object.integer("header_bytes")),
                 object.sum("header_crc32c")};
    object.finish();
    m.files.push_back(std::move(file));
  }
}

void read_tensors(Object& top, Manifest& m, const Where& where) {
  std::set<std::string> names;
  Object parts(top.at("tensors"), "tensors", where);
  for (const auto& [part, key] : {std::pair(&m.model, "model"),
                                  {&m.optimizer, "optimizer"},
                                  {&m.train_state, "train_state"}}) {
    for (const auto& [name, value] : parts.object(key).items())
      add_tensor(*part, name, tensor_entry(name, value, where, &m.files), names, top);
  }
  parts.finish();
}

// Files of versions 1 and 2, which list their tensors.
void read_whole_files(const Json& json, Manifest& m, const Where& where, Object& top) {
  std::set<std::string> names;
  for (const auto& [name, value] : json.items()) {
    Object object(value, concat("file ", io::excerpt(name)), where);
    CheckpointFile file = file_entry(name, object);
    const std::string part = object.text("part");
    if (part != "model" && part != "optimizer") object.bad("is of an unknown part");
    file.head = {file.bytes, object.sum("crc32c")};
    for (const auto& [tensor, entry] : object.object("tensors").items()) {
      TensorEntry parsed = tensor_entry(tensor, entry, where, nullptr);
      if (parsed.shape.numel() > 0)
        parsed.chunks.push_back({m.files.size(), whole_box(parsed.shape)});
      add_tensor(part == "model" ? m.model : m.optimizer, tensor, std::move(parsed), names, top);
    }
    object.finish();
    m.files.push_back(std::move(file));
  }
}

DataFile data_entry(const std::string& name, const Json& json, const Where& where) {
  Object object(json, "a data file", where);
  DataFile file{name, static_cast<uint64_t>(object.integer("bytes")), object.integer("modified"),
                object.sum("crc32c")};
  object.finish();
  return file;
}

std::vector<TokenizerEntry> tokenizer_entries(const Json& json, const Where& where) {
  std::vector<TokenizerEntry> entries;
  for (const auto& [name, value] : json.items()) {
    Object object(value, concat("tokenizer file ", io::excerpt(name)), where);
    const CheckpointFile file = file_entry(name, object);
    entries.push_back({name, {file.bytes, object.sum("crc32c")}});
    object.finish();
  }
  return entries;
}

void check_sum(std::string_view text, const Where& where) {
  const size_t tail = kBeforeSum.size() + kSumDigits + kAfterSum.size();
  const std::string_view body = text.substr(0, text.size() - std::min(text.size(), tail));
  const std::string_view end = text.substr(body.size());
  if (text.size() <= tail || !end.starts_with(kBeforeSum) || !end.ends_with(kAfterSum))
    where.bad("it does not end with its checksum");
  if (end.substr(kBeforeSum.size(), kSumDigits) != sum_text(io::crc32c(body)))
    where.bad("its checksum does not match");
}

// A line each: the numbers of chunks would take most of the text in lines of their own.
void append_tensors(std::string& text, const TensorEntries& tensors) {
  const auto list = [](const auto& numbers) {
    return fmt::format("[{}]", fmt::join(numbers, ","));
  };
  text += '{';
  const char* before = "\n";
  for (const auto& [name, entry] : tensors) {
    text += fmt::format("{}   {}: {{\"dtype\": \"{}\", \"shape\": {}, \"chunks\": [",
                        std::exchange(before, ",\n"), Json(name).dump(), tessera::name(entry.dtype),
                        list(std::span<const int64_t>(entry.shape)));
    const char* comma = "";
    for (const ChunkEntry& c : entry.chunks) {
      text += fmt::format("{}[{},{},{},\"{}\"]", std::exchange(comma, ","), c.file,
                          list(std::span<const int64_t>(c.box.begin)),
                          list(std::span<const int64_t>(c.box.size)), sum_text(c.crc32c));
    }
    text += "]}";
  }
  text += tensors.empty() ? "}" : "\n  }";
}

}  // namespace

const TensorEntry* Manifest::find(const std::string& tensor) const {
  for (const auto& [name, part] : parts()) {
    if (const auto at = part->find(tensor); at != part->end()) return &at->second;
  }
  return nullptr;
}

std::optional<int64_t> step_of(std::string_view name) {
  constexpr std::string_view kStep = "step-";
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool canonical = error == std::errc() && std::to_string(step) == name && step >= 0;
  return canonical ? std::optional(step) : std::nullopt;
}

std::string chunk_name(const std::string& tensor, const Box& box) { return tensor + text_of(box); }

std::string manifest_text(const Manifest& m) {
  if (m.whole_tensors)
    fail<UsageError>("checkpoint", "a manifest of whole tensors is read and not written");
  Json files = Json::object();
  for (const CheckpointFile& file : m.files) {
    io::append_member(files, file.name,
                      {{"bytes", file.bytes},
                       {"header_bytes", file.head.bytes},
                       {"header_crc32c", sum_text(file.head.crc32c)}});
  }
  Json data = Json::object();
  std::set<std::string_view> names;  // printable ones, so two files may have the same
  for (const DataFile& file : m.data) {
    if (!names.insert(file.name).second) continue;
    io::append_member(
        data, file.name,
        {{"bytes", file.bytes}, {"modified", file.modified}, {"crc32c", sum_text(file.crc32c)}});
  }
  Json json{{"format", kFormat},
            {"version", kVersion},
            {"step", m.progress.step},
            {"optimizer", {{"steps", m.progress.optimizer_steps}}},
            {"lr_scheduler", {{"step", m.progress.schedule_step}}},
            {"dataloader", {{"rows", m.progress.data_rows}, {"windows", m.data_windows}}},
            {"seed", m.seed},
            {"products", m.products},
            {"mesh", m.mesh},
            {"data", std::move(data)},
            {"config", Json::parse(m.config)},
            {"files", std::move(files)}};
  if (m.tokenizer) {
    Json tokenizer = Json::object();
    for (const auto& [name, sum] : *m.tokenizer)
      io::append_member(tokenizer, name, {{"bytes", sum.bytes}, {"crc32c", sum_text(sum.crc32c)}});
    io::append_member(json, "tokenizer", std::move(tokenizer));
  }
  std::string text = json.dump(1);
  text.resize(text.size() - std::string_view("\n}").size());
  text += ",\n \"tensors\": {";
  const char* before = "\n";
  for (const auto& [part, tensors] : m.parts()) {
    text += concat(std::exchange(before, ",\n"), "  \"", part, "\": ");
    append_tensors(text, *tensors);
  }
  text += "\n }";
  return concat(text, kBeforeSum, sum_text(io::crc32c(text)), kAfterSum);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const Where where{"checkpoint", path, "manifest"};
  check_sum(text, where);
  const Json json = io::strict_json(text, where);
  Object top(json, "it", where);
  if (top.text("format") != kFormat) top.bad(concat("is not of the format '", kFormat, '\''));
  const int64_t version = top.integer("version");
  if (version < 1 || version > kVersion) {
    top.bad(concat("is of version ", version, "; this program reads versions 1 to ", kVersion));
  }
  const auto counter = [&](const char* section, const char* key) {
    Object object(top.at(section), section, where);
    const int64_t value = object.integer(key);
    object.finish();
    return value;
  };
  Manifest m;
  m.progress.step = top.integer("step");
  m.progress.optimizer_steps = counter("optimizer", "steps");
  m.progress.schedule_step = counter("lr_scheduler", "step");
  Object data(top.at("dataloader"), "dataloader", where);
  if (version == 1) m.data_batches = data.integer("step");
  else m.progress.data_rows = data.integer("rows");
  m.data_windows = data.integer("windows");
  data.finish();
  m.seed = static_cast<uint64_t>(top.integer("seed"));
  if (json.contains("products")) m.products = top.text("products");
  if (json.contains("data")) {
    for (const auto& [name, file] : top.object("data").items())
      m.data.push_back(data_entry(name, file, where));
  }
  if (json.contains("tokenizer")) m.tokenizer = tokenizer_entries(top.object("tokenizer"), where);
  m.config = top.object("config").dump(2);
  m.whole_tensors = version <= kLastOfWholeTensors;
  const Json& files = top.object("files");
  if (m.whole_tensors) {
    read_whole_files(files, m, where, top);
  } else {
    m.mesh = top.text("mesh");
    read_files(files, m, where);
    read_tensors(top, m, where);
  }
  if (m.model.empty()) top.bad("has no tensor of the model");
  for (const CheckpointFile& file : m.files) {
    if (m.tokenizer && std::ranges::count(*m.tokenizer, file.name, &TokenizerEntry::name))
      top.bad(concat("lists ", file.name, " twice"));
  }
  (void)top.at("crc32c");  // compared above, as text
  top.finish();
  return m;
}

}  // namespace tessera::train

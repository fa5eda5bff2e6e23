// SPDX-License-Identifier: Apache-2.0
// The checksum is of the text, not of the values: it is compared before the JSON is parsed. Then
// the parser is strict: every member must be known.
#include "tessera/train/checkpoint/manifest.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/json_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <set>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 2;
constexpr std::string_view kFormat = "tessera checkpoint";
// The end of the text is fixed exactly, so that the checksum covers every byte before it.
constexpr std::string_view kBeforeSum = ",\n \"crc32c\": \"", kAfterSum = "\"\n}\n";
constexpr size_t kSumDigits = 8;

std::string hex(uint32_t sum) { return fmt::format("{:08x}", sum); }

std::optional<uint32_t> parsed_hex(std::string_view text) {
  uint32_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
  if (error != std::errc() || end != text.data() + text.size() || hex(sum) != text)
    return std::nullopt;
  return sum;
}

// A file in the folder itself: the name cannot contain a path.
bool is_plain_name(std::string_view name) {
  const auto ok = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= 200 && name.front() != '.' && name != kManifestFile &&
         std::ranges::all_of(name, ok);
}

// Reads the members of one object; unknown members are an error.
class Object {
 public:
  Object(const Json& json, std::string name, const std::string& where)
      : json_(json), name_(std::move(name)), where_(where) {
    if (!json.is_object()) bad("is not an object");
  }
  const Json& at(const char* key) {
    if (!json_.contains(key)) bad(concat("has no ", key));
    ++asked_;
    return json_[key];
  }
  int64_t integer(const char* key) {
    const Json& value = at(key);
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      bad(concat("has a ", key, " that is not an integer from 0 to 2^63 - 1"));
    return value.get<int64_t>();
  }
  std::string text(const char* key) {
    const Json& value = at(key);
    if (!value.is_string()) bad(concat("has a ", key, " that is not text"));
    return value.get<std::string>();
  }
  uint32_t sum(const char* key) {
    const auto value = parsed_hex(text(key));
    if (!value) bad(concat("has a ", key, " that is not eight hexadecimal digits"));
    return *value;
  }
  const Json& object(const char* key) {
    const Json& value = at(key);
    if (!value.is_object()) bad(concat("has a ", key, " that is not an object"));
    return value;
  }
  void finish() const {
    if (json_.size() != asked_) bad("has unknown members");
  }
  [[noreturn]] void bad(const std::string& what) const {
    fail<DataError>("checkpoint", where_, " is not a valid manifest: ", name_, ' ', what);
  }

 private:
  const Json& json_;
  std::string name_;
  const std::string& where_;
  size_t asked_ = 0;
};

TensorEntry tensor_entry(const Json& json, const std::string& where) {
  Object object(json, "a tensor", where);
  TensorEntry entry{object.text("dtype"), {}};
  const Json& shape = object.at("shape");
  if (!shape.is_array()) object.bad("has a shape that is not a list");
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{1} << 48)
      object.bad("has a size that is not an integer from 0 to 2^48");
    entry.shape.push_back(size.get<int64_t>());
  }
  object.finish();
  return entry;
}

CheckpointFile file_entry(const std::string& name, const Json& json, const std::string& where) {
  Object object(json, "a file", where);
  if (!is_plain_name(name)) object.bad("has a name that is not of a-z, 0-9, '.', '-' and '_'");
  CheckpointFile file{name, object.text("part"), {}, {}};
  if (file.part != "model" && file.part != "optimizer") object.bad("is of an unknown part");
  file.sum.bytes = static_cast<uint64_t>(object.integer("bytes"));
  file.sum.crc32c = object.sum("crc32c");
  for (const auto& [tensor, entry] : object.object("tensors").items())
    file.tensors.emplace(tensor, tensor_entry(entry, where));
  object.finish();
  return file;
}

DataFile data_entry(const std::string& name, const Json& json, const std::string& where) {
  Object object(json, "a data file", where);
  DataFile file{name, static_cast<uint64_t>(object.integer("bytes")), object.integer("modified"),
                object.sum("crc32c")};
  object.finish();
  return file;
}

Json strict_json(std::string_view text, const std::string& where) {
  io::ParsedJson parsed = io::parse_json(text);
  if (!parsed.faults.empty())
    fail<DataError>("checkpoint", where, " is not a valid manifest: ", parsed.faults[0]);
  return std::move(parsed.value);
}

void check_sum(std::string_view text, const std::string& where) {
  const size_t tail = kBeforeSum.size() + kSumDigits + kAfterSum.size();
  const std::string_view body = text.substr(0, text.size() - std::min(text.size(), tail));
  const std::string_view end = text.substr(body.size());
  if (text.size() <= tail || !end.starts_with(kBeforeSum) || !end.ends_with(kAfterSum))
    fail<DataError>("checkpoint", where,
                    " is not a valid manifest: it does not end with its checksum");
  if (end.substr(kBeforeSum.size(), kSumDigits) != hex(io::crc32c(body)))
    fail<DataError>("checkpoint", where, " is not a valid manifest: its checksum does not match");
}

}  // namespace

bool Manifest::has(std::string_view part) const {
  return std::ranges::count(files, part, &CheckpointFile::part) > 0;
}

std::map<std::string, TensorEntry> Manifest::tensors(std::string_view part) const {
  std::map<std::string, TensorEntry> all;
  for (const CheckpointFile& file : files) {
    if (file.part == part) all.insert(file.tensors.begin(), file.tensors.end());
  }
  return all;
}

std::string manifest_text(const Manifest& m) {
  Json files = Json::object();
  for (const CheckpointFile& file : m.files) {
    Json tensors = Json::object();
    for (const auto& [name, entry] : file.tensors)
      io::append_member(tensors, name, {{"dtype", entry.dtype}, {"shape", entry.shape}});
    files[file.name] = {{"part", file.part},
                        {"bytes", file.sum.bytes},
                        {"crc32c", hex(file.sum.crc32c)},
                        {"tensors", std::move(tensors)}};
  }
  Json data = Json::object();
  std::set<std::string_view> names;  // printable ones, so two files may have the same
  for (const DataFile& file : m.data) {
    if (!names.insert(file.name).second) continue;
    io::append_member(
        data, file.name,
        {{"bytes", file.bytes}, {"modified", file.modified}, {"crc32c", hex(file.crc32c)}});
  }
  const Json json{{"format", kFormat},
                  {"version", kVersion},
                  {"step", m.progress.step},
                  {"optimizer", {{"steps", m.progress.optimizer_steps}}},
                  {"lr_scheduler", {{"step", m.progress.schedule_step}}},
                  {"dataloader", {{"rows", m.progress.data_rows}, {"windows", m.data_windows}}},
                  {"seed", m.seed},
                  {"products", m.products},
                  {"data", std::move(data)},
                  {"config", Json::parse(m.config)},
                  {"files", std::move(files)}};
  std::string text = json.dump(1);
  text.resize(text.size() - std::string_view("\n}").size());
  return concat(text, kBeforeSum, hex(io::crc32c(text)), kAfterSum);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  check_sum(text, where);
  const Json json = strict_json(text, where);
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
  m.config = top.object("config").dump(2);
  std::set<std::string> names;
  for (const auto& [name, entry] : top.object("files").items()) {
    m.files.push_back(file_entry(name, entry, where));
    for (const auto& [tensor, meta] : m.files.back().tensors) {
      if (!names.insert(tensor).second) top.bad("has a tensor in two files");
    }
  }
  if (!m.has("model")) top.bad("has no file of the model");
  (void)top.at("crc32c");  // compared above, as text
  top.finish();
  return m;
}

}  // namespace tessera::train

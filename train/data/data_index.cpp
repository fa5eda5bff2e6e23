// SPDX-License-Identifier: Apache-2.0
// The parser is strict: every member must be known and agree with the others, since sizes and
// offsets into files follow from them.
#include "tessera/train/data/data_index.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/json_object_impl.h"
#include "tessera/nn/io/utf8.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Object = io::JsonObject;

constexpr std::string_view kWhere = "data", kFormat = "tessera data";
constexpr int64_t kVersion = 1;
constexpr size_t kMostBytes = size_t{1} << 30, kMostShards = 1'000'000;
constexpr int64_t kMostTokens = int64_t{1} << 40;  // of a shard
constexpr int64_t kMostIds = int64_t{1} << 24;     // of a vocabulary

Json id_json(int64_t id) { return id < 0 ? Json(nullptr) : Json(id); }

// What documents begin or end with; null: nothing.
int64_t id_of(Object& object, const char* key, int64_t vocabulary) {
  const Json& value = object.at(key);
  if (value.is_null()) return -1;
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(vocabulary))
    object.bad(concat("has a ", key, " that is neither null nor below the vocabulary"));
  return value.get<int64_t>();
}

int64_t limited(Object& object, const char* key, int64_t least, int64_t most) {
  const int64_t value = object.integer(key);
  if (value < least || value > most)
    object.bad(concat("has a ", key, " of ", value, ", expected ", least, " to ", most));
  return value;
}

void read_tokenizer(const Json& json, const io::JsonSubject& subject, DataIndex& index) {
  Object object(json, "tokenizer", subject);
  index.vocabulary = limited(object, "vocabulary", 1, kMostIds);
  index.around.begin = id_of(object, "begin_id", index.vocabulary);
  index.around.end = id_of(object, "end_id", index.vocabulary);
  for (const auto& [name, value] : object.object("files").items()) {
    Object file(value, concat("tokenizer file ", io::excerpt(name)), subject);
    const auto bytes = static_cast<uint64_t>(file.integer("bytes"));
    index.tokenizer.push_back({name, {bytes, file.sum("crc32c")}});
    file.finish();
  }
  object.finish();
}

DataFile source_of(const Json& json, size_t i, const io::JsonSubject& subject) {
  Object object(json, concat("source ", i), subject);
  DataFile file;
  file.name = object.text("name");
  file.bytes = static_cast<uint64_t>(object.integer("bytes"));
  file.modified = object.integer("modified");
  file.crc32c = object.sum("crc32c");
  object.finish();
  return file;
}

DataShard shard_of(const Json& json, const DataIndex& index, const io::JsonSubject& subject) {
  Object object(json, concat("shard ", index.shards.size()), subject);
  DataShard shard;
  shard.tokens = limited(object, "tokens", 1, kMostTokens);
  shard.documents = limited(object, "documents", 1, shard.tokens);
  shard.tokens_crc32c = object.sum("tokens_crc32c");
  shard.documents_crc32c = object.sum("documents_crc32c");
  const auto sources = static_cast<int64_t>(index.sources.size());
  shard.end.source = limited(object, "end_source", 0, sources - 1);
  shard.end.document = limited(object, "end_document", 1, kMostTokens);
  if (!index.shards.empty() && shard.end <= index.shards.back().end)
    object.bad("ends before the shard before it");
  object.finish();
  return shard;
}

std::string numbered(std::string_view what, size_t i) {
  return fmt::format("{}-{:05}.npy", what, i);
}

ArrayFile opened(const std::string& path, ElementType type, int64_t elements) {
  if (fs::is_symlink(fs::path(path)))
    fail<DataError>(kWhere, path, " is a link, expected a file of the folder");
  ArrayFile file(path);
  const ArrayHeader& header = file.header();
  if (header.type != type || header.shape.size() != 1 || file.size() != elements) {
    fail<DataError>(kWhere, path, " holds an array of shape ", header.shape_text(), ", ",
                    counted(file.width(), "byte"), " each, but ", kDataIndexFile, " says ",
                    elements, " of ", counted(width_of(type), "byte"), "; prepare the data again");
  }
  return file;
}

}  // namespace

int64_t DataIndex::tokens() const {
  int64_t sum = 0;
  for (const DataShard& shard : shards) sum += shard.tokens;
  return sum;
}

int64_t DataIndex::documents() const {
  int64_t sum = 0;
  for (const DataShard& shard : shards) sum += shard.documents;
  return sum;
}

std::string index_text(const DataIndex& index) {
  Json files = Json::object(), sources = Json::array(), shards = Json::array();
  for (const auto& [name, sum] : index.tokenizer)
    io::append_member(files, name, {{"bytes", sum.bytes}, {"crc32c", io::sum_text(sum.crc32c)}});
  for (const DataFile& file : index.sources) {
    sources.push_back({{"name", file.name},
                       {"bytes", file.bytes},
                       {"modified", file.modified},
                       {"crc32c", io::sum_text(file.crc32c)}});
  }
  for (const DataShard& shard : index.shards) {
    shards.push_back({{"tokens", shard.tokens},
                      {"documents", shard.documents},
                      {"tokens_crc32c", io::sum_text(shard.tokens_crc32c)},
                      {"documents_crc32c", io::sum_text(shard.documents_crc32c)},
                      {"end_source", shard.end.source},
                      {"end_document", shard.end.document}});
  }
  const Json json{{"format", kFormat},
                  {"version", kVersion},
                  {"complete", index.complete},
                  {"tokenizer",
                   {{"vocabulary", index.vocabulary},
                    {"begin_id", id_json(index.around.begin)},
                    {"end_id", id_json(index.around.end)},
                    {"files", std::move(files)}}},
                  {"dtype", index.type == ElementType::u16 ? "uint16" : "uint32"},
                  {"text_field", index.text_field},
                  {"shard_tokens", index.shard_tokens},
                  {"sources", std::move(sources)},
                  {"shards", std::move(shards)}};
  return json.dump(1) + '\n';
}

DataIndex parse_index(std::string_view text, const std::string& path) {
  const io::JsonSubject subject{kWhere, path, "index of prepared data"};
  const Json json = io::strict_json(text, subject);
  Object top(json, "it", subject);
  if (top.text("format") != kFormat) top.bad(concat("is not of the format '", kFormat, '\''));
  if (const int64_t version = top.integer("version"); version != kVersion)
    top.bad(concat("is of version ", version, "; this program reads version ", kVersion));
  DataIndex index;
  const Json& complete = top.at("complete");
  if (!complete.is_boolean()) top.bad("has a complete that is neither true nor false");
  index.complete = complete.get<bool>();
  read_tokenizer(top.at("tokenizer"), subject, index);
  const std::string dtype = top.text("dtype");
  if (dtype != "uint16" && dtype != "uint32")
    top.bad(concat("has the dtype ", io::excerpt(dtype), ", expected uint16 or uint32"));
  index.type = dtype == "uint16" ? ElementType::u16 : ElementType::u32;
  index.text_field = top.text("text_field");
  index.shard_tokens = limited(top, "shard_tokens", 1, kMostTokens);
  for (const Json& source : top.list("sources"))
    index.sources.push_back(source_of(source, index.sources.size(), subject));
  const Json& shards = top.list("shards");
  if (shards.size() > kMostShards) top.bad(concat("has more than ", kMostShards, " shards"));
  for (const Json& shard : shards) index.shards.push_back(shard_of(shard, index, subject));
  if (index.complete && index.shards.empty()) top.bad("has no shards");
  top.finish();
  return index;
}

DataIndex read_index(const std::string& folder) {
  const std::string path = (fs::path(folder) / kDataIndexFile).string();
  return parse_index(io::read_file(path, kMostBytes), path);
}

bool is_prepared(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / kDataIndexFile, ignored);
}

std::string tokens_file(size_t i) { return numbered("tokens", i); }
std::string documents_file(size_t i) { return numbered("documents", i); }

ShardFiles open_shard(const std::string& folder, const DataIndex& index, size_t i) {
  const DataShard& shard = index.shards[i];
  const fs::path in(folder);
  ShardFiles files{opened((in / tokens_file(i)).string(), index.type, shard.tokens),
                   opened((in / documents_file(i)).string(), ElementType::u32, shard.documents)};
  int64_t first = 0;
  files.documents.read(0, {&first, 1}, std::numeric_limits<int64_t>::max());
  if (first != 0)
    fail<DataError>(kWhere, files.documents.path(), " begins its first document at ", first,
                    ", expected 0; prepare the data again");
  return files;
}

std::vector<std::string> verify_index(const std::string& folder) {
  const DataIndex index = read_index(folder);
  std::vector<std::string> faults;
  if (!index.complete) faults.push_back(concat(folder, " was not prepared to its end"));
  for (size_t i = 0; i < index.shards.size(); ++i) {
    const DataShard& shard = index.shards[i];
    try {
      const ShardFiles files = open_shard(folder, index, i);
      for (const auto& [file, sum] : {std::pair(&files.tokens, shard.tokens_crc32c),
                                      {&files.documents, shard.documents_crc32c}}) {
        const uint32_t found = file->crc32c();
        if (found != sum) {
          faults.push_back(concat(file->path(), " has the checksum ", io::sum_text(found),
                                  ", expected ", io::sum_text(sum)));
        }
      }
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  }
  return faults;
}

}  // namespace tessera::train

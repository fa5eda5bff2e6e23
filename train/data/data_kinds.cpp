// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/data_kinds.h"

#include "tessera/core/error.h"
#include "tessera/train/arrays/array_file.h"

#include <algorithm>
#include <filesystem>

namespace tessera::train {

constinit const DataKind kText{
    .name = "text", .is_text = true, .knows_documents = true, .open = text_source};
constinit const DataKind kTokenIds{.name = "token ids", .open = array_source};
constinit const DataKind kPreparedData{
    .name = "prepared data", .knows_documents = true, .open = prepared_source};

std::span<const DataFormat> data_formats() {
  static const std::vector<DataFormat> rows{
      {.suffixes = {".txt", ".h", ".cpp", ".cu", ".cuh", ".md", ".py", ".cmake"},
       .kind = &kText,
       .help = "a text file",
       .may_be_gzip = true},
      {.suffixes = {".jsonl", ".ndjson", ".json"},
       .kind = &kText,
       .help = ".jsonl (both also .gz)",
       .lines = true,
       .may_be_gzip = true,
       .in_folders = 2},
      {.suffixes = {".npy"}, .kind = &kTokenIds, .help = ".npy of token ids"},
      {.suffixes = {".bin"}, .kind = &kTokenIds, .help = ".bin of llm.c", .begins = is_llmc_file}};
  return rows;
}

namespace {

bool is_gzip(const std::filesystem::path& path) { return path.extension() == ".gz"; }

std::string suffix_of(const std::filesystem::path& path) {
  return (is_gzip(path) ? path.stem() : path).extension().string();
}

std::span<const std::string_view> suffixes_in_folders(const DataFormat& format) {
  return std::span(format.suffixes).first(std::min(format.suffixes.size(), format.in_folders));
}

}  // namespace

const DataFormat& format_of(const std::string& path) {
  const std::string suffix = suffix_of(path);
  for (const DataFormat& format : data_formats()) {
    if (std::ranges::count(format.suffixes, suffix) == 0) continue;
    if (format.may_be_gzip || !is_gzip(path)) return format;
    fail<DataError>("data", path, " is compressed, but tokens are read in place; gunzip it");
  }
  return data_formats()[0];
}

bool is_data_file(const std::string& path, bool is_regular) {
  const std::string suffix = suffix_of(path);
  return std::ranges::any_of(data_formats(), [&](const DataFormat& f) {
    return std::ranges::count(suffixes_in_folders(f), suffix) > 0 &&
           (!f.begins || (is_regular && f.begins(path)));
  });
}

std::string formats_help() {
  std::string text;
  for (const DataFormat& format : data_formats())
    text += concat(text.empty() ? "" : ", ", format.help);
  return text;
}

std::string formats_suffixes() {
  std::string text;
  for (const DataFormat& format : data_formats()) {
    for (const std::string_view suffix : suffixes_in_folders(format))
      text += concat(text.empty() ? "" : " ", suffix);
  }
  return text;
}

}  // namespace tessera::train

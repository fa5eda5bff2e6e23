// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/tokenizer/tokenizer.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/tokenizer/settings_impl.h"
#include "tessera/train/tokenizer/tokenizer_file_impl.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>

namespace tessera::train {
namespace {

// Parts of tokenizers, and kinds that are not supported, by which a folder may still have one.
constexpr const char* kOtherFiles[] = {"tokenizer.model",
                                       "tiktoken.model",
                                       "tekken.json",
                                       "spiece.model",
                                       "sentencepiece.bpe.model",
                                       "vocab.txt",
                                       "vocab.json",
                                       "merges.txt",
                                       "tokenizer_config.json",
                                       "added_tokens.json",
                                       "special_tokens_map.json"};

}  // namespace

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const int64_t> tokens) {
  std::string text;
  for (int64_t t : tokens) {
    if (t >= 0 && t < 256) text += static_cast<char>(t);
  }
  return text;
}

void ByteTokenizer::append(std::string_view text, std::vector<int32_t>& tokens) const {
  const size_t before = tokens.size();
  tokens.resize(before + text.size());  // grows by factors, where reserve would not
  for (size_t i = 0; i < text.size(); ++i) tokens[before + i] = static_cast<unsigned char>(text[i]);
}

std::string ByteTokenizer::bytes(int64_t id) const {
  if (id == kBegin) return "<begin>";
  if (id == kEnd) return "<end>";
  return decode({&id, 1});
}

int64_t ByteTokenizer::mark(std::string_view name) const {
  return name == bytes(kBegin) ? kBegin : name == bytes(kEnd) ? kEnd : -1;
}

void NoTokenizer::stop() const { fail<DataError>("tokenizer", why_); }

std::vector<TokenizerFile> read_tokenizer_files(const std::string& path, const std::string& field) {
  namespace fs = std::filesystem;
  constexpr size_t kMostBytes = size_t{256} << 20;
  if (path == kByteTokenizer) return {};
  std::error_code error;
  std::vector<TokenizerFile> files;
  const auto read = [&](const fs::path& file, std::string name) {
    files.push_back({std::move(name), io::read_file(file.string(), kMostBytes)});
  };
  if (!fs::exists(path, error)) fail<ConfigError>(field, io::excerpt(path), " does not exist");
  if (!fs::is_directory(path, error)) {
    read(path, std::string(kTokenizerJson));
    return files;
  }
  const fs::path folder = path;
  const auto has = [&](std::string_view name) { return fs::exists(folder / name, error); };
  if (has(kTokenizerJson)) {
    read(folder / kTokenizerJson, std::string(kTokenizerJson));
  } else if (has(kVocabJson) && has(kMergesTxt)) {
    read(folder / kVocabJson, std::string(kVocabJson));
    read(folder / kMergesTxt, std::string(kMergesTxt));
  } else {
    std::string others;
    for (const char* name : kOtherFiles)
      if (has(name)) others += concat(others.empty() ? "; it has " : ", ", name);
    fail<DataError>(field, "folder ", path, " holds neither ", kTokenizerJson, " nor ", kVocabJson,
                    " and ", kMergesTxt, others,
                    others.empty() ? "" : ", of which no tokenizer can be made here");
  }
  for (const std::string_view name : {kTokenizerConfig, kSpecialTokensMap, kAddedTokens})
    if (has(name)) read(folder / name, std::string(name));
  constexpr size_t kMostConfigBytes = size_t{16} << 20;
  if (!has(kTokenizerJson) && has("config.json")) {
    require_class(io::read_file((folder / "config.json").string(), kMostConfigBytes), files, path,
                  field);
  }
  return files;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path, const std::string& field) {
  if (path.empty()) return make_tokenizer({});
  std::vector<TokenizerFile> files = read_tokenizer_files(path, field);
  try {
    return make_tokenizer(std::move(files));
  } catch (const DataError& error) {  // which names a file of the folder
    fail<DataError>(field, path, ": ", error.what());
  }
}

std::optional<std::vector<TokenizerEntry>> entries_of(const Tokenizer& tokenizer) {
  if (!tokenizer.missing().empty()) return {};
  std::vector<TokenizerEntry> entries;
  for (const TokenizerFile& file : tokenizer.files())
    entries.push_back({file.name, {file.bytes.size(), io::crc32c(file.bytes)}});
  return entries;
}

void share_among_threads(size_t n, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < n; i = next++) work(i);
    } catch (...) {
      next = n;
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t wanted = std::min(static_cast<size_t>(std::max(threads, 1)), n);
    for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(run);
    run();
  }
  if (first_error) std::rethrow_exception(first_error);
}

std::vector<std::vector<int32_t>> tokenize_all(const Tokenizer& tokenizer,
                                               std::span<const std::string_view> texts,
                                               int threads) {
  std::vector<std::vector<int32_t>> all(texts.size());
  share_among_threads(texts.size(), threads, [&](size_t i) { tokenizer.append(texts[i], all[i]); });
  return all;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    const bool control = c == 0xC2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xA0;
    const size_t n = control ? 0 : io::utf8_length(text);
    if (n == 0) out += "\xEF\xBF\xBD";
    else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) out += '.';
    else out += text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

}  // namespace tessera::train

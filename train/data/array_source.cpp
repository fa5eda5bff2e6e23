// SPDX-License-Identifier: Apache-2.0
// Array files form one stream by their cumulative ends. Their ids are checked before training,
// unless a file is so large that the check would take long; those of prepared data, which are of
// the right tokenizer, when they are read.
#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/train/arrays/array_file.h"
#include "tessera/train/data/data_index.h"
#include "tessera/train/data/token_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

namespace tessera::train {
namespace {

constexpr std::string_view kWhere = "data";

// Successive files as one array.
class ArrayFiles {
 public:
  void add(ArrayFile file) {
    tokens_ += file.size();
    ends_.push_back(tokens_);
    files_.push_back(std::move(file));
  }
  [[nodiscard]] const std::vector<ArrayFile>& files() const { return files_; }
  [[nodiscard]] int64_t tokens() const { return tokens_; }
  // Calls f(index of a file, its first element of the part, where the part begins, its length) for
  // each file that has some of [from, from + count).
  template <class F> void for_each_part(int64_t from, size_t count, F&& f) const {
    auto i = static_cast<size_t>(std::ranges::upper_bound(ends_, from) - ends_.begin());
    for (size_t done = 0; done < count; ++i) {
      const int64_t at = from + static_cast<int64_t>(done);
      const size_t n = std::min(count - done, static_cast<size_t>(ends_[i] - at));
      f(i, at - (ends_[i] - files_[i].size()), done, n);
      done += n;
    }
  }
  void will_need(int64_t from, int64_t count) const {
    const int64_t there = std::clamp<int64_t>(tokens_ - from, 0, count);
    for_each_part(from, static_cast<size_t>(there), [&](size_t i, int64_t at, size_t, size_t n) {
      files_[i].will_need(at, static_cast<int64_t>(n));
    });
  }

 private:
  std::vector<ArrayFile> files_;
  std::vector<int64_t> ends_;  // of each file, in tokens of all
  int64_t tokens_ = 0;
};

class ArraySource final : public TokenSource {
 public:
  ArraySource(const DataFiles& files, const SourceOptions& options, const std::stop_token& stop)
      : options_(options) {
    for (const std::string& path : files.paths) {
      ArrayFile file(path);
      if (!files_.files().empty()) require_like_first(file);
      files_.add(std::move(file));
    }
    for (const ArrayFile& file : files_.files()) check(file, stop);
  }

  [[nodiscard]] int64_t tokens() const override { return files_.tokens(); }
  [[nodiscard]] int64_t row_length() const override { return length_of(files_.files().front()); }
  [[nodiscard]] int64_t documents() const override {
    if (options_.begin_id >= 0) return 0;
    return row_length() > 0 ? tokens() / row_length() : std::ssize(files_.files());
  }
  void read(int64_t from, std::span<int64_t> to, std::span<uint8_t> starts) const override {
    files_.for_each_part(from, to.size(), [&](size_t file, int64_t at, size_t done, size_t n) {
      const auto part = to.subspan(done, n);
      files_.files()[file].read(at, part, options_.vocabulary);
      for (size_t i = 0; i < n; ++i)
        starts[done + i] = part[i] == options_.begin_id || (i == 0 && at == 0) ? 1 : 0;
    });
  }
  void will_need(int64_t from, int64_t count) const override { files_.will_need(from, count); }

 private:
  static int64_t length_of(const ArrayFile& file) {
    return file.header().shape.size() == 2 ? file.header().shape[1] : 0;
  }
  void require_like_first(const ArrayFile& file) const {
    const ArrayFile& first = files_.files().front();
    const auto kind = [](int64_t length) {
      return length == 0 ? std::string("a stream") : concat("rows of ", length);
    };
    if (length_of(file) == length_of(first)) return;
    fail<DataError>(kWhere, file.path(), " holds ", kind(length_of(file)), ", but ", first.path(),
                    " ", kind(length_of(first)),
                    "; all files of a folder must have the same shape");
  }
  // Finds ids beyond the vocabulary before training, unless that would take long.
  void check(const ArrayFile& file, const std::stop_token& stop) const {
    constexpr int64_t kMostBytes = int64_t{1} << 28, kBlock = 1 << 16;
    if (file.header().type == ElementType::u16 && options_.vocabulary > UINT16_MAX) return;
    if (file.size() * file.width() > kMostBytes) return;
    std::vector<int64_t> block;
    for (int64_t at = 0; at < file.size() && !stop.stop_requested(); at += kBlock) {
      block.resize(static_cast<size_t>(std::min(kBlock, file.size() - at)));
      file.read(at, block, options_.vocabulary);
    }
  }

  SourceOptions options_;
  ArrayFiles files_;
};

std::string tokenizer_text(const std::vector<TokenizerEntry>& files) {
  if (files.empty()) return "bytes as tokens";
  std::string text;
  for (const auto& [name, sum] : files) {
    text += fmt::format("{}{} ({}, CRC-32C {:08x})", text.empty() ? "" : ", ", printable(name),
                        counted(sum.bytes, "byte"), sum.crc32c);
  }
  return text;
}

void require_same_tokenizer(const DataIndex& index, const Tokenizer& tokenizer,
                            const std::string& folder) {
  const auto entries = entries_of(tokenizer);
  if (!entries) {  // the ids are taken as they are, unless they are those of another vocabulary
    if (!index.tokenizer.empty()) return;
    fail<DataError>(kWhere, folder, " was prepared with ", tokenizer_text({}), ", but ",
                    tokenizer.missing());
  }
  const std::vector<TokenizerEntry>& own = *entries;
  if (index.tokenizer == own && index.vocabulary == tokenizer.vocabulary()) return;
  fail<DataError>(kWhere, folder, " was prepared with ", tokenizer_text(index.tokenizer),
                  ", but this run uses ", tokenizer_text(own),
                  "; give that tokenizer as --hf_assets_path, or prepare the data with this one");
}

void require_asked_for(const DocumentTokens& around, const std::string& words,
                       const Tokenizer& tokenizer, const std::string& folder) {
  if (are_asked_for(around, words)) return;
  fail<DataError>(kWhere, "of ", folder, ' ', text_of(around, tokenizer),
                  ", as they were prepared, but document_tokens is ", words,
                  ": leave it out, or prepare the data again with --document_tokens ", words);
}

class PreparedSource final : public TokenSource {
 public:
  PreparedSource(const std::string& folder, const Tokenizer& tokenizer,
                 const SourceOptions& options)
      : vocabulary_(options.vocabulary) {
    const DataIndex index = read_index(folder);
    if (!index.complete) {
      fail<DataError>(kWhere, folder,
                      " was not prepared to its end; give the same `tessera data prepare` again");
    }
    require_same_tokenizer(index, tokenizer, folder);
    around_ = index.around;
    require_asked_for(around_, options.document_tokens, tokenizer, folder);
    for (size_t i = 0; i < index.shards.size(); ++i) {
      ShardFiles files = open_shard(folder, index, i);
      tokens_.add(std::move(files.tokens));
      starts_.push_back(std::move(files.documents));
    }
    documents_ = index.documents();
  }

  [[nodiscard]] int64_t tokens() const override { return tokens_.tokens(); }
  [[nodiscard]] int64_t row_length() const override { return 0; }
  [[nodiscard]] int64_t documents() const override { return documents_; }
  [[nodiscard]] std::optional<DocumentTokens> around() const override { return around_; }
  void read(int64_t from, std::span<int64_t> to, std::span<uint8_t> starts) const override {
    std::ranges::fill(starts, uint8_t{0});
    tokens_.for_each_part(from, to.size(), [&](size_t i, int64_t at, size_t done, size_t n) {
      tokens_.files()[i].read(at, to.subspan(done, n), vocabulary_);
      mark_starts(starts_[i], at, starts.subspan(done, n));
    });
  }
  void will_need(int64_t from, int64_t count) const override { tokens_.will_need(from, count); }

 private:
  static void mark_starts(const ArrayFile& documents, int64_t from, std::span<uint8_t> starts) {
    const int64_t end = from + std::ssize(starts), first = documents.lower_bound(from);
    std::vector<int64_t> found(
        static_cast<size_t>(std::max<int64_t>(0, documents.lower_bound(end) - first)));
    documents.read(first, found, std::numeric_limits<int64_t>::max());
    for (const int64_t start : found) {
      if (start < from || start >= end || starts[static_cast<size_t>(start - from)] != 0) {
        fail<DataError>(kWhere, documents.path(),
                        " is damaged: the starts of documents do not ascend; prepare the data "
                        "again");
      }
      starts[static_cast<size_t>(start - from)] = 1;
    }
  }

  ArrayFiles tokens_;
  std::vector<ArrayFile> starts_;  // of each shard
  DocumentTokens around_;
  int64_t documents_ = 0, vocabulary_;
};

}  // namespace

std::unique_ptr<TokenSource> array_source(const DataFiles& files, const Tokenizer&,
                                          const SourceOptions& options,
                                          const std::stop_token& stop) {
  return std::make_unique<ArraySource>(files, options, stop);
}

std::unique_ptr<TokenSource> prepared_source(const DataFiles& files, const Tokenizer& tokenizer,
                                             const SourceOptions& options, const std::stop_token&) {
  const std::string folder = std::filesystem::path(files.paths[0]).parent_path().string();
  return std::make_unique<PreparedSource>(folder, tokenizer, options);
}

}  // namespace tessera::train

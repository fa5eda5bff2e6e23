// SPDX-License-Identifier: Apache-2.0
// Text is tokenised once into one array, with two bytes per id if the vocabulary allows, and a
// sorted list of document starts. Mapped files form one stream by their cumulative ends; their ids
// are checked before training, unless a file is so large that the check would take long.
#include "tessera/train/data/token_source.h"

#include "tessera/core/error.h"
#include "tessera/train/data/npy.h"
#include "tessera/train/data/text_reader.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "data";

template <class Id> class TextSource final : public TokenSource {
 public:
  TextSource(const DataFiles& files, const Tokenizer& tokenizer, const SourceOptions& options,
             const std::stop_token& stop) {
    const auto add = [&](std::string_view text) {
      waiting_.emplace_back(text);
      waiting_bytes_ += text.size();
      if (waiting_bytes_ >= kTogether) tokenise(tokenizer, options.threads, stop);
    };
    // At most about one token per byte: unwritten pages cost no memory, but growing would.
    size_t most = 0;
    for (const std::string& path : files.paths) {
      std::error_code error;
      const auto bytes = fs::file_size(path, error);
      if (!error && !path.ends_with(".gz")) most += bytes + 2;  // and two marks
    }
    stream_.reserve(most);
    for (const std::string& path : files.paths) {
      read_documents(path, options.text_field, add, stop);
      if (stop.stop_requested()) return;
    }
    tokenise(tokenizer, options.threads, stop);
  }

  [[nodiscard]] int64_t tokens() const override { return static_cast<int64_t>(stream_.size()); }
  [[nodiscard]] int64_t row_length() const override { return 0; }
  [[nodiscard]] int64_t documents() const override { return static_cast<int64_t>(starts_.size()); }
  void read(int64_t from, std::span<int64_t> to, std::span<uint8_t> starts) const override {
    std::copy_n(stream_.begin() + from, to.size(), to.begin());
    std::ranges::fill(starts, uint8_t{0});
    const int64_t end = from + static_cast<int64_t>(to.size());
    for (auto at = std::ranges::lower_bound(starts_, from); at != starts_.end() && *at < end; ++at)
      starts[static_cast<size_t>(*at - from)] = 1;
  }

 private:
  static constexpr size_t kPiece = 1 << 16, kTogether = 1 << 22;  // bytes

  // Appends the documents that wait, in pieces that threads share; a part at a time, since the ids
  // of a piece take more room than in the stream.
  void tokenise(const Tokenizer& tokenizer, int threads, const std::stop_token& stop) {
    std::vector<std::string_view> pieces;
    std::vector<std::pair<bool, bool>> ends;  // whether a piece begins, and ends, its document
    const auto mark = [&](int64_t id) {
      if (id >= 0) stream_.push_back(static_cast<Id>(id));
    };
    const auto flush = [&] {
      const auto ids = tokenize_all(tokenizer, pieces, threads);
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (ends[i].first) {
          starts_.push_back(tokens());
          mark(tokenizer.begin_id());
        }
        stream_.insert(stream_.end(), ids[i].begin(), ids[i].end());
        if (ends[i].second) mark(tokenizer.end_id());
      }
      pieces.clear();
      ends.clear();
    };
    for (const std::string_view document : waiting_) {
      for (size_t at = 0; at < document.size() && !stop.stop_requested();) {
        const size_t n = tokenizer.piece(document.substr(at), kPiece);
        pieces.push_back(document.substr(at, n));
        ends.emplace_back(at == 0, at + n == document.size());
        at += n;
        if (pieces.size() * kPiece >= kTogether) flush();
      }
    }
    if (!stop.stop_requested()) flush();
    waiting_.clear();
    waiting_bytes_ = 0;
  }

  std::vector<std::string> waiting_;  // documents
  size_t waiting_bytes_ = 0;
  std::vector<Id> stream_;
  std::vector<int64_t> starts_;
};

class NpySource final : public TokenSource {
 public:
  NpySource(const DataFiles& files, const SourceOptions& options, const std::stop_token& stop)
      : options_(options) {
    for (const std::string& path : files.paths) {
      const NpyFile& file = files_.emplace_back(path);
      require_like_first(file);
      tokens_ += file.size();
      ends_.push_back(tokens_);
    }
    for (const NpyFile& file : files_) check(file, stop);
  }

  [[nodiscard]] int64_t tokens() const override { return tokens_; }
  [[nodiscard]] int64_t row_length() const override { return length_of(files_.front()); }
  [[nodiscard]] int64_t documents() const override {
    if (options_.begin_id >= 0) return 0;
    return row_length() > 0 ? tokens_ / row_length() : static_cast<int64_t>(files_.size());
  }
  void read(int64_t from, std::span<int64_t> to, std::span<uint8_t> starts) const override {
    size_t file = static_cast<size_t>(std::ranges::upper_bound(ends_, from) - ends_.begin());
    for (size_t done = 0; done < to.size(); ++file) {
      const int64_t begin = ends_[file] - files_[file].size();
      const int64_t at = from + static_cast<int64_t>(done);
      const size_t n = std::min(to.size() - done, static_cast<size_t>(ends_[file] - at));
      const auto part = to.subspan(done, n);
      files_[file].read(at - begin, part, options_.vocabulary);
      for (size_t i = 0; i < n; ++i)
        starts[done + i] = part[i] == options_.begin_id || (i == 0 && at == begin) ? 1 : 0;
      done += n;
    }
  }

 private:
  static int64_t length_of(const NpyFile& file) {
    return file.header().shape.size() == 2 ? file.header().shape[1] : 0;
  }
  void require_like_first(const NpyFile& file) const {
    const NpyFile& first = files_.front();
    const auto kind = [](int64_t length) {
      return length == 0 ? std::string("a stream") : concat("rows of ", length);
    };
    if (length_of(file) == length_of(first)) return;
    fail<DataError>(kWhere, file.path(), " holds ", kind(length_of(file)), ", but ", first.path(),
                    " ", kind(length_of(first)),
                    "; all files of a folder must have the same shape");
  }
  // Finds ids beyond the vocabulary before training, unless that would take long.
  void check(const NpyFile& file, const std::stop_token& stop) const {
    constexpr int64_t kMostBytes = int64_t{1} << 28, kBlock = 1 << 16;
    if (file.header().type == NpyType::u16 && options_.vocabulary > UINT16_MAX) return;
    if (file.size() * file.width() > kMostBytes) return;
    std::vector<int64_t> block;
    for (int64_t at = 0; at < file.size() && !stop.stop_requested(); at += kBlock) {
      block.resize(static_cast<size_t>(std::min(kBlock, file.size() - at)));
      file.read(at, block, options_.vocabulary);
    }
  }

  SourceOptions options_;
  std::vector<NpyFile> files_;
  std::vector<int64_t> ends_;  // of each file, in tokens of all
  int64_t tokens_ = 0;
};

}  // namespace

DataFiles find_data(const std::string& path, const std::string& field) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    if (status.type() == fs::file_type::not_found) fail<DataError>(field, path, " does not exist");
    fail<IoError>(field, "cannot access ", path, ": ", error.message());
  }
  DataFiles files{{path}};
  if (fs::is_directory(status)) {
    DataFolder folder = data_files(path);
    files.listing = folder.text(path);
    files.paths = std::move(folder.files);
    if (files.paths.empty()) {
      fail<DataError>(field, "folder ", path,
                      " holds no text file (.h .cpp .cu .cuh .md .txt .py .cmake), .jsonl or "
                      ".ndjson, also with .gz, and no .npy: ",
                      files.listing);
    }
  } else if (!fs::is_regular_file(status)) {
    fail<DataError>(field, path, " is a FIFO, device or socket, expected a file or a folder");
  }
  const auto npy = [](const std::string& p) { return format_of(p) == DataFormat::npy; };
  files.npy = npy(files.paths[0]);
  for (const std::string& file : files.paths) {
    if (npy(file) != files.npy) {
      fail<DataError>(field, "folder ", path, " holds text, ", files.npy ? file : files.paths[0],
                      ", and tokens, ", files.npy ? files.paths[0] : file,
                      "; move one of them to another folder");
    }
    if (::access(file.c_str(), R_OK) != 0)
      fail<IoError>(field, "cannot read ", file, ": permission denied");
  }
  return files;
}

std::unique_ptr<TokenSource> open_source(const DataFiles& files, const Tokenizer& tokenizer,
                                         const SourceOptions& options,
                                         const std::stop_token& stop) {
  std::unique_ptr<TokenSource> source;
  try {
    if (files.npy) source = std::make_unique<NpySource>(files, options, stop);
    else if (tokenizer.vocabulary() <= UINT16_MAX + 1)
      source = std::make_unique<TextSource<uint16_t>>(files, tokenizer, options, stop);
    else source = std::make_unique<TextSource<int32_t>>(files, tokenizer, options, stop);
  } catch (const std::bad_alloc&) {
    fail<DataError>(
        kWhere, "the text of ", files.paths[0], files.paths.size() > 1 ? " and its neighbours" : "",
        " does not fit in memory; tokenise it into .npy files, which are memory-mapped");
  }
  if (stop.stop_requested()) return nullptr;
  if (source->tokens() == 0) {
    fail<DataError>(kWhere, files.paths[0],
                    files.paths.size() > 1 ? " and its neighbours are" : " is",
                    " empty; give text");
  }
  return source;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data.h"

#include "tessera/core/rng.h"
#include "tessera/train/files.h"
#include "tessera/train/tokenizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 8> kTextSuffixes{".h",  ".cpp", ".cu", ".cuh",
                                                        ".md", ".txt", ".py", ".cmake"};

// The place of `i` in a seeded permutation of [0, n): a Feistel network on the next power of four,
// walked until it falls inside. Needs no table, so an epoch of any size costs nothing.
uint64_t permuted(uint64_t i, uint64_t n, RngKey key) {
  const auto half = std::max<uint64_t>(1, (static_cast<uint64_t>(std::bit_width(n - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = rng::philox(key, right << 8 | round).v[0] & mask;
      left = std::exchange(right, left ^ mixed);
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

}  // namespace

void DataConfig::fields(Fields& f) {
  f.add("path", path, "text file, or folder of text files, to train on");
}

std::vector<std::string> text_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator at(folder, options, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (at->is_directory() && (name.starts_with('.') || name == "build"))
      at.disable_recursion_pending();
    const bool text = std::ranges::count(kTextSuffixes, at->path().extension().string()) > 0;
    if (text && at->is_regular_file() && !at->is_symlink()) files.push_back(at->path().string());
  }
  if (error) fail<IoError>("dataloader.path", "cannot list folder ", folder, ": ", error.message());
  std::ranges::sort(files);
  return files;
}

TextData::TextData(const std::string& path, int64_t seq_len, uint64_t seed)
    : seq_len_(seq_len), seed_(seed) {
  if (path.empty())
    fail<DataError>("dataloader.path", "no data given; pass --dataloader.path FILE or FOLDER");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) fail<DataError>("dataloader.path", path, " does not exist");
  std::vector<std::string> files{path};
  if (fs::is_directory(status)) {
    files = text_files(path);
    if (files.empty()) {
      fail<DataError>("dataloader.path", "folder ", path,
                      " holds no text file (.h .cpp .cu .cuh .md .txt .py .cmake)");
    }
  }
  for (const std::string& file : files) {
    const std::string text = read_file(file);
    if (text.empty()) continue;
    stream_.push_back(ByteTokenizer::kBegin);
    for (char c : text) stream_.push_back(static_cast<unsigned char>(c));
    stream_.push_back(ByteTokenizer::kEnd);
    ++documents_;
  }
  if (stream_.empty()) fail<DataError>("dataloader.path", path, " is empty");
  windows_ = (tokens() - 1) / seq_len;
  if (windows_ < 1) {
    fail<DataError>("dataloader.path", path, " holds ", tokens(),
                    " tokens, too few for one window of training.seq_len ", seq_len,
                    " and the token after it; give more text or a smaller seq_len");
  }
}

int64_t TextData::window(int64_t sample) const {
  const int64_t epoch = sample / windows_;
  const RngKey key{seed_, stream_of("data") + static_cast<uint64_t>(epoch)};
  return static_cast<int64_t>(
      permuted(static_cast<uint64_t>(sample % windows_), static_cast<uint64_t>(windows_), key));
}

Batch TextData::batch(int64_t step, int64_t rows, int64_t first, int64_t count) const {
  const Batch batch{empty({count, seq_len_}, DType::i64), empty({count, seq_len_}, DType::i64)};
  auto* tokens = batch.tokens.data<int64_t>();
  auto* targets = batch.targets.data<int64_t>();
  for (int64_t row = 0; row < count; ++row) {
    const uint16_t* from = stream_.data() + window(step * rows + first + row) * seq_len_;
    std::copy_n(from, seq_len_, tokens + row * seq_len_);
    std::copy_n(from + 1, seq_len_, targets + row * seq_len_);
  }
  return batch;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Text for training: a file, or the text files of a folder, each one document, joined to one stream
// of tokens and cut into windows. Which windows a step sees is a function of (seed, step) alone: a
// permutation of all windows per epoch.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/train/fields.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

struct DataConfig {
  std::string path;
  void fields(Fields& f);
};

struct Batch {
  Tensor tokens;   ///< (B, T) i64
  Tensor targets;  ///< (B, T) i64: the token that follows each
};

class TESSERA_API TextData {
 public:
  /// Reads all text. IoError: unreadable. DataError: missing, no text files, or fewer than seq_len
  /// + 1 tokens.
  TextData(const std::string& path, int64_t seq_len, uint64_t seed);

  /// The batch of step `step` (from 0) with `rows` windows.
  [[nodiscard]] Batch batch(int64_t step, int64_t rows) const { return batch(step, rows, 0, rows); }
  /// Of that batch the rows [first, first + count): what one of several ranks reads.
  [[nodiscard]] Batch batch(int64_t step, int64_t rows, int64_t first, int64_t count) const;
  /// Which window is the `sample`-th of the run.
  [[nodiscard]] int64_t window(int64_t sample) const;

  [[nodiscard]] int64_t documents() const { return documents_; }
  [[nodiscard]] int64_t tokens() const { return static_cast<int64_t>(stream_.size()); }
  [[nodiscard]] int64_t windows() const { return windows_; }

 private:
  std::vector<uint16_t> stream_;
  int64_t documents_ = 0, seq_len_, windows_ = 0;
  uint64_t seed_;
};

/// Text files below `folder`, sorted by path; hidden folders, `build` and links are left out.
TESSERA_API std::vector<std::string> text_files(const std::string& folder);

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// TensorBoard event files: scalars by step. The format is TFRecord framing (length and data, each
// with a masked CRC-32C) around protobuf messages of two fields' depth, encoded by hand.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tessera::train {

struct Scalar {
  std::string_view tag;
  double value = 0;  ///< stored as f32
};

/// The record that opens a file, and one with scalars; `wall_time` in seconds since 1970.
TESSERA_API std::string event_file_header(double wall_time);
TESSERA_API std::string event_record(double wall_time, int64_t step,
                                     std::span<const Scalar> scalars);

class TESSERA_API TensorBoardWriter {
 public:
  /// Creates `folder/events.out.tfevents.<seconds>.<host>.<process>.<n>`, and the folder if needed;
  /// IoError if it cannot. Existing files are never changed.
  explicit TensorBoardWriter(const std::string& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;
  /// Writes one event and flushes. IoError.
  void write(int64_t step, std::span<const Scalar> scalars);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  struct File;
  void append(const std::string& record);
  std::string path_;
  std::unique_ptr<File> file_;
};

}  // namespace tessera::train

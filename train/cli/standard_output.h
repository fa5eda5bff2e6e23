// SPDX-License-Identifier: Apache-2.0
// The standard output of the program: no write error is lost, and training waits for no reader.
#pragma once

#include "tessera/core/error.h"

#include <condition_variable>
#include <cstdint>
#include <iosfwd>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>
#include <thread>

namespace tessera::train {

/// The reader of the standard output has closed the pipe, as `head` does.
class TESSERA_API ClosedPipe final : public IoError {
 public:
  using IoError::IoError;
};

/// Takes the place of std::cout's buffer during its lifetime. A flush that fails throws IoError or
/// ClosedPipe through std::cout, so that a command ends at once.
class TESSERA_API StandardOutput final : public std::streambuf {
 public:
  /// `fd` is written to but not closed.
  explicit StandardOutput(int fd);
  ~StandardOutput() override;
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  /// From now on a thread writes, so that a flush never blocks and never throws. What a flush gives
  /// beyond `most` bytes that nobody has read yet is dropped, and a line says so. The first write
  /// error is a line on stderr.
  void write_in_background(size_t most = size_t{4} << 20);
  /// Waits until all flushed lines are written, a second at most, so that an error comes after
  /// them.
  void drain();
  /// Writes the rest, however long the reader takes. False if a write failed for another reason
  /// than a closed pipe.
  bool finish();

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* bytes, std::streamsize count) override;
  int sync() override;

 private:
  void queue(const std::string& bytes, size_t most);
  void write_queued();
  [[nodiscard]] int write_all(std::string_view bytes) const;

  const int fd_;
  std::streambuf* const before_;
  std::ostream* const tied_;  // what std::cerr flushed
  std::string pending_;       // since the last flush
  size_t most_ = 0;
  std::mutex mutex_;  // of the members below
  std::condition_variable changed_;
  std::string queued_;
  size_t writing_ = 0;   // bytes that the thread is writing
  int64_t dropped_ = 0;  // flushes, a line each
  int error_ = 0;        // errno of the first failed write
  bool finishing_ = false;
  std::thread writer_;
};

}  // namespace tessera::train

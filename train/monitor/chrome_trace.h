// SPDX-License-Identifier: Apache-2.0
// Chrome's trace format (JSON), for Perfetto and chrome://tracing. Events are written to the file
// immediately, one per line, so that memory stays bounded. The complete file is renamed.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

/// Names and values of an event; a value is text or a number.
class TESSERA_API TraceArgs {
 public:
  TraceArgs& text(std::string_view name, std::string_view value);
  TraceArgs& number(std::string_view name, double value);
  [[nodiscard]] const std::string& json() const { return json_; }

 private:
  std::string json_;
};

/// Writes one trace. May be called from any thread; times are nanoseconds of the steady clock.
class TESSERA_API TraceWriter {
 public:
  /// Events belong to process `pid`, called `process_name`. IoError if the file cannot be made.
  TraceWriter(std::string path, int pid, std::string_view process_name);
  /// Without close(), removes the file.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void name_thread(int tid, std::string_view name);
  /// An event from `begin` to `end`. Events of one thread must nest.
  void complete(int tid, std::string_view name, std::string_view category, int64_t begin,
                int64_t end, const TraceArgs& args = {});
  /// The same for events that overlap others, shown in separate rows.
  void overlapping(uint64_t id, std::string_view name, std::string_view category, int64_t begin,
                   int64_t end, const TraceArgs& args = {});
  /// A number over time.
  void counter(std::string_view name, int64_t time, double value);
  /// Completes and renames the file. IoError if not all of it was written.
  void close();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  struct File;
  void event(const std::string& members);
  std::string path_;
  int pid_;
  std::mutex mutex_;
  std::unique_ptr<File> file_;
};

/// Joins complete traces into one with all their processes. DataError if one is not a trace of
/// TraceWriter; IoError.
TESSERA_API void join_traces(const std::vector<std::string>& paths, const std::string& to);

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// An event is one line and names its process, so traces of ranks of any size are joined by copying
// lines. Overlapping events are a pair of begin and end with an id.
#include "tessera/train/monitor/chrome_trace.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <unistd.h>

namespace tessera::train {
namespace {

constexpr std::string_view kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
constexpr std::string_view kTail = "\n]}\n";

// A JSON string; names are ours and seldom need more than quotes.
std::string quoted(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c == '"' || c == '\\' || c == 0x7F)
      return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  }
  return fmt::format("\"{}\"", text);
}

// Trace times are microseconds.
std::string micro(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

TraceArgs& TraceArgs::text(std::string_view name, std::string_view value) {
  json_ += fmt::format("{}{}:{}", json_.empty() ? "" : ",", quoted(name), quoted(value));
  return *this;
}

TraceArgs& TraceArgs::number(std::string_view name, double value) {
  json_ += fmt::format("{}{}:{}", json_.empty() ? "" : ",", quoted(name),
                       std::isfinite(value) ? fmt::format("{}", value) : "null");
  return *this;
}

struct TraceWriter::File {
  explicit File(std::string p) : path(std::move(p)), handle(::fdopen(io::create_file(path), "w")) {}
  ~File() {
    if (!handle) return;
    std::fclose(handle);
    ::unlink(path.c_str());
  }
  void put(std::string_view bytes) {
    failed |= std::fwrite(bytes.data(), 1, bytes.size(), handle) != bytes.size();
  }
  std::string path;
  std::FILE* handle;
  bool first = true, failed = false;
};

TraceWriter::TraceWriter(std::string path, int pid, std::string_view process_name)
    : path_(std::move(path)), pid_(pid), file_(new File(path_ + ".part")) {
  if (!file_->handle)
    fail<IoError>("profiler", "cannot create ", file_->path, ": ", std::strerror(errno));
  file_->put(kHead);
  event(fmt::format("\"tid\":0,\"ph\":\"M\",\"name\":\"process_name\",\"args\":{{\"name\":{}}}",
                    quoted(process_name)));
  event(fmt::format(
      "\"tid\":0,\"ph\":\"M\",\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{}}}",
      pid_));
}
TraceWriter::~TraceWriter() = default;

void TraceWriter::event(const std::string& members) {
  const std::lock_guard lock(mutex_);
  if (!file_) return;  // what ends after the trace has been closed
  if (!std::exchange(file_->first, false)) file_->put(",\n");
  file_->put(fmt::format("{{\"pid\":{},{}}}", pid_, members));
}

void TraceWriter::name_thread(int tid, std::string_view name) {
  event(fmt::format("\"tid\":{},\"ph\":\"M\",\"name\":\"thread_name\",\"args\":{{\"name\":{}}}",
                    tid, quoted(name)));
  event(fmt::format(
      "\"tid\":{0},\"ph\":\"M\",\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{0}}}",
      tid));
}

void TraceWriter::complete(int tid, std::string_view name, std::string_view category, int64_t begin,
                           int64_t end, const TraceArgs& args) {
  event(fmt::format(
      "\"tid\":{},\"ph\":\"X\",\"name\":{},\"cat\":{},\"ts\":{},\"dur\":{},\"args\":{{{}}}", tid,
      quoted(name), quoted(category), micro(begin), micro(end - begin), args.json()));
}

void TraceWriter::overlapping(uint64_t id, std::string_view name, std::string_view category,
                              int64_t begin, int64_t end, const TraceArgs& args) {
  // The process is part of the id: readers match ids over all of them.
  const auto half = [&](char phase, int64_t time, std::string_view members) {
    event(fmt::format(
        "\"tid\":0,\"ph\":\"{}\",\"id\":\"{}.{}\",\"name\":{},\"cat\":{},\"ts\":{},\"args\":{{{}}}",
        phase, pid_, id, quoted(name), quoted(category), micro(time), members));
  };
  half('b', begin, args.json());
  half('e', end, "");
}

void TraceWriter::counter(std::string_view name, int64_t time, double value) {
  event(fmt::format("\"tid\":0,\"ph\":\"C\",\"name\":{},\"ts\":{},\"args\":{{\"value\":{}}}",
                    quoted(name), micro(time), value));
}

void TraceWriter::close() {
  const std::lock_guard lock(mutex_);
  if (!file_) return;
  const std::unique_ptr<File> file = std::move(file_);
  file->put(kTail);
  const bool flushed = std::fflush(file->handle) == 0;
  if (file->failed || !flushed || std::rename(file->path.c_str(), path_.c_str()) != 0)
    fail<IoError>("profiler", "cannot write ", path_, ": ", std::strerror(errno));
  std::fclose(std::exchange(file->handle, nullptr));
}

void join_traces(const std::vector<std::string>& paths, const std::string& to) {
  io::write_file_atomically(to, [&](const auto& write) {
    write(kHead);
    std::string waiting;  // an event whose comma depends on whether another follows
    for (const std::string& path : paths) {
      std::ifstream file(path);
      if (!file) fail<IoError>("trace", "cannot open ", path, ": ", std::strerror(errno));
      std::string line, last;
      std::getline(file, line);
      if (concat(line, '\n') != kHead) fail<DataError>("trace", path, " is not a trace of a run");
      while (std::getline(file, line) && line != "]}") {
        if (!waiting.empty()) write(concat(waiting, ",\n"));
        waiting = line.ends_with(',') ? line.substr(0, line.size() - 1) : line;
      }
      if (line != "]}") fail<DataError>("trace", path, " ends in the middle");
    }
    write(concat(waiting, kTail));
  });
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// A ring of the last operations, dumped as JSON. A signal handler only counts requests; the rank
// checks the count and writes the dump.
#include "tessera/dist/process_group/flight_recorder.h"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <utility>

namespace tessera {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The only state of the signal handler: the number of dump requests in this process.
std::atomic<uint32_t>& dump_requests() {
  static std::atomic<uint32_t> requests{0};
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  return requests;
}

void on_signal(int) { dump_requests().fetch_add(1, std::memory_order_relaxed); }

std::string_view text(FlightRecorder::State s) {
  constexpr std::array<std::string_view, 4> kNames{"queued", "started", "done", "failed"};
  return kNames[static_cast<size_t>(s)];
}

}  // namespace

FlightRecorder::FlightRecorder(int world_rank, std::string folder) : world_rank_(world_rank) {
  seen_requests_ = dump_requests().load(std::memory_order_relaxed);
  set_folder(folder);
}

void FlightRecorder::set_folder(const std::string& folder) {
  std::error_code none;
  const std::filesystem::path base =
      folder.empty() ? std::filesystem::temp_directory_path(none) : std::filesystem::path(folder);
  path_ = (base / concat("tessera_flight_", getpid(), "_rank", world_rank_, ".json")).string();
}

void FlightRecorder::set_entries(size_t entries) {
  entries_ = std::make_unique<Entry[]>(entries);
  size_ = entries;
  first_ = count();
}

FlightRecorder::Spent FlightRecorder::spent() const {
  return {std::chrono::nanoseconds(moving_.load(std::memory_order_relaxed)),
          std::chrono::nanoseconds(waiting_.load(std::memory_order_relaxed))};
}

void FlightRecorder::moved(std::chrono::steady_clock::time_point start) {
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
  moving_.fetch_add(time.count(), std::memory_order_relaxed);
}

void FlightRecorder::waited(std::chrono::steady_clock::time_point start, const Spent& before) {
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
  waiting_.fetch_add((time - (spent().moving - before.moving)).count(), std::memory_order_relaxed);
}

FlightRecorder::Entry* FlightRecorder::find(uint64_t record) {
  if (record < oldest()) return nullptr;
  Entry& e = entries_[record % size_];
  return e.number == record ? &e : nullptr;
}

// Of the records that the ring may hold; the next one if it is empty.
uint64_t FlightRecorder::oldest() const {
  const uint64_t end = count();
  return std::max(first_, end > size_ ? end - size_ : 0);
}

uint64_t FlightRecorder::enter(const ProcessGroup& group, const Collective& c) {
  const uint64_t record = next_.load(std::memory_order_relaxed);
  if (size_ == 0) {
    next_.store(record + 1, std::memory_order_relaxed);
    return record;
  }
  Entry& e = entries_[record % size_];
  e.number = record;
  e.sequence = c.sequence;
  e.count = c.count;
  e.send = c.in.defined() ? c.in.numel() : 0;
  e.receive = c.out.defined() ? c.out.numel() : 0;
  e.kind = c.kind;
  e.op = c.op;
  e.dtype = c.dtype;
  e.root = c.root;
  e.tag = c.tag;
  e.size = group.size();
  const size_t length = std::min(group.name().size(), e.group.size() - 1);
  std::copy_n(group.name().data(), length, e.group.data());
  e.group[length] = 0;
  e.started.store(0, std::memory_order_relaxed);
  e.ended.store(0, std::memory_order_relaxed);
  e.queued.store(now_ns(), std::memory_order_relaxed);
  e.state.store(State::queued, std::memory_order_relaxed);
  next_.store(record + 1, std::memory_order_relaxed);
  return record;
}

void FlightRecorder::started(uint64_t record) {
  Entry* e = find(record);
  if (!e) return;
  e->started.store(now_ns(), std::memory_order_relaxed);
  e->state.store(State::started, std::memory_order_relaxed);
}

void FlightRecorder::ended(uint64_t record, bool failed) {
  Entry* e = find(record);
  if (!e) return;
  e->ended.store(now_ns(), std::memory_order_relaxed);
  e->state.store(failed ? State::failed : State::done, std::memory_order_relaxed);
}

std::vector<FlightRecorder::Operation> FlightRecorder::ended_since(uint64_t& first) const {
  const uint64_t end = count();
  first = std::max(first, oldest());
  std::vector<Operation> operations;
  for (; first < end; ++first) {
    const Entry& e = entries_[first % size_];
    const State state = e.state.load(std::memory_order_relaxed);
    const int64_t ended = e.ended.load(std::memory_order_relaxed);
    if (ended == 0 && state != State::failed) break;
    operations.push_back({e.kind, e.group.data(), e.dtype,
                          std::max(e.send, e.receive) * item_size(e.dtype),
                          e.queued.load(std::memory_order_relaxed),
                          e.started.load(std::memory_order_relaxed), ended});
  }
  return operations;
}

std::string FlightRecorder::json(std::string_view reason) const {
  using Json = nlohmann::ordered_json;
  const uint64_t end = count(), begin = oldest();
  const int64_t now = now_ns();
  const auto ago = [now](const std::atomic<int64_t>& t) {
    const int64_t at = t.load(std::memory_order_relaxed);
    return at == 0 ? Json() : Json(static_cast<double>(now - at) * 1e-6);
  };
  Json operations = Json::array();
  for (uint64_t i = begin; i < end; ++i) {
    const Entry& e = entries_[i % size_];
    Json one{{"number", e.number},
             {"group", e.group.data()},
             {"group_size", e.size},
             {"sequence", e.sequence},
             {"kind", concat(e.kind)},
             {"dtype", name(e.dtype)},
             {"count", e.count},
             {"in", e.send},
             {"out", e.receive},
             {"state", text(e.state.load(std::memory_order_relaxed))},
             {"queued_ms_ago", ago(e.queued)},
             {"started_ms_ago", ago(e.started)},
             {"ended_ms_ago", ago(e.ended)}};
    if (e.kind == CollectiveKind::all_reduce || e.kind == CollectiveKind::reduce ||
        e.kind == CollectiveKind::reduce_scatter)
      one["op"] = concat(e.op);
    if (e.root >= 0) one["root"] = e.root;
    if (e.kind == CollectiveKind::send || e.kind == CollectiveKind::recv) one["tag"] = e.tag;
    operations.push_back(std::move(one));
  }
  return Json{{"rank", world_rank_},
              {"process", getpid()},
              {"reason", reason},
              {"entered", end},
              {"operations", std::move(operations)}}
      .dump(1, ' ', false, Json::error_handler_t::replace);
}

bool FlightRecorder::dump(std::string_view reason) const noexcept {
  try {
    return write(json(reason));
  } catch (...) {
    return false;
  }
}

bool FlightRecorder::write(std::string_view json) const noexcept {
  try {
    std::error_code none;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), none);
    // The name can be guessed, perhaps by others who may write in the folder, so no link is
    // followed: a new file takes the place of what is there.
    const std::string aside = path_ + ".part", text = concat(json, '\n');
    ::unlink(aside.c_str());
    const int fd =
        ::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    std::FILE* file = fd < 0 ? nullptr : ::fdopen(fd, "w");
    bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file) written = std::fclose(file) == 0 && written;
    written = written && std::rename(aside.c_str(), path_.c_str()) == 0;
    if (!written) {
      std::fprintf(stderr, "warning: no flight record in %s: %s\n", path_.c_str(),
                   std::strerror(errno));
    }
    return written;
  } catch (...) {
    return false;
  }
}

void FlightRecorder::install_signal_handler() {
  dump_requests();  // made before a handler can run
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
}

bool FlightRecorder::asked() {
  const uint32_t requests = dump_requests().load(std::memory_order_relaxed);
  return std::exchange(seen_requests_, requests) != requests;
}

}  // namespace tessera

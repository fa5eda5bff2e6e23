// SPDX-License-Identifier: Apache-2.0
// core's Interceptor reports the begin and end of each op. The times of collectives come from the
// flight recorder, their axes and module from CommTrace; both list them in order of their start.
// What a device ran comes from its own trace when the recorded steps have ended, a row for each
// stream.
#include "tessera/train/monitor/profiler.h"

#include "tessera/autograd/node.h"
#include "tessera/core/context.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/hooks.h"
#include "tessera/core/message.h"
#include "tessera/core/process.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/dist/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <thread>

namespace tessera::train {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string text_of(Tensors tensors) {
  std::string text;
  for (const Tensor& t : tensors) {
    text += text.empty() ? "" : ", ";
    text += t.defined() ? concat(t.meta()) : "none";
  }
  return text;
}

// Bytes of this rank's shards.
double bytes_of(Tensors tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors) {
    if (!t.defined()) continue;
    const TensorImpl& part = t.is_distributed() ? *t.impl().local : t.impl();
    sum += part.meta.shape.numel() * item_size(part.meta.dtype);
  }
  return static_cast<double>(sum);
}

std::string_view kind_name(OpKind kind) {
  return kind == OpKind::view ? "view" : kind == OpKind::in_place ? "in_place" : "op";
}

}  // namespace

// Intercepts each op of the program; writes to `trace` if there is one.
class Profiler::Recorder final : public Interceptor {
 public:
  Recorder(World& world, Device device, std::shared_ptr<TraceWriter>& trace)
      : context_(Context::current()),
        device_(device),
        flights_(world.group().recorder()),
        trace_(trace),
        seen_(flights_.count()),
        before_(std::exchange(context_.interceptor, this)) {}
  ~Recorder() override {
    context_.interceptor = before_;
    try {
      if (on_device_) (void)on_device_->stop(device_.index);
    } catch (const Error&) {  // the device is lost: the run's own error says so
    }
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  bool replay(const OpRow& row, const void*, Tensors, TensorList&) override {
    begin_ = now_ns();
    if (on_device_) {
      launched_by_.emplace_back(row.name);
      on_device_->mark(launched_by_.size());
    }
    return false;
  }
  void observe(const OpRow& row, const void*, Tensors in, Tensors out) override {
    const int64_t end = now_ns();
    const std::string module = joined_path(context_.module_path);
    // Backward's ops then run under the name of the module that their forward ran in.
    if (!out.empty() && out[0].impl().node)
      static_cast<Node&>(*out[0].impl().node).module_path = module;
    if (!trace_) return;
    TraceArgs args;
    args.text("module", module).text("in", text_of(in)).text("out", text_of(out));
    // A view moves nothing.
    args.number("bytes", row.kind == OpKind::view ? 0 : bytes_of(in) + bytes_of(out));
    args.text("pass", trace_tag());
    trace_->complete(0, row.name, kind_name(row.kind), begin_, end, args);
    write_memory(end);
    write_collectives();
  }

  // From now on the device's own times are kept, where it has any.
  void trace_device() {
    if (!device_.is_cuda()) return;
    try {
      DeviceTrace& trace = Process::get().cuda().trace();
      trace.start(device_.index);
      on_device_ = &trace;
    } catch (const Error& e) {
      trace_->name_thread(kFirstStream, concat(device_, " without times: ", e.what()));
    }
  }
  void write_device() {
    if (!on_device_) return;
    const DeviceWorks works = std::exchange(on_device_, nullptr)->stop(device_.index);
    std::vector<uint64_t> streams;
    for (const DeviceWork& w : works.all) {
      const auto at = std::ranges::find(streams, w.stream) - streams.begin();
      const int row = kFirstStream + static_cast<int>(at);
      if (at == std::ssize(streams)) {
        streams.push_back(w.stream);
        trace_->name_thread(row, concat(device_, ", stream ", streams.size()));
      }
      TraceArgs args;
      if (w.mark > 0 && w.mark <= launched_by_.size()) args.text("op", launched_by_[w.mark - 1]);
      if (w.bytes > 0) args.number("bytes", static_cast<double>(w.bytes));
      trace_->complete(row, w.name, "device", w.begin, w.end, args);
    }
    if (works.dropped > 0)
      trace_->name_thread(kFirstStream + static_cast<int>(streams.size()),
                          concat("without ", counted(works.dropped, "record"), " of ", device_));
  }

  void write_collectives() {
    const auto ended = flights_.ended_since(seen_);
    for (const CommEntry& e : sent_.entries()) planned_.push_back(e);
    sent_.clear();
    for (const auto& f : ended) {
      const std::string kind = concat(f.kind);
      TraceArgs args;
      args.text("group", f.group).number("bytes", static_cast<double>(f.bytes));
      const auto plan = std::ranges::find(planned_, kind, &CommEntry::op);
      if (plan != planned_.end()) {
        args.text("axes", plan->axes).text("module", plan->path).text("pass", plan->tag);
        planned_.erase(plan);
      }
      args.number("queued_us",
                  static_cast<double>(std::max(f.started, f.queued) - f.queued) * 1e-3);
      if (trace_ && f.ended > 0)
        trace_->overlapping(number_++, kind, "collective", f.queued, f.ended, args);
    }
    constexpr size_t kMostWaiting = 4096;  // planned, but of no group that sends (one rank)
    while (planned_.size() > kMostWaiting) planned_.pop_front();
  }

 private:
  static constexpr int kFirstStream = 1000;  // rows of a device's streams, behind those of threads

  void write_memory(int64_t time) {
    constexpr int64_t kStep = 64 << 10;  // smaller changes would fill the trace
    const int64_t live = context_.allocator(device_)->stats().live;
    if (std::abs(live - shown_) < kStep) return;
    shown_ = live;
    trace_->counter("tensor memory (bytes)", time, static_cast<double>(live));
  }

  Context& context_;
  Device device_;
  DeviceTrace* on_device_ = nullptr;
  std::vector<std::string_view> launched_by_;  // by mark, from 1
  FlightRecorder& flights_;
  std::shared_ptr<TraceWriter>& trace_;
  CommTrace sent_;
  std::deque<CommEntry> planned_;
  uint64_t seen_, number_ = 0;
  int64_t begin_ = 0, shown_ = 0;
  Interceptor* before_;
};

struct Profiler::State {
  State(const ProfilerConfig& c, World& w, Device d) : config(c), world(w), device(d) {}
  ProfilerConfig config;
  World& world;
  Device device;
  std::filesystem::path folder;
  std::unique_ptr<Recorder> recorder;
  std::mutex mutex;  // of what spans of other threads read: trace and threads
  std::shared_ptr<TraceWriter> trace;
  std::vector<std::thread::id> threads;
  int64_t step = 0, begin = 0;
};

void ProfilerConfig::fields(config::Fields& f) {
  f.add("enable_profiling", enable_profiling, "write Chrome traces of profiled steps");
  f.add("save_traces_folder", save_traces_folder, "folder of the traces, below dump_folder");
  f.add("profile_freq", profile_freq, "steps between traces", {.min = 1, .unit = "steps"});
  f.add("profiler_active", profiler_active, "steps recorded per trace",
        {.min = 1, .unit = "steps"});
  f.add("profiler_warmup", profiler_warmup, "profiler warm-up steps before the recorded ones",
        {.min = 0, .unit = "steps"});
}

std::vector<std::string> ProfilerConfig::conflicts() const {
  if (!enable_profiling || profiler_warmup + profiler_active <= profile_freq) return {};
  return {concat("[--profiler.profile_freq] ", profile_freq,
                 " is below --profiler.profiler_warmup ", profiler_warmup,
                 " + --profiler.profiler_active ", profiler_active)};
}

Profiler::Profiler(const ProfilerConfig& config, const std::string& dump_folder, World& world,
                   Device device)
    : state_(new State(config, world, device)) {
  config::throw_if_any(config.conflicts());
  state_->folder = std::filesystem::path(dump_folder) / config.save_traces_folder;
}
Profiler::~Profiler() = default;

void Profiler::begin_step(int64_t step) {
  State& s = *state_;
  if (!s.config.enable_profiling) return;
  const int64_t at = (step - 1) % s.config.profile_freq;
  const int64_t first = s.config.profile_freq - s.config.profiler_active;
  if (at < first - s.config.profiler_warmup) return;
  if (!s.recorder) s.recorder = std::make_unique<Recorder>(s.world, s.device, s.trace);
  if (at >= first && !s.trace) {
    const int64_t last = step - at + s.config.profile_freq - 1;
    const auto folder = s.folder / fmt::format("iteration_{}", last);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    s.recorder->write_collectives();  // those of the warm-up
    const int rank = s.world.rank();
    auto trace =
        std::make_shared<TraceWriter>((folder / fmt::format("rank{}_trace.json", rank)).string(),
                                      rank, fmt::format("rank {}", rank));
    trace->name_thread(0, "rank thread");
    {
      const std::lock_guard lock(s.mutex);
      s.threads = {std::this_thread::get_id()};
      s.trace = std::move(trace);
    }
    s.recorder->trace_device();
  }
  s.step = step;
  s.begin = now_ns();
}

std::string Profiler::end_step(int64_t step) {
  State& s = *state_;
  if (!s.recorder) return {};
  if (s.trace) {
    s.recorder->write_collectives();
    s.trace->complete(0, fmt::format("step {}", step), "step", s.begin, now_ns());
  }
  return step % s.config.profile_freq == 0 ? end_trace() : std::string();
}

std::string Profiler::end_trace() {
  State& s = *state_;
  if (s.recorder && s.trace) s.recorder->write_device();
  std::shared_ptr<TraceWriter> trace;
  {
    const std::lock_guard lock(s.mutex);
    trace = std::move(s.trace);
    s.trace = nullptr;
  }
  s.recorder.reset();
  if (!trace) return {};
  trace->close();
  return trace->path();
}

std::string Profiler::finish() { return end_trace(); }

// Rows are numbered in the order in which threads are first seen.
int Profiler::tid() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto me = std::this_thread::get_id();
  const auto at = std::ranges::find(s.threads, me);
  const auto n = static_cast<int>(at - s.threads.begin());
  if (at == s.threads.end()) {
    s.threads.push_back(me);
    if (s.trace) s.trace->name_thread(n, fmt::format("thread {}", n));
  }
  return n;
}

Profiler::Span::Span(Profiler* profiler, std::string_view name) : profiler_(profiler) {
  if (!profiler_) return;
  {
    const std::lock_guard lock(profiler_->state_->mutex);
    trace_ = profiler_->state_->trace;
  }
  if (!trace_) return;
  name_ = name;
  begin_ = now_ns();
}

Profiler::Span::~Span() {
  if (!trace_) return;
  const int64_t end = now_ns();
  const int tid = profiler_->tid();
  // Only the rank's own thread may look at its recorder.
  if (tid == 0 && profiler_->state_->recorder) profiler_->state_->recorder->write_collectives();
  trace_->complete(tid, name_, "phase", begin_, end);
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// The first step is slower than the others: the remaining time is estimated without it, and the
// peak is measured after it. Later measurements are short and ever rarer, and tell whether the peak
// still holds. Activations are the bytes alive after a forward that were not before the step's
// passes: a pipeline has several micro-batches in flight. Gradients are counted after backward.
#include "tessera/train/monitor/monitor.h"

#include "tessera/core/context.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/matmul/peak.h"
#include "tessera/train/monitor/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <exception>
#include <filesystem>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

int64_t machine_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

int64_t memory_of(Device device) {
  return device.is_cuda() ? Process::get().cuda().device_memory(device.index) : machine_memory();
}

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// `tb/20261121-1930`, so that runs in one folder stay separate.
std::string dated(const std::string& folder) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  return (std::filesystem::path(folder) /
          std::string(text.data(), std::strftime(text.data(), text.size(), "%Y%m%d-%H%M", &local)))
      .string();
}

}  // namespace

int64_t MemoryByKind::rest() const {
  return std::max<int64_t>(0, peak - parameters - gathered - optimizer - activations);
}

std::string MemoryByKind::text() const {
  return fmt::format(
      "memory at its peak {}: parameters {}, optimizer {}, gathered or cast {}, activations {}, "
      "other {}; gradients {} after backward",
      byte_count(peak), byte_count(parameters), byte_count(optimizer), byte_count(gathered),
      byte_count(activations), byte_count(rest()), byte_count(gradients));
}

Monitor::Monitor(const MetricsConfig& metrics, const ProfilerConfig& profiler, MonitorFacts facts,
                 World& world, std::function<void(const std::string&)> print, Screen* screen)
    : config_(metrics),
      facts_(std::move(facts)),
      world_(world),
      print_(print && world.rank() == 0 ? std::move(print) : [](const std::string&) {}),
      screen_(world.rank() == 0 ? screen : nullptr),
      profiler_(profiler, facts_.dump_folder, world, facts_.device),
      device_memory_(memory_of(facts_.device)) {
  done_ = facts_.done;
  memory_.parameters = bytes_of(facts_.parameters);
  memory_.optimizer = facts_.optimizer_bytes;
  if (screen_ && config_.disable_color_printing) screen_->set_plain();
  if (world.rank() != 0) return;
  const std::filesystem::path folder = facts_.dump_folder;
  log_.emplace((folder / "metrics.jsonl").string(), facts_.done);
  if (config_.enable_tensorboard)
    tensorboard_.emplace(dated((folder / config_.save_tb_folder).string()));
}

Monitor::~Monitor() = default;

Monitor::Phase::Phase(Monitor& monitor, std::string_view name, std::string_view shown)
    : monitor_(monitor),
      span_(&monitor.profiler_, shown),
      name_(name),
      exceptions_(std::uncaught_exceptions()),
      begin_(Clock::now()) {
  if (name == "forward" || name == "messages") monitor.begin_passes();
}

Monitor::Phase::~Phase() {
  if (name_ == "data") monitor_.data_seconds_ += seconds(Clock::now() - begin_);
  if (name_ == "forward") monitor_.end_forward(std::uncaught_exceptions() > exceptions_);
  if (name_ == "backward")
    monitor_.memory_.gradients = std::max(monitor_.memory_.gradients, monitor_.gradients());
}

void Monitor::begin_passes() {
  if (!live_before_passes_) live_before_passes_ = stats().live - gathered() - gradients();
}

void Monitor::end_forward(bool failed) {
  const int64_t whole = gathered();
  memory_.gathered = std::max(memory_.gathered, whole);
  // Where an exception ends it, its tensors are gone by now.
  const int64_t live = failed ? stats().peak : stats().live;
  memory_.activations =
      std::max(memory_.activations, live - whole - gradients() - *live_before_passes_);
}

MemoryStats Monitor::stats() const { return Context::current().allocator(facts_.device)->stats(); }

int64_t Monitor::gathered() const { return facts_.gathered_bytes ? facts_.gathered_bytes() : 0; }

int64_t Monitor::gradients() const { return gradient_bytes(facts_.parameters); }

void Monitor::begin_step(int64_t step) {
  step_began_ = Clock::now();
  data_seconds_ = 0;
  live_before_passes_.reset();
  if (first_ == 0) first_ = step;
  profiler_.begin_step(step);
}

double Monitor::flops_per_token(const StepRecord& r) const {
  return r.flops / static_cast<double>(facts_.tokens_per_step);
}

double Monitor::seconds_per_step(int64_t step) const {
  // The first step prepares, and is not like the others.
  if (step > first_)
    return seconds(Clock::now() - first_ended_) / static_cast<double>(step - first_);
  return seconds(Clock::now() - step_began_);
}

void Monitor::end_step(int64_t step) {
  const std::string trace = profiler_.end_step(step);
  if (!trace.empty()) print_("profiler: wrote " + trace);
  done_ = step;
  (void)memory_so_far();
}

const MemoryByKind& Monitor::memory_so_far() {
  memory_.peak = std::max(memory_.peak, stats().peak);
  return memory_;
}

bool Monitor::logs(int64_t step) const {
  return step == first_ || step == facts_.steps || step % config_.log_freq == 0;
}

void Monitor::record(const StepRecord& record) {
  if (log_) log_->write(record);
  if (tensorboard_) write_tensorboard(record);
  explain_excess(record);
  show(record);
  const int64_t count = record.step - first_ + 1;
  if (config_.measure_ceiling && facts_.device.is_cpu() && record.step < facts_.steps &&
      (count & (count - 1)) == 0)
    measure(count == 1 ? 0.02 : 0.004);
  if (count == 1) first_ended_ = Clock::now();
}

// After the first step, which is slow for other reasons, so that nobody waits longer to see it.
void Monitor::measure(double seconds) {
  const Tensor sum = empty({1}, DType::f64);
  world_.group().barrier()->wait();  // ranks share the cores, so they are measured together
  // Where threads outnumber the processors of the host, they take turns.
  const double threads = Context::current().options.threads * world_.local_ranks();
  const double share = std::min(1.0, static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)) / threads);
  *sum.data<double>() = share * measure_peak(facts_.compute, seconds);
  world_.group().all_reduce(sum)->wait();
  peak_measured(*sum.data<double>());
}

void Monitor::peak_measured(double flops) {
  if (ceiling_ == 0) {
    ceiling_ = flops;
    print_(
        fmt::format("ceiling: {:.3g} TFLOP/s, the measured peak of {} multiply-adds; mfu is "
                    "relative to it",
                    ceiling_ / 1e12, name(facts_.compute)));
    return;
  }
  constexpr double kDrift = 0.1;
  const bool holds = std::abs(flops - ceiling_) <= kDrift * ceiling_;
  if (holds != ceiling_holds_)
    print_(
        fmt::format("mfu is {} now: the peak was measured again as {:.3g} TFLOP/s, {:+.0f} % "
                    "from the ceiling",
                    holds ? "available" : "N/A", flops / 1e12, 100 * (flops / ceiling_ - 1)));
  ceiling_holds_ = holds;
}

// Once, since it is the ceiling that is wrong.
void Monitor::explain_excess(const StepRecord& r) {
  const double flops = flops_per_token(r) * r.tokens_per_second;
  if (ceiling_ == 0 || flops <= ceiling_ || std::exchange(exceeded_, true)) return;
  print_(
      fmt::format("mfu is N/A where it is above 100 %: step {} ran {:.3g} TFLOP/s, so the "
                  "ceiling was measured too low",
                  r.step, flops / 1e12));
}

void Monitor::write_tensorboard(const StepRecord& r) {
  constexpr double kGiB = 1 << 30;
  const double flops = flops_per_token(r) * r.tokens_per_second;
  const auto peak = static_cast<double>(memory_.peak);
  const double step_seconds = static_cast<double>(facts_.tokens_per_step) / r.tokens_per_second;
  std::vector<Scalar> scalars{
      {"loss_metrics/global_avg_loss", r.loss},
      {"grad_norm", r.grad_norm},
      {"lr", r.lr},
      {"n_tokens_seen", static_cast<double>(r.step * facts_.tokens_per_step)},
      {"throughput(tps)", r.tokens_per_second},
      {"tflops", flops / 1e12},
      {"time_metrics/end_to_end(s)", step_seconds},
      {"time_metrics/data_loading(s)", data_seconds_},
      {"time_metrics/data_loading(%)", 100 * data_seconds_ / step_seconds},
      {"memory/max_active(GiB)", peak / kGiB},
      {"memory/max_active(%)", 100 * peak / static_cast<double>(device_memory_)},
      {"memory/parameters(GiB)", static_cast<double>(memory_.parameters) / kGiB},
      {"memory/gradients(GiB)", static_cast<double>(memory_.gradients) / kGiB},
      {"memory/optimizer(GiB)", static_cast<double>(memory_.optimizer) / kGiB},
      {"memory/activations(GiB)", static_cast<double>(memory_.activations) / kGiB}};
  if (const auto mfu = mfu_of(flops, ceiling_, ceiling_holds_)) scalars.push_back({"mfu(%)", *mfu});
  for (const auto& [name, value] : r.statistics) scalars.push_back({name, value});
  tensorboard_->write(r.step, scalars);
}

void Monitor::show(const StepRecord& r) {
  const bool bar = screen_ && screen_->style().bar;
  const double per_step = seconds_per_step(r.step);
  const double left = per_step * static_cast<double>(facts_.steps - r.step);
  if (logs(r.step))
    print_(step_line(r, {.peak_bytes = memory_.peak,
                         .total_bytes = device_memory_,
                         .flops_per_token = flops_per_token(r),
                         .ceiling_flops = ceiling_,
                         .ceiling_holds = ceiling_holds_,
                         .seconds_left = left,
                         .statistics = config_.step_line,
                         .color = bar && screen_->style().color}));
  if (!bar || !(screen_->bar_due() || r.step == facts_.steps)) return;
  screen_->bar(progress_bar(r.step, facts_.steps, per_step, r.loss, left, screen_->width() - 1));
}

void Monitor::validation(int64_t step, double loss, double perplexity) {
  if (log_) log_->write_validation(step, loss);
  if (!tensorboard_) return;
  const std::array<Scalar, 2> scalars{
      {{"validation_metrics/loss", loss}, {"validation_metrics/perplexity", perplexity}}};
  tensorboard_->write(step, scalars);
}

void Monitor::finish() {
  const std::string trace = profiler_.finish();
  if (screen_) screen_->clear_bar();
  if (!trace.empty()) print_("profiler: wrote " + trace);
  if (done_ > 0) print_(memory_.text());
}

}  // namespace tessera::train

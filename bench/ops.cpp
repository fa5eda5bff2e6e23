// SPDX-License-Identifier: Apache-2.0
// Every op's samples that are large enough to be timed, in f32 and bf16, by Google Benchmark: time,
// bytes and flops per second by the room's own cost, and percent of this machine's ceilings,
// measured in the same run. Differentiable ops are timed with their gradient too. On a GPU, by
// windows of calls that end when the work is done. `--list-cases` prints what bench/peers/ops.py
// times in PyTorch.
#include "tessera/bench/support.h"
#include "tessera/core/process.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>

namespace tessera::bench {
namespace {

struct Case {
  const OpRow* row = nullptr;
  SampleRow sample;
  DType dtype = DType::f32;
  std::string name;
  Json peer;  // the case for PyTorch: its table of twins names the attributes
  bool differentiable = false;
  Cost cost;
  double time_us = 0, time_grad_us = 0;
};

Json parsed(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

Json shapes_of(const OpRow& row, const std::vector<Arg>& in) {
  Json shapes = Json::array();
  const bool adamw = row.name == "adamw_";  // the peer wants parameters alone
  for (size_t i = adamw ? 4 : 0; i < (adamw ? 4 + (in.size() - 4) / 4 : in.size()); ++i) {
    shapes.push_back(std::vector<int64_t>(in[i].shape.begin(), in[i].shape.end()));
  }
  return shapes;
}

// Cost and output dtype from shapes alone: nothing is allocated until a case runs.
void estimate(Case& c) {
  MetaList in;
  SmallVector<const TensorMeta*, 8> pointers;
  for (const Arg& a : c.sample.in) in.push_back({a.shape, a.type(c.dtype), kCpu});
  for (size_t i = 0; i < in.size(); ++i)
    pointers.push_back(c.sample.in[i].defined ? &in[i] : nullptr);
  const Metas metas(pointers.data(), pointers.size());
  const MetaList out = c.row->meta(c.sample.op.get(), metas);
  if (c.sample.in.empty() && !out.empty()) c.dtype = out[0].dtype;
  if (c.row->kind != OpKind::view)
    c.cost = c.row->cost(c.sample.op.get(), metas, MetaArray(std::span(out.begin(), out.size())));
}

std::string name_of(const Case& c) {
  std::ostringstream text;
  text << c.row->name << '/' << c.dtype << '/';
  for (size_t i = 0; i < c.sample.in.size(); ++i) {
    const Arg& a = c.sample.in[i];
    if (!a.defined) continue;
    if (i) text << ',';
    for (int d = 0; d < a.shape.rank(); ++d) text << (d ? "x" : "") << a.shape[d];
    if (a.shape.rank() == 0) text << '1';
  }
  const auto attributes = c.row->attributes(c.sample.op.get());
  for (size_t i = 0; i < attributes.size(); ++i) text << (i ? "," : "/") << attributes[i];
  std::string name = text.str();
  std::erase(name, ' ');
  return name;
}

std::optional<Case> make_case(const OpRow& row, const SampleRow& sample, DType dtype) {
  Case c{&row, sample, dtype, {}, {}, false, {}, 0, 0};
  // Inputs of fixed dtypes (f8) are timed once, under the first name.
  const bool fixed =
      !sample.in.empty() && dtype == DType::f32 &&
      std::ranges::all_of(sample.in, [](const Arg& a) { return !a.defined || a.dtype; });
  if (row.kind != OpKind::view && !row.dtypes.has(dtype) && !fixed) return {};
  bool float_input = false;
  for (const Arg& a : sample.in)
    float_input |= a.defined && a.differentiable && is_floating(a.type(dtype));
  estimate(c);
  if (sample.in.empty() && c.dtype != dtype) return {};
  c.name = name_of(c);
  const bool backward_op = row.name.ends_with("_backward");
  c.differentiable = row.kind == OpKind::compute && row.vjp && float_input && !backward_op;
  Json attributes = Json::array();
  for (const std::string& value : row.attributes(sample.op.get()))
    attributes.push_back(parsed(value));
  c.peer = {{"case", c.name},
            {"op", row.name},
            {"shapes", shapes_of(row, sample.in)},
            {"dtype", name(c.dtype)},
            {"attrs", std::move(attributes)},
            {"grad", c.differentiable}};
  return c;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  std::set<std::string> seen;
  for (const OpRow* row : kernel_rows()) {
    for (const SampleRow& sample : row->samples()) {
      if (!sample.bench || !sample.throws.empty()) continue;
      // Ops of whole numbers or of logic alone are timed in i64 or bool.
      const bool floats = row->kind == OpKind::view || row->dtypes.has(DType::f32);
      for (DType dtype :
           floats ? std::array{DType::f32, DType::bf16} : std::array{DType::i64, DType::bool_}) {
        auto c = make_case(*row, sample, dtype);
        if (c && seen.insert(c->name).second) cases.push_back(std::move(*c));
      }
    }
  }
  return cases;
}

Tensor make_input(const Arg& a, DType dtype, std::mt19937_64& random) {
  if (!a.defined) return {};
  const DType t = a.type(dtype);
  std::vector<double> values(static_cast<size_t>(a.shape.numel()));
  std::normal_distribution<double> bell;
  std::uniform_real_distribution<double> even(a.low, a.high);
  for (size_t i = 0; i < values.size(); ++i) {
    double& v = values[i];
    switch (a.fill) {
      case Arg::Fill::normal:
      case Arg::Fill::distinct: v = bell(random); break;
      case Arg::Fill::uniform: v = even(random); break;
      case Arg::Fill::integers: v = std::floor(even(random)); break;
      case Arg::Fill::boolean: v = static_cast<double>(random() % 2); break;
      case Arg::Fill::value: v = a.low; break;
      case Arg::Fill::listed: v = a.list.at(i % a.list.size()); break;
    }
  }
  return from_values(values, a.shape, t);
}

// The tensors of the case that runs now; Google Benchmark enters a case several times.
class Operands {
 public:
  explicit Operands(Device device) : device_(device) {}
  [[nodiscard]] Device device() const { return device_; }
  void load(const Case& c) {
    if (owner_ == c.name) return;
    owner_ = c.name;
    std::mt19937_64 random(7);
    inputs.clear();
    for (const Arg& a : c.sample.in) {
      const Tensor made = make_input(a, c.dtype, random);
      inputs.push_back(made.defined() ? to_device(made, device_) : made);
    }
    originals.clear();
    if (c.row->kind == OpKind::in_place) {
      for (const Tensor& t : inputs) originals.push_back(copy(t));
    }
  }
  void restore(const OpRow& row) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (row.writes(i, inputs.size())) copy_bytes(inputs[i], originals[i]);
    }
  }
  std::vector<Tensor> inputs, originals;

 private:
  Device device_;
  std::string owner_;
};

// Calls f until the state has enough.
template <class F> void repeat(benchmark::State& state, Device device, F&& f) {
  if (device.is_cpu()) {
    for (auto _ : state) f();
    return;
  }
  constexpr double kWindow = 2e-3;
  const auto calls = static_cast<benchmark::IterationCount>(
      std::clamp(kWindow / least_seconds(f, device, 1), 1.0, 1000.0));
  while (state.KeepRunningBatch(calls)) {
    for (benchmark::IterationCount i = 0; i < calls; ++i) f();
    wait_for(device);
  }
}

void run_forward(benchmark::State& state, const Case& c, Operands& operands) {
  operands.load(c);
  const NoGrad guard;
  TensorList out;
  const auto call = [&] {
    out.clear();
    detail::call(*c.row, c.sample.op.get(), operands.inputs, out);
  };
  // On a CPU values that drift to denormals are slow, so each call gets those that it began with.
  if (c.row->kind != OpKind::in_place || !operands.device().is_cpu())
    return repeat(state, operands.device(), call);
  for (auto _ : state) {
    state.PauseTiming();
    operands.restore(*c.row);
    state.ResumeTiming();
    call();
  }
}

void run_gradient(benchmark::State& state, const Case& c, Operands& operands) {
  operands.load(c);
  std::vector<Tensor> in, leaves;
  for (size_t i = 0; i < operands.inputs.size(); ++i) {
    Tensor t = operands.inputs[i];
    const Arg& a = c.sample.in[i];
    if (a.defined && a.differentiable && is_floating(t.dtype()))
      leaves.push_back(t = t.detach().set_requires_grad());
    in.push_back(t);
  }
  TensorList out;
  detail::call(*c.row, c.sample.op.get(), in, out);
  const Tensor dy = normal(out[0].shape(), {7, 1}, 0, 1, out[0].dtype(), operands.device());
  repeat(state, operands.device(), [&] {
    out.clear();
    detail::call(*c.row, c.sample.op.get(), in, out);
    (void)grad({out[0]}, leaves, {.grad_outputs = {dy}, .allow_unused = true});
  });
}

// Notes the median of the repetitions in its case and prints a line.
class Table final : public benchmark::BenchmarkReporter {
 public:
  Table(std::vector<Case>& cases, const Ceilings& ceilings) : ceilings_(ceilings) {
    for (Case& c : cases) {
      slots_[c.name] = {&c, &c.time_us};
      slots_[c.name + "+grad"] = {&c, &c.time_grad_us};
    }
  }
  bool ReportContext(const Context&) override {
    fmt::print("{:96} {:>11} {:>8} {:>9} {:>10}\n", "op/dtype/shapes/attributes", "us", "GB/s",
               "GFLOP/s", "% ceiling");
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<double> times;
    for (const Run& r : runs) {
      if (r.error_occurred)
        fail<UsageError>("bench", r.run_name.function_name, ": ", r.error_message);
      if (r.run_type == Run::RT_Iteration) times.push_back(r.GetAdjustedRealTime());
    }
    if (times.empty()) return;  // aggregates come as runs of their own
    const std::string& name = runs.at(0).run_name.function_name;
    const auto [c, time] = slots_.at(name);
    *time = median(times);
    if (time == &c->time_us) {
      const double s = *time * 1e-6;
      fmt::print("{:96} {:11.2f} {:8.1f} {:9.1f} {:10.0f}\n", name, *time, c->cost.bytes / s / 1e9,
                 c->cost.flops / s / 1e9, 100 * ceilings_.seconds(c->cost, c->dtype) / s);
    } else {
      fmt::print("{:96} {:11.2f}\n", name, *time);
    }
    std::fflush(stdout);
  }

 private:
  const Ceilings& ceilings_;
  std::map<std::string, std::pair<Case*, double*>> slots_;
};

Json line_of(const Case& c, const Ceilings& ceilings, int threads) {
  Json line = {
      {"case", c.name}, {"op", c.row->name}, {"dtype", name(c.dtype)}, {"threads", threads}};
  if (c.time_us > 0) {
    const double s = c.time_us * 1e-6;
    line["time_us"] = c.time_us;
    line["gbytes_per_second"] = c.cost.bytes / s / 1e9;
    line["gflops_per_second"] = c.cost.flops / s / 1e9;
    line["percent_of_ceiling"] = 100 * ceilings.seconds(c.cost, c.dtype) / s;
  }
  if (c.time_grad_us > 0) line["time_grad_us"] = c.time_grad_us;
  return line;
}

void measure(Arguments& arguments) {
  const bool list = arguments.flag("--list-cases");
  const int threads = arguments.number("--threads", Process::get().cores());
  const Device device = arguments.device();
  Lines lines(arguments.text("--json"));
  arguments.finish();
  Session session({.threads = threads});
  std::vector<Case> cases = all_cases();
  if (list) {
    for (const Case& c : cases) {
      fmt::print("{}\n", c.peer.dump());
    }
    return;
  }

  int count = static_cast<int>(arguments.rest().size());
  benchmark::Initialize(&count, arguments.rest().data());
  const Ceilings ceilings = measure_ceilings(device);
  fmt::print("{}\n", describe(ceilings, threads, device));
  Operands operands(device);
  const auto add = [](const std::string& name, auto f) {
    benchmark::RegisterBenchmark(name.c_str(), f)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond)
        ->MinTime(0.03)
        ->Repetitions(5);
  };
  for (const Case& c : cases) {
    if (device.is_cuda() && c.sample.in.empty()) continue;  // makes its output on the CPU
    add(c.name, [&](benchmark::State& state) { run_forward(state, c, operands); });
    if (c.differentiable)
      add(c.name + "+grad", [&](benchmark::State& state) { run_gradient(state, c, operands); });
  }
  Table table(cases, ceilings);
  benchmark::RunSpecifiedBenchmarks(&table);
  benchmark::ClearRegisteredBenchmarks();
  Json about = {{"name", "about"}, {"device", device_name(device, threads)}, {"threads", threads}};
  about.update(ceilings.json());
  lines.write(about);
  for (const Case& c : cases) {
    if (c.time_us > 0 || c.time_grad_us > 0) lines.write(line_of(c, ceilings, threads));
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  return tessera::bench::run([&] {
    tessera::bench::Arguments arguments(argc, argv);
    tessera::bench::measure(arguments);
  });
}

// SPDX-License-Identifier: Apache-2.0
// Train step of a Llama on random tokens: tokens/s, time by part, peak memory, percent of the GEMM
// ceiling, and where the time goes by op. Precision and checkpointing are arguments. `--golden
// FILE`, the --json of a run on another device, holds the losses of this one against it;
// `--kernels` adds a table by kernel on a device. bench/peers/train_step.py measures the same in
// PyTorch, eager and compiled.
#include "tessera/bench/profile.h"
#include "tessera/core/cuda_graph.h"
#include "tessera/core/process.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/models/models.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/step/forward_backward.h"

#include <cmath>
#include <map>
#include <random>
#include <sys/resource.h>

namespace tessera::bench {
namespace {

double peak_rss_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// What a run is: the model's size, the batch, what is computed in what, what is kept.
struct Setting {
  std::string family, model, precision, checkpoint;
  int64_t batch = 8, length = 512;
  double budget = 0.5;
  Device device = kCpu;
  bool graph = false, kernels = false;

  [[nodiscard]] models::ModelConfig config() const {
    const std::vector<models::Family> families = models::families();
    models::ModelConfig c;
    if (family == "llama3" && model == "124M") {
      c = models::ModelConfig::of<llama3::Model>(family, model,
                                                 {.dim = 768,
                                                  .n_layers = 12,
                                                  .n_heads = 12,
                                                  .n_kv_heads = 12,
                                                  .ffn_dim = 2048,
                                                  .vocab_size = 50257,
                                                  .enable_weight_tying = true});
    } else {
      c = models::find_family(families, family).flavor(model);
    }
    if (precision == "bfloat16") c.dtype() = DType::bf16;
    return c;
  }
  /// What products are computed in.
  [[nodiscard]] DType computed() const { return precision == "float32" ? DType::f32 : DType::bf16; }
  [[nodiscard]] nn::ActivationCheckpointConfig checkpoints() const {
    using Mode = nn::ActivationCheckpointConfig::Mode;
    const std::map<std::string, Mode> modes{{"none", Mode::none},
                                            {"full", Mode::full},
                                            {"selective", Mode::selective},
                                            {"memory_budget", Mode::memory_budget}};
    const auto mode = modes.find(checkpoint);
    if (mode == modes.end())
      fail<UsageError>("bench", "--checkpoint ", checkpoint,
                       " is none of none, full, selective, memory_budget");
    return {.mode = mode->second, .memory_budget = budget};
  }
};

class Trainee {
 public:
  explicit Trainee(const Setting& setting)
      : batch_(setting.batch),
        length_(setting.length),
        device_(setting.device),
        model_(setting.config().make()) {
    nn::initialize(*model_, 7, device_);
    metadata_ = model_->metadata(length_);
    const auto tokens = static_cast<double>(batch_ * length_);
    scale_ = train::loss_scale(to_device(tensor({tokens, tokens}, DType::f64), device_),
                               setting.config().dtype());
    const auto blocks = model_->units();
    nn::apply_activation_checkpoint(blocks, setting.checkpoints());
    if (setting.precision == "mixed") nn::mixed_precision(*model_, blocks, DType::bf16);
    optimizer_ = std::make_unique<optim::AdamW>(nn::parameters(*model_),
                                                optim::AdamWOptions{.lr = 1e-3,
                                                                    .beta1 = 0.9,
                                                                    .beta2 = 0.95,
                                                                    .weight_decay = 0.1,
                                                                    .capturable = setting.graph});
  }
  [[nodiscard]] models::LanguageModel& model() { return *model_; }
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  /// Bytes that forward leaves for backward.
  [[nodiscard]] int64_t stored() const { return stored_; }

  /// Seconds of each part; with a profile, its ops are charged to it.
  std::array<double, kParts> step(Profile* profile = nullptr) {
    draw_batch();
    std::array<Clock::time_point, kParts + 1> marks;
    const Tensor loss = run([&](Part part) {
      wait_for(device_);
      marks[part] = Clock::now();
      if (profile) profile->enter(part);
    });
    wait_for(device_);
    marks[kParts] = Clock::now();
    if (profile) profile->leave();
    losses_.push_back(loss.item());
    std::array<double, kParts> seconds;
    for (size_t p = 0; p < kParts; ++p)
      seconds[p] = std::chrono::duration<double>(marks[p + 1] - marks[p]).count();
    return seconds;
  }

  /// Captures a step, which takes as much memory as one before it.
  void capture() {
    const Ref<Allocator>& memory = Context::current().allocator(device_);
    optimizer_->zero_grad();
    memory->reset_peak();
    const int64_t before = memory->stats().live;
    (void)step();
    const int64_t taken = memory->stats().peak - before;
    graph_ = capture_graph(device_, taken, [&] { graph_loss_ = run([](Part) {}); });
  }
  /// Seconds of a launch of what capture() has captured.
  double launch() {
    draw_batch();
    wait_for(device_);
    const auto start = Clock::now();
    graph_->launch();
    wait_for(device_);
    const double seconds = seconds_since(start);
    losses_.push_back(graph_loss_.item());
    return seconds;
  }

 private:
  // Into tensors that stay, since a graph reads what it was captured with.
  void draw_batch() {
    const auto vocab = static_cast<uint64_t>(model_->vocab_size());
    std::vector<double> ids(static_cast<size_t>(batch_ * length_));
    for (Tensor* t : {&tokens_, &targets_}) {
      for (double& id : ids) id = static_cast<double>(random_() % vocab);
      const Tensor drawn = from_values(ids, {batch_, length_}, DType::i64);
      if (t->defined()) copy_bytes(*t, drawn);
      else *t = to_device(drawn, device_);
    }
  }
  // A step, whose loss nobody reads meanwhile. Tells where each part begins.
  template <class F> Tensor run(F&& enter) {
    enter(kForward);
    optimizer_->zero_grad();
    const Ref<Allocator>& memory = Context::current().allocator(device_);
    const train::PlacedBatch batch{tokens_, targets_, metadata_};
    train::StepOutput output = train::forward_backward(
        *model_, {{&batch, 1}}, scale_, [&](const train::StepPart& part, const auto& pass) {
          if (part.name == "backward") enter(kBackward);
          const int64_t before = memory->stats().live;
          pass();
          if (part.name == "forward") stored_ = memory->stats().live - before;
        });
    const Tensor loss = output.values.joined(0);
    enter(kOptimizer);
    const NoGrad guard;
    optimizer_->step({}, optim::grad_norm(optimizer_->parameters(), 1).factor);
    return loss;
  }
  int64_t batch_, length_;
  Device device_;
  std::unique_ptr<models::LanguageModel> model_;
  models::Metadata metadata_;
  train::LossScale scale_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::mt19937_64 random_{7};
  std::vector<double> losses_;  // of each step
  int64_t stored_ = 0;
  Tensor tokens_, targets_;  // (B, T)
  Tensor graph_loss_;        // () of the last launch
  Ref<CudaGraph> graph_;
};

void print_profile(const Profile& profile, int steps, const Ceilings& ceilings, DType dtype,
                   Lines& lines) {
  double total = 0;
  for (const auto& [key, e] : profile.entries()) total += e.seconds;
  std::vector<std::pair<std::pair<Part, std::string_view>, Profile::Entry>> rows(
      profile.entries().begin(), profile.entries().end());
  std::ranges::sort(
      rows, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("\n{:10} {:38} {:>6} {:>9} {:>6} {:>8} {:>9} {:>10}\n", "part", "op", "calls", "ms",
             "%", "GB/s", "GFLOP/s", "% ceiling");
  for (const auto& [key, e] : rows) {
    const double ms = e.seconds * 1e3 / steps, percent = 100 * e.seconds / total;
    const double at_ceiling = 100 * ceilings.seconds(e.cost, dtype) / e.seconds;
    const auto calls = e.calls / steps;
    fmt::print("{:10} {:38} {:6} {:9.3f} {:6.1f} {:8.1f} {:9.1f} {:10.0f}\n", kPartNames[key.first],
               key.second, calls, ms, percent, e.cost.bytes / e.seconds / 1e9,
               e.cost.flops / e.seconds / 1e9, at_ceiling);
    lines.write({{"name", "profile"},
                 {"part", kPartNames[key.first]},
                 {"op", key.second},
                 {"calls", calls},
                 {"ms", ms},
                 {"percent", percent},
                 {"percent_of_ceiling", at_ceiling}});
  }
}

// By kernel, from the slowest on: what of the step's bytes or FLOPs its op needs, and how near all
// kernels of the op are to the limit.
void print_kernels(const Profile& profile, int steps, const Ceilings& ceilings, DType dtype,
                   Lines& lines) {
  struct Row {
    DeviceTimes::Owner owner;
    std::string kernel;
    DeviceTimes::Kernel times;
  };
  std::vector<Row> rows;
  for (const auto& [owner, kernels] : profile.device_times().kernels())
    for (const auto& [name, times] : kernels) rows.push_back({owner, name, times});
  std::ranges::sort(rows, std::greater(), [](const Row& r) { return r.times.seconds; });
  fmt::print("\n{:10} {:30} {:50} {:>8} {:>9} {:>14} {:>8}\n", "part", "op", "kernel", "launches",
             "ms", "the op needs", "% limit");
  for (const Row& row : rows) {
    const auto entry = profile.entries().find(row.owner);
    const Cost cost = entry == profile.entries().end() ? Cost{} : entry->second.cost;
    const double limit = ceilings.seconds(cost, dtype), ms = row.times.seconds * 1e3 / steps;
    const bool by_flops = cost.flops / ceilings.flops(dtype) > cost.bytes / ceilings.copy;
    const double needs = (by_flops ? cost.flops : cost.bytes) * 1e-9 / steps;
    const double percent = 100 * limit / profile.device_times().seconds(row.owner);
    const auto launches = static_cast<double>(row.times.launches) / steps;
    fmt::print("{:10} {:30} {:50} {:8.1f} {:9.3f} {:8.2f} {:5} {:8.0f}\n",
               kPartNames[row.owner.first], row.owner.second, row.kernel.substr(0, 50), launches,
               ms, needs, by_flops ? "GFLOP" : "GB", percent);
    lines.write({{"name", "kernel"},
                 {"part", kPartNames[row.owner.first]},
                 {"op", row.owner.second},
                 {"kernel", row.kernel},
                 {"launches", launches},
                 {"ms", ms},
                 {by_flops ? "gflop_of_the_op" : "gbytes_of_the_op", needs},
                 {"percent_of_limit_of_the_op", percent}});
  }
  if (const int64_t dropped = profile.device_times().dropped())
    fmt::print("{} records are missing: CUPTI had no room for them\n", dropped);
}

// Largest relative difference to the losses of another run of the same setting.
double difference_to(const std::vector<double>& losses, const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const Json other = Json::parse(line, nullptr, false);
  if (!other.is_object() || !other.contains("losses") || other["losses"].size() != losses.size())
    fail<ValueError>("bench", "--golden '", path, "': expected ", losses.size(),
                     " losses, as --json writes them with the same --steps");
  double largest = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double expected = other["losses"][i];
    largest = std::max(largest, std::abs(losses[i] - expected) / std::abs(expected));
  }
  return largest;
}

Setting setting_of(Arguments& arguments) {
  Setting setting{.family = arguments.text("--family", "llama3"),
                  .model = arguments.text("--model", "debugmodel"),
                  .precision = arguments.text("--precision", "float32"),
                  .checkpoint = arguments.text("--checkpoint", "none")};
  setting.batch = arguments.number("--batch", 8);
  setting.length = arguments.number("--seq", 512);
  setting.budget = arguments.number("--budget-percent", 50) / 100.0;
  if (setting.precision != "float32" && setting.precision != "bfloat16" &&
      setting.precision != "mixed") {
    fail<UsageError>("bench", "--precision ", setting.precision,
                     " is none of float32, bfloat16, mixed");
  }
  setting.device = arguments.device();
  setting.graph = arguments.flag("--graph");
  setting.kernels = arguments.flag("--kernels");
  if (setting.kernels && !setting.device.is_cuda())
    fail<UsageError>("bench",
                     "--kernels wants --device cuda: the table by op is of the CPU's time");
  if (setting.graph && !setting.device.is_cuda())
    fail<UsageError>("bench", "--graph wants --device cuda: a CPU has no CUDA graphs");
  return setting;
}

std::string name_of(const Setting& s) {
  return concat("train_step_", s.family, '_', s.model, '_', s.precision,
                s.checkpoint == "none" ? "" : "_" + s.checkpoint, s.graph ? "_graph" : "");
}

void print_setting(const Setting& s, int threads) {
  fmt::print("{} {} on {}, batch {} x {} tokens, {}, checkpoint {}, threads {}\n", s.family,
             s.model, concat(s.device), s.batch, s.length, s.precision, s.checkpoint, threads);
}

// Seconds of measured steps.
struct Measured {
  std::array<std::vector<double>, kParts> parts;
  std::vector<double> totals;

  [[nodiscard]] double milliseconds(Part part) const { return median(parts[part]) * 1e3; }
  [[nodiscard]] std::string by_part(bool graph) const {
    if (graph) return "one launch of a CUDA graph; by op without it";
    return fmt::format("forward {:.1f}, backward {:.1f}, clipping and AdamW {:.1f}",
                       milliseconds(kForward), milliseconds(kBackward), milliseconds(kOptimizer));
  }
};

Measured measure_steps(Trainee& trainee, const Setting& setting, int steps) {
  Measured all;
  trainee.step();
  if (setting.graph) trainee.capture();
  else trainee.step();
  for (int i = 0; i < steps; ++i) {
    if (setting.graph) {
      all.totals.push_back(trainee.launch());
      continue;
    }
    const auto seconds = trainee.step();
    double total = 0;
    for (size_t p = 0; p < kParts; ++p) {
      all.parts[p].push_back(seconds[p]);
      total += seconds[p];
    }
    all.totals.push_back(total);
  }
  return all;
}

void require_golden(double difference, const std::string& golden, const Setting& setting) {
  const double tolerance = setting.precision == "float32" ? 1e-4 : 2e-2;
  const std::string found =
      fmt::format("largest relative difference to the losses of {}: {:.1e}, allowed {:.0e}", golden,
                  difference, tolerance);
  if (!(difference <= tolerance)) fail<NumericError>("bench", found);
  fmt::print("{}\n", found);
}

void measure(Arguments& arguments) {
  const Setting setting = setting_of(arguments);
  const int steps = std::max(3, arguments.number("--steps", 5)),
            threads = arguments.number("--threads", Process::get().cores());
  const std::string golden = arguments.text("--golden");
  Lines lines(arguments.text("--json"));
  arguments.finish();
  const double rss_before = peak_rss_mib();
  Session session({.threads = threads});
  Trainee trainee(setting);
  const Measured measured = measure_steps(trainee, setting, steps);
  const double rss = peak_rss_mib();
  const auto mebi = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const double allocated = mebi(session.context().allocator(setting.device)->stats().peak);
  constexpr int kProfiled = 3;
  Profile profile(nullptr, setting.device);
  for (int i = 0; i < kProfiled; ++i) trainee.step(&profile);
  profile.stop();
  const Ceilings ceilings = measure_ceilings(setting.device);

  const double total = median(measured.totals);
  const auto tokens = static_cast<double>(setting.batch * setting.length);
  const double flops = trainee.model().flops(
      std::vector<int64_t>(static_cast<size_t>(setting.batch), setting.length));
  const double ceiling = setting.computed() == DType::f32 ? ceilings.gemm_f32 : ceilings.gemm_bf16;
  const double percent = 100 * flops / total / ceiling;
  print_setting(setting, threads);
  fmt::print("{}\n", describe(ceilings, threads, setting.device));
  fmt::print("{:.0f} tokens/s, {:.1f} ms a step: {}\n", tokens / total, total * 1e3,
             measured.by_part(setting.graph));
  fmt::print(
      "{:.1f} GFLOP/s, {:.0f} % of the GEMM ceiling; peak {:.0f} MiB resident ({:.0f} before the "
      "model), {:.0f} MiB of tensors, {:.1f} of them stored for backward; loss {:.3f}\n",
      flops / total / 1e9, percent, rss, rss_before, allocated, mebi(trainee.stored()),
      trainee.losses().back());
  Json line = {{"name", name_of(setting)},
               {"shape", {setting.batch, setting.length}},
               {"time_us", total * 1e6},
               {"tokens_per_second", tokens / total},
               {"forward_ms", measured.milliseconds(kForward)},
               {"backward_ms", measured.milliseconds(kBackward)},
               {"optimizer_ms", measured.milliseconds(kOptimizer)},
               {"gflops_per_second", flops / total / 1e9},
               {"percent_of_gemm_ceiling", percent},
               {"peak_rss_mib", rss},
               {"rss_before_model_mib", rss_before},
               {"peak_tensors_mib", allocated},
               {"stored_mib", mebi(trainee.stored())},
               {"loss", trainee.losses().back()},
               {"losses", trainee.losses()},
               {"device", concat(setting.device)},
               {"threads", threads}};
  if (setting.graph)
    for (const char* part : {"forward_ms", "backward_ms", "optimizer_ms"}) line.erase(part);
  line.update(ceilings.json());
  const double difference = golden.empty() ? 0 : difference_to(trainee.losses(), golden);
  if (!golden.empty()) line["loss_difference"] = difference;
  lines.write(line);
  if (const std::string& why = profile.device_times().why_not(); !why.empty()) {
    fmt::print("\nno times by op: {}\n", why);
  } else {
    print_profile(profile, kProfiled, ceilings, setting.computed(), lines);
    if (setting.kernels) print_kernels(profile, kProfiled, ceilings, setting.computed(), lines);
  }
  if (!golden.empty()) require_golden(difference, golden, setting);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  return tessera::bench::run([&] {
    tessera::bench::Arguments arguments(argc, argv);
    tessera::bench::measure(arguments);
  });
}

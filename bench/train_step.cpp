// SPDX-License-Identifier: Apache-2.0
// Train step of the llama3 debug model on random bytes: tokens/s, time by part, peak memory,
// percent of the GEMM ceiling, and where the time goes by op. bench/peers/train_step.py measures
// the same in PyTorch eager.
#include "tessera/bench/support.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/optimizer.h"

#include <array>
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

enum Part { kForward, kBackward, kOptimizer, kParts };
constexpr std::array<std::string_view, kParts> kPartNames{"forward", "backward", "optimizer"};

// Where a step's time goes. An op is charged with the time since the op before it ended, so the
// engine and the freeing of tensors are charged to the op that follows, and the sum is the step.
class Profile {
 public:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
    Cost cost;
  };
  Profile() : context_(Context::current()) {
    context_.op_hook = [this](const OpRow& row, const void* op, Tensors in, Tensors out) {
      Entry& e = charge(row.name);
      ++e.calls;
      if (row.kind == OpKind::view) return;
      const MetaArray in_metas(in), out_metas(out);
      const Cost c = row.cost(op, in_metas, out_metas);
      e.cost.flops += c.flops;
      e.cost.bytes += c.bytes;
      last_ = Clock::now();
    };
  }
  ~Profile() { stop(); }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void enter(Part part) {
    if (part != kForward) charge("(no op)");
    part_ = part;
    last_ = Clock::now();
  }
  void leave() { charge("(no op)"); }
  void stop() { context_.op_hook = nullptr; }
  [[nodiscard]] const std::map<std::pair<Part, std::string_view>, Entry>& entries() const {
    return entries_;
  }

 private:
  Entry& charge(std::string_view name) {
    const auto now = Clock::now();
    Entry& e = entries_[{part_, name}];
    e.seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return e;
  }
  Context& context_;
  Part part_ = kForward;
  Clock::time_point last_ = Clock::now();
  std::map<std::pair<Part, std::string_view>, Entry> entries_;
};

class Trainee {
 public:
  Trainee(const llama3::Config& config, int64_t batch, int64_t length)
      : batch_(batch),
        length_(length),
        model_(config),
        metadata_(model_.attention_metadata(length)) {
    nn::initialize(model_, 7);
    std::vector<Tensor> parameters;
    for (auto& p : nn::named_parameters(model_)) parameters.push_back(p.tensor);
    optimizer_ = std::make_unique<train::AdamW>(
        std::move(parameters),
        train::OptimizerConfig{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
  }
  [[nodiscard]] llama3::Model& model() { return model_; }
  [[nodiscard]] double loss() const { return loss_; }

  /// Seconds of each part; with a profile, its ops are charged to it.
  std::array<double, kParts> step(Profile* profile = nullptr) {
    std::vector<double> bytes(static_cast<size_t>(batch_ * length_));
    for (double& b : bytes) b = static_cast<double>(random_() % 256);
    const Tensor tokens = from_values(bytes, {batch_, length_}, DType::i64);  // (B, T)
    for (double& b : bytes) b = static_cast<double>(random_() % 256);
    const Tensor targets = from_values(bytes, {batch_, length_}, DType::i64);  // (B, T)

    std::array<Clock::time_point, kParts + 1> marks;
    const auto enter = [&](Part part) {
      marks[part] = Clock::now();
      if (profile) profile->enter(part);
    };
    enter(kForward);
    optimizer_->zero_grad();
    Tensor loss = mean_loss(tokens, targets);
    enter(kBackward);
    backward(loss);
    enter(kOptimizer);
    {
      const NoGrad guard;
      (void)clip_grad_norm_(optimizer_->grads(), 1);
      optimizer_->step();
    }
    marks[kParts] = Clock::now();
    if (profile) profile->leave();
    loss_ = loss.item();
    std::array<double, kParts> seconds;
    for (size_t p = 0; p < kParts; ++p)
      seconds[p] = std::chrono::duration<double>(marks[p + 1] - marks[p]).count();
    return seconds;
  }

 private:
  [[nodiscard]] Tensor mean_loss(const Tensor& tokens, const Tensor& targets) const {
    const CrossEntropyResult result = cross_entropy(model_.forward(tokens, metadata_), targets);
    return result.sum * (1 / result.count.item());
  }
  int64_t batch_, length_;
  llama3::Model model_;
  nn::AttentionMetadata metadata_;
  std::unique_ptr<train::AdamW> optimizer_;
  std::mt19937_64 random_{7};
  double loss_ = 0;
};

void print_profile(const Profile& profile, int steps, const Ceilings& ceilings, Lines& lines) {
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
    const double at_ceiling = 100 * ceilings.seconds(e.cost, DType::f32) / e.seconds;
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

void measure(Arguments& arguments) {
  const int batch = arguments.number("--batch", 8), length = arguments.number("--seq", 512);
  const int steps = std::max(3, arguments.number("--steps", 5)),
            threads = arguments.number("--threads", Process::get().cores());
  Lines lines(arguments.text("--json"));
  arguments.finish();
  const double rss_before = peak_rss_mib();
  Session session({.threads = threads});
  Trainee trainee(llama3::debugmodel(), batch, length);
  for (int i = 0; i < 2; ++i) trainee.step();
  std::array<std::vector<double>, kParts> parts;
  std::vector<double> totals;
  for (int i = 0; i < steps; ++i) {
    const auto seconds = trainee.step();
    double total = 0;
    for (size_t p = 0; p < kParts; ++p) {
      parts[p].push_back(seconds[p]);
      total += seconds[p];
    }
    totals.push_back(total);
  }
  const double rss = peak_rss_mib();
  const double allocated =
      static_cast<double>(session.context().allocator(kCpu)->stats().peak) / (1 << 20);
  constexpr int kProfiled = 3;
  Profile profile;
  for (int i = 0; i < kProfiled; ++i) trainee.step(&profile);
  profile.stop();
  const Ceilings ceilings = measure_ceilings();

  const double total = median(totals), tokens = static_cast<double>(batch) * length;
  const double flops = llama3::flops_per_token(trainee.model(), length) * tokens;
  fmt::print("llama3 debug model, batch {} x {} tokens, f32, threads {}\n", batch, length, threads);
  fmt::print("{}\n", describe(ceilings, threads));
  fmt::print(
      "{:.0f} tokens/s, {:.1f} ms a step: forward {:.1f}, backward {:.1f}, clipping and AdamW "
      "{:.1f}\n",
      tokens / total, total * 1e3, median(parts[kForward]) * 1e3, median(parts[kBackward]) * 1e3,
      median(parts[kOptimizer]) * 1e3);
  fmt::print(
      "{:.1f} GFLOP/s, {:.0f} % of the GEMM ceiling; peak {:.0f} MiB resident ({:.0f} before the "
      "model), {:.0f} MiB of "
      "tensors; loss {:.3f}\n",
      flops / total / 1e9, 100 * flops / total / ceilings.gemm_f32, rss, rss_before, allocated,
      trainee.loss());
  Json line = {{"name", "train_step_llama3_debugmodel"},
               {"shape", {batch, length}},
               {"dtype", "float32"},
               {"time_us", total * 1e6},
               {"tokens_per_second", tokens / total},
               {"forward_ms", median(parts[kForward]) * 1e3},
               {"backward_ms", median(parts[kBackward]) * 1e3},
               {"optimizer_ms", median(parts[kOptimizer]) * 1e3},
               {"gflops_per_second", flops / total / 1e9},
               {"percent_of_gemm_ceiling", 100 * flops / total / ceilings.gemm_f32},
               {"peak_rss_mib", rss},
               {"rss_before_model_mib", rss_before},
               {"peak_tensors_mib", allocated},
               {"loss", trainee.loss()},
               {"threads", threads}};
  line.update(ceilings.json());
  lines.write(line);
  print_profile(profile, kProfiled, ceilings, lines);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  return tessera::bench::run([&] {
    tessera::bench::Arguments arguments(argc, argv);
    tessera::bench::measure(arguments);
  });
}

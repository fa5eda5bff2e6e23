// SPDX-License-Identifier: Apache-2.0
// What parallelism costs on one machine: a training step of a model (--recipe) on one rank with N
// threads, and on N ranks with one thread each under fully_shard, replicate, tensor parallel and
// each method of context parallel; of one with experts, whose load is forced to be even, also with
// the experts shared by the ranks. The global batch is the same, so the ideal is equal speed. All
// run by turns in the same processes; medians and quartiles of rounds count, since a machine's
// speed drifts. Ranks are threads, or under mpirun, srun or torchrun the processes.
// bench/peers/parallel.py measures the same in PyTorch, but for context parallel.
#include "tessera/bench/profile.h"
#include "tessera/dist/launch/run.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/expert_parallel.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/step/build_model.h"
#include "tessera/train/step/forward_backward.h"

#include <cmath>
#include <random>

namespace tessera::bench {
namespace {

struct Way {
  std::string_view name;
  std::vector<std::string> fields = {};  // of `parallelism`: `tensor_parallel_degree=2`
  int ranks = 1;
  [[nodiscard]] train::ParallelismConfig degrees() const {
    train::ParallelismConfig p;
    config::Fields all;
    all.section("", p);
    std::vector<std::string> words;
    for (const std::string& field : fields) words.push_back("--" + field);
    config::throw_if_any(all.parse(words));
    return p;
  }
};

struct Setting {
  std::string recipe;
  bool experts = false;             // whether its model has any
  int64_t batch = 4, length = 256;  // of the global batch
  int steps = 5, threads = 1;       // threads of each of several ranks
  bool profiled = false;
  Device device = kCpu;  // this rank's
};

// Milliseconds of a step by kind.
enum Kind { kCompute, kCopies, kMoving, kWaiting, kUpdate, kRest, kKinds };
constexpr std::array<std::string_view, kKinds> kKindNames{
    "forward and backward", "copies",     "collectives: moving bytes", "collectives: waiting",
    "clipping and AdamW",   "outside ops"};
using Kinds = std::array<double, kKinds>;

Kind kind_of(Part part, std::string_view op) {
  if (op == Profile::kMoving) return kMoving;
  if (op == Profile::kWaiting) return kWaiting;
  if (op == Profile::kNoOp) return kRest;
  if (part == kOptimizer) return kUpdate;
  for (const std::string_view copy : {"assign_", "copy", "cat", "cast"})
    if (op == copy) return kCopies;
  return kCompute;
}

class Trainee {
 public:
  Trainee(const Way& way, const Setting& setting)
      : setting_(setting),
        mesh_(Mesh::make(way.degrees().axes(way.ranks))),
        share_(train::data_share(mesh_)) {
    train::Config config = config_of(way, setting);
    model_ = train::build_model(config, mesh_, [&](nn::Module& m, const nn::LayoutOf& layouts) {
      nn::initialize(m, 7, layouts, setting.device);
    });
    placer_.emplace(model_->metadata(setting.length), share_, setting.device,
                    config.parallelism.sequence_cut());
    optimizer_ = std::make_unique<optim::AdamW>(
        nn::parameters(*model_),
        optim::AdamWOptions{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
    const auto tokens = static_cast<double>(setting.batch * setting.length);
    scale_ = train::loss_scale(to_device(tensor({tokens, tokens}, DType::f64), setting.device),
                               config.model.dtype());
  }

  /// Seconds of the step.
  double step(Profile* profile = nullptr) {
    const train::Batch rows{random_ids(), random_ids()};
    const auto start = Clock::now();
    if (profile) profile->enter(kForward);
    optimizer_->zero_grad();
    const train::PlacedBatch batch = placer_->place(rows);
    train::StepOutput output = train::forward_backward(
        *model_, {{&batch, 1}}, scale_, [&](const train::StepPart& part, const auto& pass) {
          if (profile && part.name == "backward") profile->enter(kBackward);
          pass();
        });
    if (profile) profile->enter(kOptimizer);
    {
      const NoGrad guard;
      optimizer_->step({}, optim::grad_norm(optimizer_->parameters(), 1).factor);
    }
    loss_ = output.values.read()[0].second;  // after it a device has nothing left to do
    if (profile) profile->leave();
    return seconds_since(start);
  }
  [[nodiscard]] double loss() const { return loss_; }

 private:
  static train::Config config_of(const Way& way, const Setting& setting) {
    train::Config config = train::recipe(setting.recipe);
    config.parallelism = way.degrees();
    config.debug.moe_force_load_balance = setting.experts;
    return config;
  }
  // This rank's rows (b, T) of the global batch.
  Tensor random_ids() {
    const int64_t rows = setting_.batch / share_.parts, count = rows * setting_.length;
    std::vector<double> ids;
    for (int64_t i = 0; i < setting_.batch * setting_.length; ++i) {
      const auto id = static_cast<double>(random_() % 256);
      if (i / count == share_.part) ids.push_back(id);
    }
    return from_values(ids, {rows, setting_.length}, DType::i64);
  }

  Setting setting_;
  Mesh mesh_;
  train::DataShare share_;
  std::unique_ptr<models::LanguageModel> model_;
  std::optional<train::BatchPlacer> placer_;
  std::unique_ptr<optim::AdamW> optimizer_;
  train::LossScale scale_;
  std::mt19937_64 random_{7};
  double loss_ = 0;
};

struct Turn {
  double seconds = 0, loss = 0;  // of a step, the median; after the last one
  Kinds milliseconds{};
};

// One turn of this rank.
Turn take(World& world, const Way& way, const Setting& setting) {
  Trainee trainee(way, setting);
  for (int i = 0; i < 2; ++i) trainee.step();
  std::vector<double> seconds;
  for (int i = 0; i < setting.steps; ++i) seconds.push_back(trainee.step());
  Turn turn{.seconds = median(seconds), .loss = trainee.loss()};
  if (!setting.profiled) return turn;
  Profile profile(&world.group().recorder(), setting.device);
  for (int i = 0; i < setting.steps; ++i) trainee.step(&profile);
  profile.stop();
  const Tensor kinds = zeros({kKinds}, DType::f64);
  for (const auto& [key, entry] : profile.entries())
    kinds.data<double>()[kind_of(key.first, key.second)] += entry.seconds * 1e3 / setting.steps;
  world.group().all_reduce(kinds, ReduceOp::avg)->wait();
  std::copy_n(kinds.data<double>(), kKinds, turn.milliseconds.begin());
  return turn;
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
}

// All rounds of all ways; called on each rank.
class Comparison {
 public:
  Comparison(World& world, const Setting& setting, int rounds)
      : world_(world), setting_(setting), ways_(ways(setting, world.size())), turns_(ways_.size()) {
    for (int round = 0; round < rounds; ++round) {
      for (size_t w = 0; w < ways_.size(); ++w) turns_[w].push_back(run(ways_[w]));
    }
  }

  void print(Lines& lines) const {
    const auto tokens = static_cast<double>(setting_.batch * setting_.length);
    fmt::print("\n{} on {}, {} x {} tokens a step, {} ranks by {}, {} rounds\n", setting_.recipe,
               concat(setting_.device), setting_.batch, setting_.length, world_.size(),
               world_.group().backend(), turns_[0].size());
    fmt::print("{:24} {:>10} {:>19} {:>8} {:>17} {:>10}\n", "", "tokens/s", "quartiles", "lost",
               "quartiles", "loss");
    for (size_t w = 0; w < ways_.size(); ++w) {
      std::vector<double> speed, lost;  // lost: of the speed of one rank in the same round, percent
      for (size_t r = 0; r < turns_[w].size(); ++r) {
        speed.push_back(tokens / turns_[w][r].seconds);
        lost.push_back(100 * (1 - turns_[0][r].seconds / turns_[w][r].seconds));
      }
      const double loss = turns_[w].back().loss;
      fmt::print("{:24} {:>10.0f} {:>9.0f} {:>9.0f} {:>6.1f} % {:>7.1f} {:>7.1f} % {:>10.5f}\n",
                 ways_[w].name, median(speed), quantile(speed, 0.25), quantile(speed, 0.75),
                 median(lost), quantile(lost, 0.25), quantile(lost, 0.75), loss);
      lines.write({{"name", ways_[w].name},
                   {"backend", world_.group().backend()},
                   {"device", concat(setting_.device)},
                   {"ranks", ways_[w].ranks},
                   {"shape", {setting_.batch, setting_.length}},
                   {"time_us", tokens / median(speed) * 1e6},
                   {"tokens_per_second", speed},
                   {"lost_percent", lost},
                   {"loss", loss}});
    }
    if (setting_.profiled) print_kinds(lines);
  }

 private:
  // Data parallelism, on which experts are shared here, needs a row for each rank.
  static std::vector<Way> ways(const Setting& setting, int ranks) {
    std::vector<Way> ways{{.name = "one rank"}};
    const auto add = [&](std::string_view name, std::vector<std::string> fields) {
      ways.push_back({name, std::move(fields), ranks});
    };
    const std::string n = concat('=', ranks), context = "context_parallel_degree" + n,
                      heads = "context_parallel_ulysses_degree",
                      ring = "context_parallel_rotate_method=alltoall",
                      experts = "expert_parallel_degree" + n;
    const bool rows_for_all = setting.batch % ranks == 0;
    if (rows_for_all) {
      add("fully_shard", {"data_parallel_shard_degree" + n});
      add("replicate", {"data_parallel_replicate_degree" + n});
    }
    add("tensor parallel", {"tensor_parallel_degree" + n});
    add("context, all_gather", {context});
    add("context, ring", {context, ring});
    add("context, ulysses", {context, heads + n});
    if (ranks > 2 && ranks % 2 == 0) add("context, ring_ulysses", {context, ring, heads + "=2"});
    if (setting.experts && rows_for_all) {
      add("expert parallel", {experts});
      add("with padding 1", {experts, "expert_parallel_padding=1"});
    }
    return ways;
  }
  // One rank is a world of its own, with the threads of all, while the others sleep.
  Turn run(const Way& way) {
    if (way.ranks > 1) return take(world_, way, setting_);
    Turn turn;
    if (world_.rank() == 0) {
      run_ranks(1, [&](World& one) { turn = take(one, way, setting_); },
                {.threads = world_.size() * setting_.threads});
    }
    world_.group().barrier()->wait();
    return turn;
  }
  void print_kinds(Lines& lines) const {
    fmt::print("\n{:28}", "milliseconds of a step");
    for (const Way& way : ways_) fmt::print("{:>23}", way.name);
    std::vector<double> sums(ways_.size());
    for (size_t k = 0; k < kKinds; ++k) {
      fmt::print("\n{:28}", kKindNames[k]);
      for (size_t w = 0; w < ways_.size(); ++w) {
        std::vector<double> rounds;
        for (const Turn& turn : turns_[w]) rounds.push_back(turn.milliseconds[k]);
        const double ms = median(rounds);
        sums[w] += ms;
        fmt::print("{:>23.2f}", ms);
        lines.write(
            {{"name", "profile"}, {"way", ways_[w].name}, {"kind", kKindNames[k]}, {"ms", ms}});
      }
    }
    fmt::print("\n{:28}", "sum");
    for (const double sum : sums) fmt::print("{:>23.2f}", sum);
    fmt::print("\n");
  }

  World& world_;
  Setting setting_;
  std::vector<Way> ways_;
  std::vector<std::vector<Turn>> turns_;  // of each way, by round
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    bench::Setting setting{.recipe = arguments.text("--recipe", "llama3_debugmodel"),
                           .profiled = arguments.flag("--profile")};
    const int batch = arguments.number("--batch", 0, 0), length = arguments.number("--seq", 0, 0);
    const int ranks = arguments.number("--ranks", 2, 2), rounds = arguments.number("--rounds", 10);
    setting.steps = arguments.number("--steps", 5);
    setting.threads = arguments.number("--threads", 1);
    const DeviceChoice device = arguments.device_choice();
    const std::string path = arguments.text("--json");
    arguments.finish();
    if (arguments.helps("bench_parallel_cost [--recipe NAME] [--ranks N] [--threads N] [--rounds "
                        "N] [--steps N]\n"
                        "                    [--batch B] [--seq T] [--device auto|cpu|cuda] "
                        "[--profile] [--json "
                        "FILE]\n"))
      return;
    setting.experts = !nn::expert_counts(*train::recipe(setting.recipe).model.make()).empty();
    std::vector<std::pair<int64_t, int64_t>> shapes{{4, 256}, {8, 512}, {1, 4096}};
    if (batch > 0 || length > 0) shapes = {{batch > 0 ? batch : 4, length > 0 ? length : 256}};
    Launch launch = detect_launch();
    const bool processes = launch.launcher != Launcher::single;
    bench::Lines lines(launch.rank == 0 ? path : "");
    if (!processes) launch = detect_launch(ranks);
    (void)rank_device(device, launch);  // before any rank waits for another
    run_launched(launch,
                 [&](World& world) {
                   for (const auto& [rows, columns] : shapes) {
                     bench::Setting own = setting;
                     own.batch = rows;
                     own.length = columns;
                     own.device = rank_device(device, world.local_rank(), world.local_ranks());
                     const bench::Comparison comparison(world, own, rounds);
                     if (world.rank() == 0) comparison.print(lines);
                   }
                 },
                 {.threads = setting.threads});
  });
}

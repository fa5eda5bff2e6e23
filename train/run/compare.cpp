// SPDX-License-Identifier: Apache-2.0
// Trains both from one seed, one after the other, each in its own world. A shortened run keeps the
// learning rates of the full run.
#include "tessera/train/run/compare.h"

#include "tessera/dist/launch/run.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/run/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace tessera::train {
namespace {

int ranks_of(const Config& config) { return static_cast<int>(std::max<int64_t>(1, config.ranks)); }

std::vector<StepRecord> records_of(const Config& config,
                                   const std::function<void(const std::string&)>& print) {
  std::vector<StepRecord> records;
  const auto run = [&](World& world) {
    Trainer trainer(config, print);
    for (int64_t i = 0; i < config.training.steps; ++i) {
      const StepRecord r = trainer.step();
      if (world.rank() == 0) records.push_back(r);
    }
  };
  run_ranks(ranks_of(config), run, world_options(config));
  return records;
}

// The first `steps` steps of the run, with the learning rates that they have in it.
void shorten(Config& config, int64_t steps) {
  if (steps < config.training.steps && !config.lr_scheduler.total_steps)
    config.lr_scheduler.total_steps = config.training.steps;
  config.training.steps = steps;
}

void widen(Comparison::Largest& largest, double difference, int64_t step) {
  // NaN counts as the largest difference.
  if (difference > largest.difference ||
      (std::isnan(difference) && !std::isnan(largest.difference)))
    largest = {difference, step};
}

}  // namespace

void CompareConfig::fields(config::Fields& f) {
  f.add("steps", steps, "steps to compare; 0: all steps of the shorter run",
        {.min = 0, .max = 1e12, .unit = "steps"});
  f.add("seed", seed, "seed of both runs; none: debug.seed of the first", {.min = 0});
  f.add("tolerance", tolerance,
        "fail if a loss or gradient norm differs by more than this relative tolerance; none: only "
        "report",
        {.min = 0, .max = 1});
  std::vector<std::pair<std::string, std::optional<DeviceChoice>>> devices{{"own", std::nullopt}};
  for (const auto& [name, choice] : device_choices()) devices.emplace_back(name, choice);
  f.add_choice("device", device, "device of both runs; own: that of each configuration", devices);
  f.add("dump_folder", dump_folder, "output folder; the runs write into its subfolders a and b");
  f.add("overwrite", overwrite, "remove the results of earlier runs from these subfolders");
}

double relative_difference(double a, double b) {
  const double size = std::max(std::abs(a), std::abs(b));
  return size == 0 ? 0 : std::abs(a - b) / size;
}

Comparison compare(Config a, Config b, const CompareConfig& options,
                   const std::function<void(const std::string&)>& print) {
  const int64_t steps =
      options.steps > 0 ? options.steps : std::min(a.training.steps, b.training.steps);
  b.debug.seed = a.debug.seed = options.seed.value_or(a.debug.seed);
  const std::filesystem::path folder(options.dump_folder);
  a.dump_folder = (folder / "a").string();
  b.dump_folder = (folder / "b").string();
  for (Config* config : {&a, &b}) {
    shorten(*config, steps);
    config->overwrite = options.overwrite;
    config->device = options.device.value_or(config->device);
  }
  // Faults of the second are found before the first runs.
  std::vector<std::string> faults = train::faults(a);
  std::ranges::move(train::faults(b), std::back_inserter(faults));
  config::throw_if_any(faults);
  for (const Config* config : {&a, &b}) (void)rank_device(config->device, 0, ranks_of(*config));

  Comparison result{records_of(a, print), records_of(b, print), {}, {}};
  for (size_t i = 0; i < result.a.size(); ++i) {
    const StepRecord &x = result.a[i], &y = result.b[i];
    widen(result.loss, relative_difference(x.loss, y.loss), x.step);
    widen(result.grad_norm, relative_difference(x.grad_norm, y.grad_norm), x.step);
  }
  return result;
}

}  // namespace tessera::train

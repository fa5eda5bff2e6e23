// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/faults.h"

#include "tessera/models/config/collect_impl.h"
#include "tessera/train/exchange/model.h"
#include "tessera/train/exchange/weights.h"
#include "tessera/train/run/run_facts.h"

#include <algorithm>

namespace tessera::train {

std::vector<std::string> faults(const Config& config, int64_t ranks) {
  Config copy = config;
  std::vector<std::string> all = copy.fields().check();
  if (!all.empty()) return all;
  if (!config.initial_hf.empty() && !has_hf_config(config.initial_hf) && own_steps(config).empty())
    (void)read_hf_config(config.initial_hf, models::families());  // says what is not there
  all = config.conflicts();
  const auto add = [&](std::string fault) {
    if (std::ranges::count(all, fault) == 0) all.push_back(std::move(fault));
  };
  if (!config.model) return all;
  const auto model = config.model.conflicts().empty() ? config.model.make() : nullptr;
  if (ranks == 0) ranks = config.ranks;
  if (config.training.global_batch_size == 0) ranks = 0;
  std::vector<std::string> more = parallelism_faults({config.parallelism, model.get(), ranks});
  if (ranks > 0 && config.parallelism.conflicts().empty()) {
    config::collect(more, [&] {
      const ParallelismConfig& p = config.parallelism;
      const StepSizes sizes = config.step_sizes(p.data_parts(ranks));
      if (p.pipelines() && model)
        (void)p.schedule(std::ssize(p.split(model->parts())), sizes.micro_batches);
    });
  }
  for (std::string& fault : more) add(std::move(fault));
  // Last, since it changes this model.
  if (config.debug.moe_force_load_balance && model && !model->force_load_balance())
    add(concat("[--debug.moe_force_load_balance] ", config.title(),
               " has no experts: leave it out"));
  return all;
}

Config checked_config(std::span<const std::string> arguments, const Catalogue& catalogue,
                      const std::function<void(const std::string&)>& note) {
  ParsedConfig parsed = read_arguments(arguments, catalogue);
  for (std::string& fault : faults(parsed.config)) {
    if (std::ranges::count(parsed.faults, fault) == 0) parsed.faults.push_back(std::move(fault));
  }
  config::throw_if_any(parsed.faults);
  if (note && !parsed.note.empty()) note(parsed.note);
  return std::move(parsed.config);
}

}  // namespace tessera::train

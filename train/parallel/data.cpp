// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/parallel/data.h"

#include "tessera/models/config/collect_impl.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/parallel/mixed_precision.h"
#include "tessera/train/parallel/parallelism.h"

namespace tessera::train {
namespace {

constexpr std::string_view kReshard = "--parallelism.fsdp_reshard_after_forward";

std::vector<PassAxis> axes(const ParallelismConfig& p) {
  return {{.name = "dp_replicate",
           .field = "data_parallel_replicate_degree",
           .ranks = p.data_parallel_replicate_degree,
           .cuts_rows = true},
          {.name = "dp_shard",
           .field = "data_parallel_shard_degree",
           .ranks = p.data_parallel_shard_degree,
           .cuts_rows = true,
           .shards_parameters = true}};
}

Faults conflicts(const ParallelismConfig& p) {
  Faults faults;
  if (p.data_parallel_shard_degree == 0) {
    faults.emplace_back(
        "[--parallelism.data_parallel_shard_degree] 0: expected at least 1, or -1 for the ranks "
        "that the other degrees leave");
  }
  config::collect<ValueError>(faults, [&] {
    (void)nn::parse_reshard(io::excerpt(p.fsdp_reshard_after_forward), kReshard);
  });
  return faults;
}

Faults faults(const PassFacts& facts) {
  Faults faults;
  if (facts.ranks > 0)
    config::collect(faults, [&] { (void)reshard_policy(facts.parallelism, facts.ranks); });
  return faults;
}

// What is left of the parameters after all other passes is cut, or copied.
void apply(models::LanguageModel& part, const PassSettings& settings, const Mesh& mesh) {
  const ParallelismConfig& p = settings.parallelism;
  const nn::MixedPrecision precision = precision_of(settings);
  const bool replicas = mesh.size("dp_replicate") > 1;
  if (replicas && p.ranks_of(mesh.size(), &PassAxis::shards_parameters) == 1) {
    models::replicate(part, mesh, "dp_replicate",
                      {.precision = precision, .accumulation = nn::Accumulation::whole});
    return;
  }
  models::fully_shard(
      part, mesh, {p.axes_that(&PassAxis::shards_parameters), {"dp_replicate"}},
      {.precision = precision,
       .reshard_after_forward = reshard_policy(p, mesh.size()),
       .accumulation = replicas ? nn::Accumulation::replicas : nn::Accumulation::shards});
}

std::vector<Remedy> remedies(const PassSettings& settings) {
  const ParallelismConfig& p = settings.parallelism;
  std::vector<Remedy> all;
  if (p.fsdp_reshard_after_forward != "always")
    all.push_back({{{"parallelism.fsdp_reshard_after_forward", "always"}}});
  if (p.data_parallel_replicate_degree > 1) {
    all.push_back({{{"parallelism.data_parallel_replicate_degree", "1"},
                    {"parallelism.data_parallel_shard_degree", "-1"}}});
  }
  return all;
}

}  // namespace

void DataParallel::Fields::fields(config::Fields& f) {
  f.add("data_parallel_replicate_degree", data_parallel_replicate_degree,
        "groups of ranks that hold copies of the parameters (DDP; with a shard degree, HSDP)",
        {.min = 1, .max = 1 << 20, .unit = "ranks"});
  f.add("data_parallel_shard_degree", data_parallel_shard_degree,
        "ranks over which the parameters are sharded (FSDP); -1: the ranks that the other degrees "
        "leave",
        {.min = -1, .max = 1 << 20, .unit = "ranks"});
  f.add("fsdp_reshard_after_forward", fsdp_reshard_after_forward,
        "when gathered parameters are freed: always after forward, to be gathered again in "
        "backward; never before backward; default: after forward, but for the last unit, which "
        "backward needs first; a number of ranks: as always, but groups of so many keep a copy");
}

ParallelPass DataParallel::row() {
  return {
      .axes = axes, .conflicts = conflicts, .faults = faults, .apply = apply, .remedies = remedies};
}

nn::Reshard reshard_policy(const ParallelismConfig& p, int64_t ranks) {
  const nn::Reshard reshard = nn::parse_reshard(p.fsdp_reshard_after_forward, kReshard);
  const std::string fault =
      nn::reshard_fault(reshard, p.ranks_of(ranks, &PassAxis::shards_parameters));
  if (!fault.empty()) fail<ConfigError>(kReshard, fault);
  return reshard;
}

}  // namespace tessera::train

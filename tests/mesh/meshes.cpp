// SPDX-License-Identifier: Apache-2.0
// Kinds have uneven degrees where one axis alone is cut, so that the short form meets them too.
#include "tessera/tests/mesh/meshes.h"

#include "tessera/dist/schedules/schedule.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

namespace tessera::mesh_tests {
namespace {

// The schedule whose turn it is, or the next one that fits the micro-batches of a sweep's step: at
// least 12 over all ranks.
std::string schedule_of(const Degrees& d, size_t turn) {
  const auto schedules = named_schedules();
  for (;; ++turn) {
    const NamedSchedule& s = schedules[turn % schedules.size()];
    const ScheduleShape shape{d.pp, s.several_stages ? 2 : 1, 12 / d.data_parts()};
    if (!s.misfit || s.misfit(shape).empty()) return std::string(s.name);
  }
}

// Both ring and heads need two ranks.
nn::ContextMethod method_of(int cp, size_t turn) {
  return static_cast<nn::ContextMethod>(turn % (cp > 2 && cp % 2 == 0 ? 4 : 3));
}

}  // namespace

train::ParallelismConfig Degrees::parallelism() const {
  using nn::ContextMethod;
  train::ParallelismConfig p;
  p.pipeline_parallel_degree = pp;
  p.pipeline_parallel_schedule = schedule;
  p.data_parallel_replicate_degree = replicate;
  p.data_parallel_shard_degree = shard;
  p.context_parallel_degree = cp;
  p.context_parallel_load_balancer = balancer;
  if (method == ContextMethod::ring || method == ContextMethod::ring_ulysses)
    p.context_parallel_rotate_method = ContextMethod::ring;
  if (method == ContextMethod::ulysses) p.context_parallel_ulysses_degree = cp;
  if (method == ContextMethod::ring_ulysses) p.context_parallel_ulysses_degree = 2;
  p.tensor_parallel_degree = tp;
  p.expert_parallel_degree = ep;
  p.expert_tensor_parallel_degree = etp;
  return p;
}

std::vector<Degrees> every_mesh() {
  std::vector<Degrees> all;
  std::map<int, size_t> turns;  // of cp
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (int replicate = 1; replicate <= ranks; ++replicate) {
      for (int shard = 1; replicate * shard <= ranks; ++shard) {
        for (int cp = 1; replicate * shard * cp <= ranks; ++cp) {
          const int others = replicate * shard * cp;
          if (ranks % others != 0) continue;
          all.push_back({.replicate = replicate, .shard = shard, .cp = cp, .tp = ranks / others});
          if (cp > 1) all.back().method = method_of(cp, turns[cp]++);
        }
      }
    }
  }
  return all;
}

std::vector<Degrees> one_per_kind() {
  return {{},
          {.shard = 3},
          {.replicate = 2},
          {.replicate = 2, .shard = 2},
          {.cp = 3, .method = nn::ContextMethod::ring},
          {.tp = 3},
          {.shard = 2, .tp = 2},
          {.shard = 2, .cp = 2, .tp = 2},
          {.replicate = 3, .tp = 2},
          {.replicate = 2, .shard = 2, .tp = 2}};
}

uint64_t fresh_seed() {
  const char* given = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "TESSERA_TEST_SEED=" << seed << '\n';
  return seed;
}

std::vector<Degrees> some_others() {
  std::vector<Degrees> others = every_mesh();
  for (const Degrees& d : one_per_kind()) std::erase(others, d);
  return test::long_form() ? others : some_of(others, 4, fresh_seed());
}

std::vector<Degrees> one_pipeline_per_kind() {
  return {{.pp = 4, .schedule = "1F1B"},
          {.pp = 2, .shard = 2, .schedule = "Interleaved1F1B"},
          {.pp = 2, .replicate = 2, .schedule = "DualPipeV"},
          {.pp = 2, .cp = 2, .method = nn::ContextMethod::ring, .schedule = "LoopedBFS"},
          {.pp = 2, .tp = 2, .schedule = "ZBVZeroBubble"},
          {.pp = 2, .replicate = 2, .shard = 2, .schedule = "GPipe"},
          {.pp = 2, .shard = 2, .tp = 2, .schedule = "1F1B"}};
}

std::vector<Degrees> dense_meshes(int ranks) {
  std::vector<Degrees> all = every_mesh();
  std::erase_if(all, [&](const Degrees& d) { return d.ranks() != ranks; });
  return all;
}

std::vector<Degrees> every_pipeline(int ranks,
                                    const std::function<std::vector<Degrees>(int n)>& meshes_of,
                                    size_t turn) {
  std::vector<Degrees> all;
  for (int pp = 2; pp <= ranks; ++pp) {
    if (ranks % pp != 0) continue;
    for (Degrees d : meshes_of(ranks / pp)) {
      d.pp = pp;
      d.schedule = schedule_of(d, turn);
      if (d.cp > 1) d.method = method_of(d.cp, turn);
      all.push_back(d);
      ++turn;
    }
  }
  return all;
}

}  // namespace tessera::mesh_tests

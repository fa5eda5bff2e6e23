// SPDX-License-Identifier: Apache-2.0
// Kinds have uneven degrees where one axis alone is cut, so that the short form meets them too.
#include "tessera/tests/mesh/meshes.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

namespace tessera::mesh_tests {

train::ParallelismConfig Degrees::parallelism() const {
  using nn::ContextMethod;
  train::ParallelismConfig p;
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
  std::map<int, int> turns;  // of cp
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (int replicate = 1; replicate <= ranks; ++replicate) {
      for (int shard = 1; replicate * shard <= ranks; ++shard) {
        for (int cp = 1; replicate * shard * cp <= ranks; ++cp) {
          const int others = replicate * shard * cp;
          if (ranks % others != 0) continue;
          all.push_back({.replicate = replicate, .shard = shard, .cp = cp, .tp = ranks / others});
          // Both ring and heads need two ranks.
          const int methods = cp > 2 && cp % 2 == 0 ? 4 : 3;
          if (cp > 1) all.back().method = static_cast<nn::ContextMethod>(turns[cp]++ % methods);
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

}  // namespace tessera::mesh_tests

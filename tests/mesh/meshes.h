// SPDX-License-Identifier: Apache-2.0
// What sweeps over meshes share: the meshes, and which of them a run takes. README.md of tests/
// says how a new sweep is made.
#pragma once

#include "tessera/core/error.h"
#include "tessera/nn/context/context_parallel.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/train/parallel/parallelism.h"

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace tessera::mesh_tests {

/// Sizes of the axes pp, dp_replicate, dp_shard, cp and tp, and of those that experts borrow.
struct Degrees {
  int pp = 1, replicate = 1, shard = 1, cp = 1, tp = 1, ep = 1, etp = 1;
  // Where cp is above 1. Dropout has the masks of one rank where tokens have their places alone.
  nn::ContextMethod method = nn::ContextMethod::all_gather;
  nn::LoadBalancer balancer = nn::LoadBalancer::head_tail;
  bool padded = false;  ///< where ep is above 1: buffers of experts have room for all tokens
  std::string schedule = "1F1B";  ///< where pp is above 1
  [[nodiscard]] int ranks() const { return pp * replicate * shard * cp * tp; }
  /// Into how many parts the rows of a batch are cut.
  [[nodiscard]] int data_parts() const { return replicate * shard; }
  /// The fields of a run that say the same.
  [[nodiscard]] train::ParallelismConfig parallelism() const;
  /// `replicate2_shard3_tp2`, for names of tests and messages; `single`.
  [[nodiscard]] std::string text() const {
    std::string text;
    const auto add = [&](const char* axis, int size) {
      if (size > 1) text += concat(text.empty() ? "" : "_", axis, size);
    };
    add("pp", pp);
    if (pp > 1) text += '_' + schedule;
    add("replicate", replicate);
    add("shard", shard);
    add("cp", cp);
    if (cp > 1) text += concat('_', method, '_', balancer);
    add("tp", tp);
    add("ep", ep);
    add("etp", etp);
    if (padded) text += "_padded";
    return text.empty() ? "single" : text;
  }
  bool operator==(const Degrees&) const = default;
  friend std::ostream& operator<<(std::ostream& os, const Degrees& d) { return os << d.text(); }
};

/// All meshes over 1, 2, 3, 4, 6 and 8 ranks. Where sequences are cut, the methods take turns.
std::vector<Degrees> every_mesh();
/// One of each kind of parallelism. Every run takes these, each as a test of its own, whose name
/// begins with OnePerKind: sanitizers run only them.
std::vector<Degrees> one_per_kind();
/// Of the others a quarter, which TESSERA_TEST_SEED chooses anew (printed); in the long form all.
std::vector<Degrees> some_others();

/// The same of pipelines: one with each kind of mesh on the ranks of a stage.
std::vector<Degrees> one_pipeline_per_kind();
/// The meshes of `meshes_of(n)` on each rank of a pipeline, for all pipelines of so many ranks.
/// Schedules and, where sequences are cut, the methods take turns, of which `turn` is the first.
std::vector<Degrees> every_pipeline(int ranks,
                                    const std::function<std::vector<Degrees>(int n)>& meshes_of,
                                    size_t turn = 0);
/// The meshes of every_mesh over so many ranks.
std::vector<Degrees> dense_meshes(int ranks);

/// TESSERA_TEST_SEED or a fresh one; printed.
uint64_t fresh_seed();
/// One in `parts` of `all`, which the seed chooses; in the long form all.
template <class T> std::vector<T> some_of(std::vector<T> all, size_t parts, uint64_t seed) {
  if (test::long_form()) return all;
  test::Dice dice(seed);
  dice.shuffle(all);
  all.resize((all.size() + parts - 1) / parts);
  return all;
}

}  // namespace tessera::mesh_tests

// SPDX-License-Identifier: Apache-2.0
// Runs of small decoders with experts on a mesh, and what their routers chose. A choice is the same
// on every mesh only where rounding cannot change it: in f64, or in f32 where the least margin
// between the last score that is taken and the next is far above the rounding. Routers begin with
// scores that are nearly equal, so for f32 their gates begin ten times as wide, and the seed is one
// whose run has such a margin.
#pragma once

#include "tessera/tests/mesh/dense.h"

namespace tessera::mesh_tests {

/// The families with experts, `qwen3` and `llama4`.
struct ExpertModel {
  std::string family;
  int64_t experts = 8;
};

/// A model on the meshes of so many ranks.
struct ExpertSweep {
  ExpertModel model;
  int ranks = 8;
  int64_t seed = 0;  ///< of seed_with_margin
  [[nodiscard]] std::string text() const {
    return concat(model.family, '_', ranks, "_ranks_", model.experts, "_experts");
  }
  friend std::ostream& operator<<(std::ostream& os, const ExpertSweep& s) { return os << s.text(); }
};

/// 10 steps of 24 rows of 5 tokens of a decoder of two layers; the routers of `qwen3` have a bias
/// and a balance loss, those of `llama4` a bias.
train::Config with_experts(const ExpertModel& model, const Degrees& degrees, DType compute,
                           Mode mode = Mode::none, const std::string& dump_folder = "unused");

/// All legal degrees of so many ranks for so many experts.
std::vector<Degrees> every_mesh_of(int ranks, int64_t experts);

/// A run, and its routers' choices.
struct RoutedOutcome : Outcome {
  std::vector<std::vector<double>> ids;  ///< of each router in each step, (rows, length, top_k)
  double margin = 0;  ///< the least difference between the last score taken and the next
};
/// As `trained`, from gates that are wide enough for margins. Of a pipeline without ids and margin:
/// its routers see a micro-batch at a time.
RoutedOutcome routed(const train::Config& config, const Degrees& degrees);

/// The first seed from `first` on whose run of `config`, which is of one rank and in f32, has this
/// margin: how the seeds of tests were found. ValueError: none of a thousand has.
int64_t seed_with_margin(train::Config config, double margin, int64_t first);

}  // namespace tessera::mesh_tests

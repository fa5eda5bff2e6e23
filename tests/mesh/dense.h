// SPDX-License-Identifier: Apache-2.0
// Runs of small dense decoders on a mesh, by the trainer's own path, for the sweeps. Sizes are such
// that tensor parallelism of 3, 6 and 8 takes part with grouped heads, while vocabularies,
// positions and the feed-forward of Llama divide by neither 3 nor 8; GPT-2 drops activations.
#pragma once

#include "tessera/tests/mesh/meshes.h"
#include "tessera/tests/support/gradients.h"
#include "tessera/train/config/config.h"
#include "tessera/train/data/data.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera::mesh_tests {

using Mode = nn::ActivationCheckpointConfig::Mode;
/// What a step may keep of the activations: in the short form one way, which `turn` chooses.
std::vector<Mode> modes(size_t turn);
constexpr const char* kFamilies[]{"llama3", "gpt2"};

/// 10 steps (2 under a sanitizer) of 24 rows of 32 tokens, in parameters of f32, or of f64 where
/// `compute` is that. Pipelines cut the rows of a rank into micro-batches of two.
train::Config dense(const std::string& family, const Degrees& degrees, DType compute,
                    Mode mode = Mode::none, const std::string& dump_folder = "unused");

/// Rows of the run, of which the last tokens of some have no target, so that ranks count unlike
/// numbers of them.
train::Batch rows(int64_t first, int64_t count, int64_t length = 32);

using test::Values;
/// A run; losses and norms as rank 0 sees them.
struct Outcome {
  Values initial, last;  ///< whole parameters
  std::vector<double> losses, norms;
};
/// Called on every rank: before the first step, with `step` 0, and after each step.
using Watch = std::function<void(models::LanguageModel& model, int64_t step)>;
/// All steps of a Trainer.
Outcome trained(const train::Config& config, const Degrees& degrees, const Watch& watch = {});
/// The same rows with so many places behind their tokens that hold none, as a document of their own
/// or, without documents, as the end of theirs.
train::Batch padded(const train::Batch& rows, int64_t places, bool documents);
/// Whole gradients of the first step's sum of losses, from weights where no bias is zero: what is
/// added twice must show. With experts their `load` too. Given `padding`, the last places of each
/// row hold no token.
Values gradients(const train::Config& config, const Degrees& degrees, int64_t padding = 0,
                 bool documents = false);
/// The largest of the relative differences of values in their order.
double largest_difference(const std::vector<double>& got, const std::vector<double>& want);
/// Fails above the limit; the long form prints what it found.
void expect_below(double worst, double limit, const std::string& what);
/// Of all parameters that this rank has; collective.
Values whole_parameters(nn::Module& model);

}  // namespace tessera::mesh_tests

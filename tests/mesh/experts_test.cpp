// SPDX-License-Identifier: Apache-2.0
// Decoders with experts on every way to give 8 and 6 ranks to (dp_replicate, dp_shard, cp, tp, ep,
// etp) against one rank: every gradient and the load of the first step in f64, and losses, gradient
// norms and the ids of all chosen experts of 10 steps in f64 and f32.
#include "tessera/tests/mesh/experts.h"

#include "tessera/tests/support/folder_test.h"
#include "tessera/train/run/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

namespace tessera::mesh_tests {
namespace {

// Rounding moves scores by some 1e-6 in 10 steps of f32.
constexpr double kMargin = 1e-4;

class ExpertMeshes : public test::FolderTest, public testing::WithParamInterface<ExpertSweep> {
 protected:
  [[nodiscard]] train::Config config(const Degrees& degrees, DType compute, Mode mode) const {
    train::Config c = with_experts(GetParam().model, degrees, compute, mode, folder_);
    c.debug.seed = GetParam().seed;
    return c;
  }
  /// Calls check(degrees, mode, what) for a tenth of the meshes in one mode each, or for all in
  /// every mode.
  template <class F> void for_some_meshes(F&& check) const {
    const auto& [model, ranks, seed] = GetParam();
    const uint64_t chosen = fresh_seed();
    size_t turn = chosen % 3;
    for (const Degrees& d : some_of(every_mesh_of(ranks, model.experts), 10, chosen)) {
      for (const Mode mode : modes(turn++)) {
        check(d, mode,
              concat(model.family, " with ", model.experts, " experts on ", d.text(),
                     ", checkpoint mode ", static_cast<int>(mode), ", "));
      }
    }
  }
  static void expect_alike(const RoutedOutcome& got, const RoutedOutcome& want, double loss_limit,
                           double norm_limit, const std::string& what) {
    EXPECT_TRUE(got.initial == want.initial) << what;
    EXPECT_TRUE(got.ids == want.ids) << what;
    const double loss = largest_difference(got.losses, want.losses),
                 norm = largest_difference(got.norms, want.norms);
    EXPECT_LE(loss, loss_limit) << what;
    EXPECT_LE(norm, norm_limit) << what;
    if (test::long_form()) std::cout << what << "losses " << loss << ", norms " << norm << '\n';
  }
};

TEST_P(ExpertMeshes, TrainsAsOneRank) {
  const Values gradient = gradients(config({}, DType::f64, Mode::none), {});
  const RoutedOutcome one = routed(config({}, DType::f64, Mode::none), {});
  for_some_meshes([&](const Degrees& d, Mode mode, const std::string& what) {
    const train::Config c = config(d, DType::f64, mode);
    const double worst =
        test::expect_same_gradients(gradients(c, d), gradient, 1e-10, what + "gradients");
    if (test::long_form()) std::cout << what << "gradients " << worst << '\n';
    expect_alike(routed(c, d), one, 1e-10, 1e-6, what + "f64, ");  // norms are f32
  });
}

// Places that hold no token are none to routers: not to their losses, their counts or the room of
// their experts.
TEST_P(ExpertMeshes, PaddedRowsTrainAsRowsOnOneRank) {
  const Values gradient = gradients(config({}, DType::f64, Mode::none), {});
  bool documents = false;
  for_some_meshes([&](const Degrees& d, Mode mode, const std::string& what) {
    train::Config c = config(d, DType::f64, mode);
    c.training.seq_len += 3;
    documents = !documents;
    test::expect_same_gradients(gradients(c, d, 3, documents), gradient, 1e-10,
                                what + (documents ? "a document of padding" : "padding"));
  });
}

TEST_P(ExpertMeshes, TrainsAsOneRankInF32) {
  const auto& [model, ranks, seed] = GetParam();
  const train::Config alone = config({}, DType::f32, Mode::none);
  const RoutedOutcome one = routed(alone, {});
  ASSERT_GT(one.margin, kMargin) << "a seed that has the margin: "
                                 << seed_with_margin(alone, kMargin, seed + 1);
  std::cout << "least margin between scores: " << one.margin << '\n';
  for_some_meshes([&](const Degrees& d, Mode mode, const std::string& what) {
    expect_alike(routed(config(d, DType::f32, mode), d), one, 1e-5, 1e-5, what + "f32, ");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Families, ExpertMeshes,
    testing::Values(ExpertSweep{{"qwen3", 8}, 8, 59}, ExpertSweep{{"qwen3", 6}, 6, 53},
                    ExpertSweep{{"qwen3", 6}, 8, 53}, ExpertSweep{{"qwen3", 8}, 6, 59},
                    ExpertSweep{{"llama4", 8}, 8, 7}, ExpertSweep{{"llama4", 6}, 6, 5}),
    [](const auto& test) { return test.param.text(); });

}  // namespace
}  // namespace tessera::mesh_tests

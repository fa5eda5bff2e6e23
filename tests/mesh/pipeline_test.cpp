// SPDX-License-Identifier: Apache-2.0
// Decoders, dense and with experts, on pipelines of 8 and 6 ranks, with every mesh on the ranks of
// a stage, against one rank: every gradient of the first step relative to its own norm in f64,
// losses and gradient norms of 5 steps in f32, with experts in f64 too. Schedules, modes of
// activation checkpointing and methods of context parallelism take turns; micro-batches have unlike
// numbers of targets.
#include "tessera/dist/schedules/schedule.h"
#include "tessera/tests/mesh/experts.h"
#include "tessera/tests/support/folder_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>

namespace tessera::mesh_tests {
namespace {

constexpr double kGradientLimit = 1e-10, kMargin = 1e-4;
constexpr int64_t kFewLayers = 4, kSteps = 5;

// At least as many layers as its stages need, of few numbers: each needs its run of one rank.
int64_t layers_for(const Degrees& d) {
  const auto schedules = named_schedules();
  const auto named = std::ranges::find(schedules, d.schedule, &NamedSchedule::name);
  const int64_t stages = d.pp * (named->several_stages ? 2 : 1);
  int64_t layers = kFewLayers;
  while (layers + 2 < stages) layers *= 2;  // the first and the last stage may have none
  return layers;
}

void set_sizes(train::Config& c, int64_t layers) {
  const std::vector<std::string> words{"--model.n_layers", std::to_string(layers)};
  EXPECT_TRUE(c.fields().parse(words).empty());
  c.training.steps = std::min(c.training.steps, kSteps);
}

void expect_alike(const Outcome& got, const Outcome& want, double loss, double norm,
                  const std::string& what) {
  EXPECT_TRUE(got.initial == want.initial) << what;
  expect_below(largest_difference(got.losses, want.losses), loss, what + " loss");
  expect_below(largest_difference(got.norms, want.norms), norm, what + " norm");
}

class DensePipelines : public test::FolderTest {
 protected:
  void check(const std::string& family, const Degrees& degrees, size_t turn) {
    const int64_t layers = layers_for(degrees);
    const auto config = [&](const Degrees& d, DType compute, Mode mode) {
      train::Config c = dense(family, d, compute, mode, folder_);
      set_sizes(c, layers);
      return c;
    };
    const auto [at, fresh] = alone_.try_emplace({family, layers});
    One& one = at->second;
    if (fresh) {
      one.gradients = gradients(config({}, DType::f64, Mode::none), {});
      one.run = trained(config({}, DType::f32, Mode::none), {});
    }
    const Mode mode = static_cast<Mode>(turn % 3);
    const std::string what = concat(family, " on ", degrees.text(), ", checkpoint mode ", turn % 3);
    expect_below(test::expect_same_gradients(gradients(config(degrees, DType::f64, mode), degrees),
                                             one.gradients, kGradientLimit, what),
                 kGradientLimit, what + " gradients");
    expect_alike(trained(config(degrees, DType::f32, mode), degrees), one.run, 1e-5, 1e-5, what);
  }

 private:
  struct One {
    Values gradients;
    Outcome run;
  };
  std::map<std::pair<std::string, int64_t>, One> alone_;  // by family and layers
};

class PipelineKinds : public DensePipelines, public testing::WithParamInterface<Degrees> {};

TEST_P(PipelineKinds, TrainAsOneRank) {
  const std::vector<Degrees> kinds = one_pipeline_per_kind();
  const auto turn = static_cast<size_t>(std::ranges::find(kinds, GetParam()) - kinds.begin());
  check(kFamilies[turn % std::size(kFamilies)], GetParam(), turn);
}

INSTANTIATE_TEST_SUITE_P(OnePerKind, PipelineKinds, testing::ValuesIn(one_pipeline_per_kind()),
                         [](const auto& test) { return test.param.text(); });

TEST_F(DensePipelines, TrainAsOneRankOnOtherMeshes) {
  const uint64_t seed = fresh_seed();
  std::vector<Degrees> all = every_pipeline(8, dense_meshes, seed);
  const auto of_six = every_pipeline(6, dense_meshes, seed);
  all.insert(all.end(), of_six.begin(), of_six.end());
  std::cout << all.size() << " pipelines\n";
  size_t turn = seed;
  for (const Degrees& d : some_of(all, 10, seed)) {
    ++turn;
    for (const char* family : kFamilies) check(family, d, turn);
  }
}

class ExpertPipelines : public test::FolderTest, public testing::WithParamInterface<ExpertSweep> {
 protected:
  void check(const Degrees& degrees, size_t turn) {
    const int64_t layers = layers_for(degrees);
    const One& one = alone(layers);
    const auto mode = static_cast<Mode>(turn % 3);
    train::Config c = config(degrees, layers, DType::f64, mode);
    const std::string what =
        concat(GetParam().model.family, " with ", GetParam().model.experts, " experts on ",
               degrees.text(), ", checkpoint mode ", turn % 3, ',');
    expect_alike(routed(c, degrees), one.f64, 1e-10, 1e-6, what + " f64");  // norms are f32
    if (layers == kFewLayers) {
      expect_alike(routed(config(degrees, layers, DType::f32, mode), degrees), one.f32, 1e-5, 1e-5,
                   what + " f32");
    }
    enum Padding : size_t { none, of_rows, a_document };
    const size_t padding = turn % 5 % 3;
    const int64_t places = padding == none ? 0 : 3;
    c.training.seq_len += places;
    expect_below(test::expect_same_gradients(gradients(c, degrees, places, padding == a_document),
                                             one.gradients, kGradientLimit, what),
                 kGradientLimit, concat(what, " padding ", padding, ", gradients"));
  }

 private:
  struct One {
    Values gradients;
    RoutedOutcome f64, f32;  // f32 of few layers
  };
  [[nodiscard]] train::Config config(const Degrees& degrees, int64_t layers, DType compute,
                                     Mode mode = Mode::none) const {
    train::Config c = with_experts(GetParam().model, degrees, compute, mode, folder_);
    c.debug.seed = GetParam().seed;
    set_sizes(c, layers);
    return c;
  }
  const One& alone(int64_t layers) {
    const auto [at, fresh] = alone_.try_emplace(layers);
    One& one = at->second;
    if (!fresh) return one;
    one.gradients = gradients(config({}, layers, DType::f64), {});
    one.f64 = routed(config({}, layers, DType::f64), {});
    if (layers > kFewLayers) return one;
    const train::Config c = config({}, layers, DType::f32);
    one.f32 = routed(c, {});
    EXPECT_GT(one.f32.margin, kMargin)
        << "a seed that has the margin: " << seed_with_margin(c, kMargin, c.debug.seed + 1);
    return one;
  }
  std::map<int64_t, One> alone_;  // by layers
};

TEST_P(ExpertPipelines, TrainAsOneRank) {
  const auto& [model, ranks, _] = GetParam();
  const uint64_t seed = fresh_seed();
  const auto meshes = [&](int n) { return every_mesh_of(n, model.experts); };
  const auto all = every_pipeline(ranks, meshes, seed);
  std::cout << all.size() << " pipelines\n";
  size_t turn = seed;
  for (const Degrees& d : some_of(all, 10, seed)) check(d, turn++);
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertPipelines,
                         testing::Values(ExpertSweep{{"qwen3", 8}, 8, 45},
                                         ExpertSweep{{"qwen3", 6}, 6, 19},
                                         ExpertSweep{{"llama4", 8}, 8, 2},
                                         ExpertSweep{{"llama4", 6}, 6, 1}),
                         [](const auto& test) { return test.param.text(); });

}  // namespace
}  // namespace tessera::mesh_tests

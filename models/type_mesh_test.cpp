// SPDX-License-Identifier: Apache-2.0
// Six types of models, chosen for what is odd in them, on two ranks: tensor parallelism,
// fully_shard, sequences that are cut, and a pipeline give the loss and the gradients of one rank,
// in f64 and with weights whose soft caps, biases and norms are large enough to be seen.
#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/models/pipeline/pipelined_model.h"
#include "tessera/nn/context/context_parallel.h"
#include "tessera/tests/support/golden_type.h"
#include "tessera/tests/support/gradients.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera::models {
namespace {

struct Result {
  double loss = 0;
  test::Values gradients = {};
};

class TypeOnAMesh : public testing::TestWithParam<std::string> {
 protected:
  // The sum over all tokens, of one rank.
  [[nodiscard]] Result alone() const {
    const Session session;
    const auto model = type_.make(DType::f64);
    const Tensor tokens = type_.ids("tokens");
    const Tensor loss =
        model->loss(tokens, type_.ids("targets"), model->metadata(tokens.size(1))).sum;
    backward(loss);
    Result result{loss.item()};
    for (const auto& p : nn::named_parameters(*model))
      result.gradients[p.name] = p.tensor.grad().values();
    return result;
  }
  void expect_alone(const Result& got, const std::string& how) const {
    const Result want = alone();
    EXPECT_NEAR(got.loss, want.loss, 1e-10 * want.loss);
    const double worst = test::expect_same_gradients(got.gradients, want.gradients, 1e-10, how);
    std::cout << GetParam() << ", " << how << ": worst gradient " << worst << '\n';
  }
  // On the ranks of a mesh; `pass` makes the model distributed, `cut` its inputs.
  template <class Pass> void expect_on(int cp, int tp, int dp, const std::string& how, Pass pass) {
    Result got;
    test::on_ranks(cp * tp * dp, [&](World& world) {
      const Mesh mesh = Mesh::make({{"dp", dp}, {"cp", cp}, {"tp", tp}});
      const auto model = type_.config(DType::f64).make();
      pass(*model, mesh);
      nn::initialize(*model, 0, nn::laid_out(*model, mesh));
      type_.fill(*model, DType::f64);
      const Tensor tokens = type_.ids("tokens"), targets = type_.ids("targets");
      const Layout rows = Layout::replicated(mesh).with("dp", Shard(0));
      Metadata metadata = model->metadata(tokens.size(1));
      const nn::SequenceCut cut(
          {.method = nn::ContextMethod::ring, .balancer = nn::LoadBalancer::head_tail}, rows,
          tokens.shape(), metadata.of());
      for (nn::AttentionMetadata& kind : metadata.kinds) kind = cut.metadata(kind);
      const Loss loss = model->loss(cut.cut(distribute(tokens, rows)),
                                    cut.cut(distribute(targets, rows)), metadata);
      backward(loss.sum);
      Result here{full_tensor(loss.sum).item()};
      for (const auto& p : nn::named_parameters(*model)) {
        const Tensor grad = redistribute(p.tensor.grad(), layout_of(p.tensor));
        here.gradients[p.name] = full_tensor(grad).values();
      }
      if (world.rank() == 0) got = std::move(here);
    });
    expect_alone(got, how);
  }

  const test::GoldenType type_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Types, TypeOnAMesh,
                         testing::Values("gemma2", "olmo2", "phi3", "cohere2", "gpt_neox",
                                         "qwen2_moe"),
                         [](const auto& of) { return of.param; });

TEST_P(TypeOnAMesh, TensorParallel) {
  for (const bool sequence : {true, false}) {
    expect_on(1, 2, 1, concat("tp 2", sequence ? ", sequence parallel" : ""),
              [&](LanguageModel& model, const Mesh& mesh) {
                nn::tensor_parallel(model, mesh,
                                    model.tensor_parallel_plan({.sequence_parallel = sequence,
                                                                .loss_parallel = sequence}));
                fully_shard(model, mesh, {{"dp", "cp"}});
              });
  }
}

// Types with one and with two key heads, and with a norm over all of them.
class FewKeyHeads : public TypeOnAMesh {};
INSTANTIATE_TEST_SUITE_P(Types, FewKeyHeads, testing::Values("gemma3_text", "gemma2", "olmo2"),
                         [](const auto& of) { return of.param; });

TEST_P(FewKeyHeads, AreCopiedForMoreRanks) {
  for (const bool sequence : {true, false}) {
    expect_on(1, 4, 1, concat("tp 4", sequence ? ", sequence parallel" : ""),
              [&](LanguageModel& model, const Mesh& mesh) {
                nn::tensor_parallel(model, mesh,
                                    model.tensor_parallel_plan({.sequence_parallel = sequence}));
                fully_shard(model, mesh, {{"dp", "cp"}});
              });
  }
}

TEST_P(TypeOnAMesh, FullyShard) {
  expect_on(1, 1, 2, "fully_shard 2", [](LanguageModel& model, const Mesh& mesh) {
    fully_shard(model, mesh, {{"dp", "cp"}});
  });
}

TEST_P(TypeOnAMesh, ContextParallel) {
  expect_on(2, 1, 1, "cp 2", [](LanguageModel& model, const Mesh& mesh) {
    fully_shard(model, mesh, {{"dp", "cp"}});
  });
}

TEST_P(TypeOnAMesh, Pipeline) {
  Result got;
  std::mutex mutex;
  test::on_ranks(2, [&](World&) {
    const ModelConfig config = type_.config(DType::f64);
    const ScheduleShape shape{.ranks = 2, .micro_batches = 2};
    const PipelineSchedule schedule = make_schedule("1F1B", shape);
    PipelinedModel model([&] { return config.make(); },
                         split_parts(config.make()->parts(), shape.stages()), schedule,
                         Mesh::make({{"pp", 2}}));
    nn::initialize(model, 0);
    type_.fill(model, DType::f64);
    std::vector<StepBatch> batches;
    for (int row = 0; row < 2; ++row) {
      const auto part = [&](const char* of) {
        return contiguous(narrow(type_.ids(of), 0, row, 1));  // (1, T)
      };
      const Tensor tokens = part("tokens");
      batches.push_back({tokens, part("targets"), model.metadata(tokens.size(1))});
    }
    double loss = 0;
    model.step(batches, {.begin = [](int) {},
                         .loss =
                             [&](const Loss& found) {
                               loss += found.sum.item();
                               return found.sum;
                             },
                         .auxiliary = [](size_t, const StageOutput&) { return Tensor(); }});
    const std::lock_guard lock(mutex);
    got.loss += loss;
    for (const auto& p : nn::named_parameters(model))
      got.gradients[p.name] = p.tensor.grad().values();
  });
  expect_alone(got, "pp 2");
}

}  // namespace
}  // namespace tessera::models

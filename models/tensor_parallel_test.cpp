// SPDX-License-Identifier: Apache-2.0
// The families' plans of tensor parallelism against one rank: initial parameters, loss, every
// gradient, checkpoints, generation, with and without fully_shard around it; and all that a plan
// refuses.
#include "tessera/dist/dtensor.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parallel/fully_shard.h"
#include "tessera/nn/parallel/replicate.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/gradients.h"
#include "tessera/tests/support/ranks.h"
#include "tessera/tests/support/toy_family.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::models {
namespace {

using test::error_of;

using Mode = nn::ActivationCheckpointConfig::Mode;

constexpr int64_t kRows = 4, kLength = 7, kLayers = 2;

std::unique_ptr<LanguageModel> make(const std::string& family, DType dtype = DType::f64) {
  return test::mesh_decoder(family, dtype).make();
}

struct Setting {
  std::string family = "llama3";
  int replicas = 1, shards = 1, degree = 1;
  bool plan = true;
  std::string pass = "plain";  // or shard, replicate
  nn::TensorParallelOptions options = {};
  nn::ActivationCheckpointConfig checkpoint = {};
  [[nodiscard]] std::string text() const {
    return concat(family, ", ", pass, " over ", replicas, " x ", shards, ", tp ", degree,
                  options.sequence_parallel ? ", sequence" : "",
                  options.loss_parallel ? ", loss parallel" : "");
  }
};

struct Result {
  double loss = 0;
  test::Values parameters, gradients;
  std::vector<double> next;          // logits of a generated token
  std::vector<std::string> layouts;  // of parameters
};

Tensor numbers(int64_t rows) {
  std::vector<double> all;
  for (int64_t i = 0; i < rows * kLength; ++i)
    all.push_back(static_cast<double>((i * i + 3 * i) % test::kMeshVocabulary));
  return from_values(all, {rows, kLength}, DType::i64);
}

Result run(const Setting& s) {
  Result result;
  test::on_ranks(s.replicas * s.shards * s.degree, [&](World& world) {
    const Mesh mesh =
        Mesh::make({{"dp_replicate", s.replicas}, {"dp_shard", s.shards}, {"tp", s.degree}});
    const auto model = make(s.family);
    if (s.plan) nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan(s.options));
    nn::apply_activation_checkpoint(model->units(), s.checkpoint);
    std::vector<nn::Module*> wrapped = model->units();
    wrapped.push_back(model.get());
    for (nn::Module* m : wrapped) {
      if (s.pass == "shard")
        nn::fully_shard(*m, mesh, nn::DataAxes{{"dp_shard"}, {"dp_replicate"}});
      if (s.pass == "replicate") nn::replicate(*m, mesh, "dp_replicate");
    }
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    // Biases begin as zeros, which may be added twice unseen.
    for (const auto& p : nn::named_parameters(*model)) {
      if (p.name.ends_with("bias"))
        nn::copy_values(p.tensor, normal(p.tensor.shape(), {3, 1}, 0, 0.1, p.tensor.dtype()));
    }
    Context::current().call_keys.set_seed(3);
    const Layout by_row = Layout::of(mesh, {{"dp_replicate", Shard(0)}, {"dp_shard", Shard(0)}});
    const Tensor tokens = distribute(numbers(kRows), by_row);
    const Metadata metadata = model->metadata(kLength);
    const Loss loss = model->loss(tokens, tokens, metadata);
    backward(loss.sum);
    Result here;
    here.loss = full_tensor(loss.sum).item();
    for (const auto& p : nn::named_parameters(*model)) {
      here.parameters[p.name] = full_tensor(p.tensor).values();
      const Tensor g = redistribute(p.tensor.grad(), layout_of(p.tensor));
      here.gradients[p.name] = full_tensor(g).values();
      here.layouts.push_back(p.name + " " + layout_of(p.tensor).placements_text());
    }
    const NoGrad guard;
    const nn::EvalMode evaluating(*model);
    Cache cache = model->make_cache(kLength + 1);
    (void)model->next_logits(tokens, cache);
    const Tensor next = model->next_logits(slice(tokens, 1, {0, 1}), cache);
    here.next = full_tensor(next).values();
    EXPECT_LT(layout_of(next).last_sharded_dim(), 1) << "whole in the vocabulary";
    if (world.rank() == 0) result = std::move(here);
  });
  return result;
}

void expect_same(const Result& got, const Result& want, const std::string& what) {
  EXPECT_EQ(got.parameters, want.parameters) << what << ": initial parameters, bit for bit";
  EXPECT_NEAR(got.loss, want.loss, 1e-12 * std::abs(want.loss)) << what;
  test::expect_same_gradients(got.gradients, want.gradients, 1e-10, what);
  ASSERT_EQ(got.next.size(), want.next.size()) << what;
  for (size_t i = 0; i < want.next.size(); ++i)
    EXPECT_NEAR(got.next[i], want.next[i], 1e-11) << what;
}

class TensorParallel : public testing::TestWithParam<const char*> {};

TEST_P(TensorParallel, GradientsAreThoseOfOneRank) {
  const Result want = run({.family = GetParam(), .plan = false});
  for (const int degree : {1, 2, 3, 4}) {
    for (const bool sequence : {true, false}) {
      for (const bool loss : {true, false}) {
        if (degree == 4 && sequence != loss) continue;
        const Setting s{.family = GetParam(),
                        .degree = degree,
                        .options = {.sequence_parallel = sequence, .loss_parallel = loss}};
        expect_same(run(s), want, s.text());
      }
    }
  }
}

TEST_P(TensorParallel, ComposesWithDataParallelism) {
  const Result want = run({.family = GetParam(), .plan = false});
  for (const Setting& s : {Setting{.family = GetParam(), .shards = 3, .degree = 2, .pass = "shard"},
                           {.family = GetParam(), .shards = 2, .degree = 2, .pass = "plain"},
                           {.family = GetParam(),
                           .replicas = 2,
                           .degree = 2,
                           .pass = "replicate",
                           .checkpoint = {.mode = Mode::full}}})
    expect_same(run(s), want, s.text());
}

INSTANTIATE_TEST_SUITE_P(Families, TensorParallel,
                         testing::Values("llama3", "gpt2", "tied", "qwen3", "llama4"));

TEST(TensorParallelPlan, FullyShardIsInnermostInItsDim) {
  const Result r = run({.shards = 2, .degree = 2, .pass = "shard"});
  const auto has = [&](const std::string& line) {
    return std::ranges::find(r.layouts, line) != r.layouts.end();
  };
  EXPECT_TRUE(
      has("layers.0.attention.wq.weight {dp_replicate: Replicate(), dp_shard: Shard(0), "
          "tp: Shard(0)} dim 0 by tp, then dp_shard"));
  EXPECT_TRUE(
      has("layers.1.feed_forward.w2.weight {dp_replicate: Replicate(), dp_shard: Shard(0), "
          "tp: Shard(1)}"));
  EXPECT_TRUE(has("norm.weight {dp_replicate: Replicate(), dp_shard: Shard(0), tp: Replicate()}"));
}

TEST(TensorParallelPlan, IsDataThatPrints) {
  const std::string text = make("gpt2")->tensor_parallel_plan({}).text();
  for (const char* line :
       {"tensor parallel: activations between layers Shard(1), loss over the sharded vocabulary",
        "\n  tok_embeddings            weight Shard(0), output Shard(1)",
        "\n  layers.*.attention.wo     weight Shard(1), output Shard(1)",
        "\n  layers.*.attention.wq     weight Shard(0), bias Shard(0)",
        "\n  layers.*.ffn_norm         replicated"})
    EXPECT_NE(text.find(line), text.npos) << line << " in\n" << text;
}

TEST(TensorParallelPlan, AFamilyMayHaveNone) {
  const Session session;
  EXPECT_EQ(error_of<UsageError>([] { (void)test::Toy({}).tensor_parallel_plan({}); }),
            "[tensor_parallel] this family of models has no plan for tensor parallelism: leave its "
            "degree 1, or override tensor_parallel_plan");
}

TEST(TensorParallelPlan, AllFaultsAreNamedAtOnceBeforeAnyCommunication) {
  test::on_ranks(5, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp_shard", 1}, {"tp", 5}});
    const uint64_t before = world.group().recorder().count();
    const auto model = make("llama3");
    nn::TensorParallelPlan plan = model->tensor_parallel_plan({.asynchronous = true});
    plan.add({"layers.*.attention.wx"}, nn::column_parallel());
    plan.add({"layers.1.attention.wq"}, nn::row_parallel(Replicate()));
    plan.add({"*.attention_norm"}, nn::column_parallel());
    const std::string text = error_of<UsageError>([&] { nn::tensor_parallel(*model, mesh, plan); });
    for (const char* part :
         {"asynchronous", "does not divide model.n_heads 48", "does not divide model.n_kv_heads 24",
          "no module matches layers.*.attention.wx",
          "layers.1.attention.wq matches both layers.*.attention.wq and layers.1.attention.wq",
          "no module matches *.attention_norm"})
      EXPECT_NE(text.find(part), text.npos) << part << " in " << text;
    EXPECT_FALSE(nn::parameters(*model)[0].is_distributed()) << "nothing changed";
    EXPECT_EQ(nn::tensor_parallel_plan_of(*model), nullptr);
    EXPECT_NE(error_of<UsageError>([&] {
                nn::tensor_parallel(*model, mesh, {}, "cp");
              }).find("no axis cp"),
              std::string::npos);
    EXPECT_EQ(world.group().recorder().count(), before);
  });
}

TEST(TensorParallelPlan, ComesBeforeFullyShardAndOnce) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp_shard", 1}, {"tp", 2}});
    const auto model = make("gpt2");
    const nn::TensorParallelPlan plan = model->tensor_parallel_plan({});
    nn::tensor_parallel(*model, mesh, plan);
    EXPECT_NE(error_of<UsageError>([&] {
                nn::tensor_parallel(*model, mesh, plan);
              }).find("is sharded already"),
              std::string::npos);
    const auto sharded = make("gpt2");
    for (nn::Module* unit : sharded->units())
      nn::fully_shard(*unit, mesh, nn::DataAxes{{"dp_shard"}});
    EXPECT_NE(error_of<UsageError>([&] {
                nn::tensor_parallel(*sharded, mesh, plan);
              }).find("is wrapped by fully_shard already: call tensor_parallel first"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace tessera::models

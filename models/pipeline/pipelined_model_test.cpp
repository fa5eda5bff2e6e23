// SPDX-License-Identifier: Apache-2.0
// A pipeline against one rank that computes the same micro-batches: the same bits in the loss and
// in every gradient, under each schedule; and what uses a model without a schedule.
#include "tessera/models/pipeline/pipelined_model.h"

#include "tessera/core/draws.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parallel/policy.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera::models {
namespace {

constexpr int64_t kRows = 2, kLength = 6;

struct Case {
  std::string family = "llama3";
  std::string schedule = "1F1B";
  ScheduleShape shape = {};
  nn::ActivationCheckpointConfig checkpoint = {};
  Split split = {};        // none: by split_parts
  bool two_parts = false;  // backwards are I, and W an action later
};

struct Result {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients = {};
};

constexpr int64_t kLayers = 6;

ModelConfig config_of(const std::string& family) {
  if (family == "moe") {
    return ModelConfig::of<qwen3::Model>(
        "qwen3", "",
        {.dim = 24,
         .n_layers = kLayers,
         .n_heads = 4,
         .n_kv_heads = 2,
         .head_dim = 6,
         .ffn_dim = 20,
         .vocab_size = test::kSmallVocabulary,
         .max_seq_len = 8,
         .moe = {.num_experts = 4, .top_k = 2, .moe_inter_dim = 10, .balance_loss_coeff = 0.1}});
  }
  return test::small_decoder(family, kLayers, DType::f32, family == "gpt2" ? 0.1 : 0);
}

Tensor tokens_of(int64_t micro_batch) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < kRows * kLength; ++i) {
    const int64_t n = micro_batch * kRows * kLength + i;
    numbers.push_back(static_cast<double>((n * n + 3 * n) % test::kSmallVocabulary));
  }
  return test::ids(numbers, {kRows, kLength});
}
// The token before each: any targets do.
Tensor targets_of(int64_t micro_batch) { return tokens_of(micro_batch + 1); }

Tensor auxiliary_of(const std::vector<NamedValue>& values) {
  Tensor total;
  for (const NamedValue& v : values)
    total = total.defined() ? total + v.value * 0.5 : v.value * 0.5;
  return total;
}

// The schedule of a case.
PipelineSchedule schedule_of(const Case& c) {
  PipelineSchedule schedule = make_schedule(c.schedule, c.shape);
  if (!c.two_parts) return schedule;
  for (std::vector<Action>& own : schedule.ranks) {
    std::vector<Action> later;
    for (Action action : std::exchange(own, {})) {
      if (action.kind == ActionKind::backward) {
        later.push_back({action.stage, ActionKind::backward_weight, action.micro_batch});
        action.kind = ActionKind::backward_input;
      }
      own.push_back(action);
      for (; later.size() > 1; later.erase(later.begin())) own.push_back(later.front());
    }
    own.insert(own.end(), later.begin(), later.end());
  }
  check_schedule(schedule);
  return schedule;
}

// The order in which a schedule's backwards add up gradients: LoopedBFS goes from the last
// micro-batch to the first.
std::vector<int> order_of(const PipelineSchedule& schedule) {
  std::vector<int> order;
  for (const Action& action : schedule.ranks[0])
    for (const Action& part : parts_of(action))
      if (ends_backward(part.kind) && part.stage == 0) order.push_back(part.micro_batch);
  return order;
}

Result one_rank(const Case& c) {
  const auto model = config_of(c.family).make();
  nn::initialize(*model, 3);
  nn::apply_activation_checkpoint(model->units(), c.checkpoint);
  Result result;
  for (const int m : order_of(schedule_of(c))) {
    begin_micro_batch(5, m * kRows);
    const Loss loss = model->loss(tokens_of(m), targets_of(m), model->metadata(kLength));
    const Tensor main = loss.sum * 0.25;
    const Tensor auxiliary = auxiliary_of(loss.auxiliary);
    result.loss += main.item();
    backward(auxiliary.defined() ? main + auxiliary : main);
  }
  for (const auto& p : nn::named_parameters(*model))
    result.gradients[p.name] = p.tensor.grad().values();
  return result;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  double squares = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += want[i] * want[i];
    error += (got[i] - want[i]) * (got[i] - want[i]);
  }
  EXPECT_LE(error, 1e-12 * squares);
}

void expect_equal_bits(const Case& c) {
  SCOPED_TRACE(concat(c.family, ' ', c.schedule, ' ', c.shape.ranks, " ranks"));
  Result whole;
  {
    Session session;
    whole = one_rank(c);
  }
  test::on_ranks(c.shape.ranks, [&](World& world) {
    const PipelineSchedule schedule = schedule_of(c);
    const ModelConfig config = config_of(c.family);
    PipelinedModel model(
        [&] { return config.make(); },
        c.split.empty() ? split_parts(config.make()->parts(), c.shape.stages()) : c.split, schedule,
        Mesh::make({{"pp", c.shape.ranks}}));
    nn::initialize(model, 3);
    for (const auto& stage : model.stages())
      nn::apply_activation_checkpoint(stage.model->units(), c.checkpoint);
    std::vector<StepBatch> batches;
    for (int m = 0; m < c.shape.micro_batches; ++m)
      batches.push_back({tokens_of(m), targets_of(m), model.metadata(kLength)});
    double loss = 0;
    model.step(
        batches,
        {.begin = [](int m) { begin_micro_batch(5, m * kRows); },
         .loss =
             [&](const Loss& found) {
               const Tensor main = found.sum * 0.25;
               loss += main.item();
               return main;
             },
         .auxiliary = [](size_t, const StageOutput& o) { return auxiliary_of(o.auxiliary); }});
    if (world.rank() == schedule.rank_of_stage.back()) {
      EXPECT_EQ(loss, whole.loss);
    }
    for (const auto& p : nn::named_parameters(model)) {
      ASSERT_TRUE(whole.gradients.contains(p.name)) << p.name;
      const std::vector<double> got = p.tensor.grad().values(), &want = whole.gradients.at(p.name);
      // Its two uses are added at the end and not in each micro-batch.
      if (c.family == "gpt2" && p.name == "tok_embeddings.weight") expect_near(got, want);
      else EXPECT_EQ(got, want) << p.name;
    }
  });
}

// Forward, loss and cached generation through stages that lie on ranks in turn.
void expect_equal_whole(const std::string& family, const Split& split) {
  const ModelConfig config = config_of(family);
  test::on_ranks(2, [&](World&) {
    const NoGrad guard;
    const auto whole = config.make();
    PipelineSchedule schedule{.ranks = {{}, {}}, .micro_batches = 1};
    for (size_t i = 0; i < split.size(); ++i)
      schedule.rank_of_stage.push_back(static_cast<int>(i % 2));
    PipelinedModel model([&] { return config.make(); }, split, schedule, Mesh::make({{"pp", 2}}));
    nn::initialize(*whole, 3);
    nn::initialize(model, 3);
    const nn::EvalMode eval(*whole), eval_stages(model);
    const Tensor tokens = tokens_of(0), targets = targets_of(0);
    const Metadata m = whole->metadata(kLength);
    EXPECT_EQ(model.forward(tokens, m).values(), whole->forward(tokens, m).values());
    EXPECT_EQ(model.logits(model.features(tokens, m)).values(), whole->forward(tokens, m).values());
    const Loss a = model.loss(tokens, targets, m), b = whole->loss(tokens, targets, m);
    EXPECT_EQ(a.sum.item(), b.sum.item());
    EXPECT_EQ(a.count.item(), b.count.item());
    Cache cache = model.make_cache(kLength), cache_of_whole = whole->make_cache(kLength);
    for (const auto& [begin, end] : {std::pair(0, 3), {3, 4}, {4, 6}}) {
      const Tensor part = slice(tokens, 1, {begin, end});
      EXPECT_EQ(model.next_logits(part, cache).values(),
                whole->next_logits(part, cache_of_whole).values());
    }
    EXPECT_EQ(cache.layers[0].length, kLength);
    EXPECT_EQ(model.flops(std::vector<int64_t>{6}), whole->flops(std::vector<int64_t>{6}));
  });
}

TEST(PipelinedModel, HasTheBitsOfOneRankUnderEverySchedule) {
  for (const std::string family : {"llama3", "gpt2", "moe"}) {
    for (const std::string schedule : {"GPipe", "1F1B"}) {
      expect_equal_bits({family, schedule, {2, 1, 4}});
      expect_equal_bits({family, schedule, {3, 1, 5}});
    }
    for (const std::string schedule :
         {"LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"})
      expect_equal_bits({family, schedule, {2, 2, 4}});
  }
}

TEST(PipelinedModel, HasTheBitsOfOneRankWithBackwardsInTwoParts) {
  using Mode = nn::ActivationCheckpointConfig::Mode;
  for (const std::string family : {"llama3", "gpt2", "moe"}) {
    for (const Mode mode : {Mode::none, Mode::full, Mode::selective}) {
      nn::ActivationCheckpointConfig checkpoint;
      checkpoint.mode = mode;
      expect_equal_bits({family, "1F1B", {2, 1, 4}, checkpoint, {}, true});
      expect_equal_bits({family, "Interleaved1F1B", {2, 2, 4}, checkpoint, {}, true});
    }
    expect_equal_bits({family, "GPipe", {3, 1, 5}, {}, {}, true});
  }
}

// The final norm may be in another stage than the head.
TEST(PipelinedModel, SplitsAnywhere) {
  const Split split{
      {"tok_embeddings"},
      {"layers.0", "layers.1", "layers.2", "layers.3", "layers.4", "layers.5", "norm"},
      {"output"}};
  for (const std::string family : {"llama3", "moe"}) {
    expect_equal_bits({family, "1F1B", {3, 1, 3}, {}, split});
    expect_equal_whole(family, split);
  }
}

TEST(PipelinedModel, AStepAfterOneThatFailedIsRefused) {
  const ModelConfig config = config_of("llama3");
  test::on_ranks(1, [&](World&) {
    PipelinedModel model([&] { return config.make(); }, split_parts(config.make()->parts(), 2),
                         make_schedule("LoopedBFS", {1, 2, 1}), Mesh::make({{"pp", 1}}));
    nn::initialize(model, 3);
    const std::vector<StepBatch> batches{{tokens_of(0), targets_of(0), model.metadata(kLength)}};
    StepPasses passes{.begin = [](int) { throw ValueError("no such micro-batch"); },
                      .loss = [](const Loss& loss) { return loss.sum; },
                      .auxiliary = [](size_t, const StageOutput&) { return Tensor(); }};
    EXPECT_THROW(model.step(batches, passes), ValueError);
    passes.begin = [](int) {};
    EXPECT_EQ(test::error_of([&] { model.step(batches, passes); }),
              "[pipeline] a step has failed, and its messages may still come: make it anew");
  });
}

TEST(PipelinedModel, RecomputesAsOneRankDoes) {
  using Mode = nn::ActivationCheckpointConfig::Mode;
  for (const Mode mode : {Mode::full, Mode::selective}) {
    nn::ActivationCheckpointConfig checkpoint;
    checkpoint.mode = mode;
    for (const std::string family : {"llama3", "gpt2", "moe"})
      expect_equal_bits({family, "1F1B", {2, 1, 3}, checkpoint});
  }
}

TEST(PipelinedModel, IsAModelAsAnyOther) {
  for (const std::string family : {"llama3", "gpt2"})
    expect_equal_whole(family, split_parts(config_of(family).make()->parts(), 4));
}

// Parameters of a stage stay whole over all micro-batches: gathered once and reduced once a step.
void expect_one_gather_and_reduction(const PipelineSchedule& schedule) {
  const ModelConfig config = config_of("llama3");
  test::on_ranks(4, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 2}}, {world.rank() / 2 * 2, world.rank() / 2 * 2 + 1});
    const Mesh pipeline = Mesh::make({{"pp", 2}, {"stage", 2}});
    PipelinedModel model([&] { return config.make(); }, split_parts(config.make()->parts(), 2),
                         schedule, pipeline, mesh);
    LanguageModel& stage = *model.stages()[0].model;
    fully_shard(stage, mesh, {.shard = {"dp"}}, {.accumulation = nn::Accumulation::whole});
    nn::initialize(model, 3, nn::laid_out(model, mesh));
    std::vector<StepBatch> batches;
    const Layout by_rows = Layout::of(mesh, {Shard(0)});
    for (int i = 0; i < 4; ++i)
      batches.push_back({distribute(tokens_of(i), by_rows), distribute(targets_of(i), by_rows),
                         model.metadata(kLength)});
    const StepPasses passes{.begin = [](int) {},
                            .loss = [](const Loss& loss) { return loss.sum; },
                            .auxiliary = [](size_t, const StageOutput&) { return Tensor(); }};
    model.step(batches, passes);
    const CommTrace trace;
    model.step(batches, passes);
    // A unit for each layer, and the embedding or the norm with the head.
    EXPECT_EQ(trace.count("all_gather"), 4);
    EXPECT_EQ(trace.count("reduce_scatter"), 4);
  });
}

TEST(PipelinedModel, GathersAndReducesOnceAStep) {
  expect_one_gather_and_reduction(schedule_of({.shape = {2, 1, 4}}));
  expect_one_gather_and_reduction(schedule_of({.shape = {2, 1, 4}, .two_parts = true}));
}

TEST(PipelinedModel, AWrongSplitIsAnError) {
  const std::vector<std::string> parts = config_of("llama3").make()->parts();
  EXPECT_EQ(split_fault(parts, split_parts(parts, 3)), "");
  EXPECT_EQ(split_parts(parts, 3), (Split{{"tok_embeddings", "layers.0", "layers.1"},
                                          {"layers.2", "layers.3", "layers.4"},
                                          {"layers.5", "norm", "output"}}));
  EXPECT_EQ(split_parts(parts, 8), (Split{{"tok_embeddings"},
                                          {"layers.0"},
                                          {"layers.1"},
                                          {"layers.2"},
                                          {"layers.3"},
                                          {"layers.4"},
                                          {"layers.5"},
                                          {"norm", "output"}}));
  EXPECT_EQ(test::error_of([&] { (void)split_parts(parts, 9); }),
            "[pipeline] 6 layers do not fill 9 stages, with the embedding counted as 1 and the "
            "head as 1: give at most 8");
  Split split = split_parts(parts, 3);
  std::swap(split[0], split[1]);
  EXPECT_EQ(split_fault(parts, split).substr(0, 41), "the parts are not in the order of forward");
  split[1].clear();
  EXPECT_EQ(split_fault(parts, split), "stage 1 has no parts: give each stage one");
}

}  // namespace
}  // namespace tessera::models

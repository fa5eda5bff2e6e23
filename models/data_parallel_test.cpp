// SPDX-License-Identifier: Apache-2.0
// fully_shard, HSDP and replicate against the plain path: parameters replicated as distributed
// tensors, whose gradients are redistributed one by one. The same bits where degrees are powers of
// two, in every mode of activation checkpointing.
#include "tessera/models/data_parallel.h"

#include "tessera/dist/dtensor.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera::models {
namespace {

using Mode = nn::ActivationCheckpointConfig::Mode;

constexpr int64_t kRows = 12, kLength = 6;

struct Setting {
  std::string family = "llama3";
  std::string pass = "plain";  // or shard, replicate
  int replicas = 1, shards = 1;
  DType dtype = DType::f32;
  nn::ActivationCheckpointConfig checkpoint = {};
  nn::ShardPolicy policy = {};
  int batches = 1;
};

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;
};

void wrap(LanguageModel& model, Mesh mesh, const Setting& s) {
  nn::apply_activation_checkpoint(model.units(), s.checkpoint);
  if (s.pass == "shard") {
    fully_shard(model, mesh, {{"dp_shard"}, {"dp_replicate"}}, s.policy);
  } else if (s.pass == "replicate") {
    replicate(model, mesh, "dp_replicate", {s.policy.precision, s.policy.accumulation});
  } else if (s.policy.precision.param) {
    nn::mixed_precision(model, model.units(), s.policy.precision);
  }
}

// Rows of a fixed batch, shared by the ranks.
Tensor tokens_of(Mesh mesh, int64_t begin, int64_t end) {
  std::vector<double> numbers;
  for (int64_t i = begin * kLength; i < end * kLength; ++i)
    numbers.push_back(static_cast<double>((i * i + 3 * i) % test::kSmallVocabulary));
  return distribute(from_values(numbers, {end - begin, kLength}, DType::i64),
                    Layout::of(mesh, {Shard(0), Shard(0), Replicate()}));
}

// Two steps, of which the second knows the order of the first; parameters do not change.
Result run(const Setting& s) {
  Result result;
  test::on_ranks(s.replicas * s.shards, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp_replicate", s.replicas}, {"dp_shard", s.shards}, {"tp", 1}});
    const auto model = test::small_decoder(s.family, 2, s.dtype).make();
    wrap(*model, mesh, s);
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    const Metadata metadata = model->metadata(kLength);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      std::vector<double> losses;
      for (int b = 0; b < s.batches; ++b) {
        const int64_t rows = kRows / s.batches;
        const Tensor tokens = tokens_of(mesh, b * rows, (b + 1) * rows);
        const nn::MicroBatch micro(b + 1 == s.batches);
        const Loss loss = model->loss(tokens, tokens, metadata);
        losses.push_back(full_tensor(loss.sum).item());
        backward(loss.sum);
      }
      std::map<std::string, std::vector<double>> gradients;
      for (const auto& p : nn::named_parameters(*model)) {
        Tensor g = p.tensor.grad();
        if (s.pass == "plain") g = redistribute(g, Layout::replicated(mesh));
        EXPECT_EQ(g.dtype(), s.dtype) << p.name;
        EXPECT_EQ(layout_of(g), layout_of(p.tensor)) << p.name;
        gradients[p.name] = full_tensor(g).values();
      }
      if (world.rank() != 0) continue;
      if (step == 1) {
        EXPECT_EQ(losses, result.losses);
        EXPECT_EQ(gradients, result.gradients);
      }
      result = {losses, gradients};
    }
  });
  return result;
}

void expect_equal(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  for (const auto& [name, want] : b.gradients)
    EXPECT_EQ(a.gradients.at(name), want) << what << name;
}

TEST(DataParallel, EveryPassGivesTheBitsOfThePlainPath) {
  for (const std::string family : {"llama3", "gpt2"}) {
    for (const int ranks : {1, 2, 4}) {
      const Result plain = run({.family = family, .shards = ranks});
      const std::string what = family + " on " + std::to_string(ranks) + ' ';
      expect_equal(run({.family = family, .pass = "shard", .shards = ranks}), plain,
                   what + "shards ");
      expect_equal(run({.family = family, .pass = "replicate", .replicas = ranks}), plain,
                   what + "replicas ");
    }
    expect_equal(run({.family = family, .pass = "shard", .replicas = 2, .shards = 2}),
                 run({.family = family, .replicas = 2, .shards = 2}), family + " hybrid ");
  }
}

TEST(DataParallel, CheckpointsAndReshardingChangeNoBit) {
  for (const std::string family : {"llama3", "gpt2"}) {
    const Result plain = run({.family = family, .shards = 2});
    for (const nn::ActivationCheckpointConfig& checkpoint :
         {nn::ActivationCheckpointConfig{.mode = Mode::full},
          {.mode = Mode::selective},
          {.mode = Mode::selective, .selective_option = "2"},
          {.mode = Mode::memory_budget, .memory_budget = 0.4}}) {
      expect_equal(
          run({.family = family, .pass = "shard", .shards = 2, .checkpoint = checkpoint}), plain,
          family + " checkpoint " + std::to_string(static_cast<int>(checkpoint.mode)) + ' ');
    }
    expect_equal(run({.family = family,
                      .pass = "shard",
                      .shards = 4,
                      .checkpoint = {.mode = Mode::full},
                      .policy = {.reshard_after_forward = nn::Reshard::among(2)}}),
                 run({.family = family, .shards = 4}), family + " reshard among two ");
    for (const nn::Reshard reshard : {nn::Reshard::always, nn::Reshard::never}) {
      expect_equal(run({.family = family,
                        .pass = "shard",
                        .shards = 2,
                        .checkpoint = {.mode = Mode::full},
                        .policy = {.reshard_after_forward = reshard}}),
                   plain, family + " reshard " + std::to_string(reshard.ways()) + ' ');
    }
  }
}

TEST(DataParallel, MixedPrecisionGivesTheBitsOfThePlainPath) {
  const nn::ShardPolicy policy{.precision = {.param = DType::bf16, .reduce = DType::f32}};
  for (const int ranks : {1, 2}) {
    const Result plain = run({.replicas = ranks, .policy = policy});
    expect_equal(run({.pass = "shard", .shards = ranks, .policy = policy}),
                 run({.shards = ranks, .policy = policy}), "shards ");
    expect_equal(run({.pass = "replicate", .replicas = ranks, .policy = policy}), plain,
                 "replicas ");
  }
}

// Losses and norms of two steps of AdamW with clipping, on two shards.
std::vector<double> train(const std::string& family,
                          const std::function<void(LanguageModel&, Mesh)>& pass) {
  std::vector<double> values;
  test::on_ranks(2, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp_replicate", 1}, {"dp_shard", 2}, {"tp", 1}});
    const auto model = test::small_decoder(family, 2).make();
    pass(*model, mesh);
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    optim::AdamW optimizer(nn::parameters(*model), {.lr = 1e-2});
    const Metadata metadata = model->metadata(kLength);
    for (int step = 0; step < 2; ++step) {
      const Tensor tokens = tokens_of(mesh, 0, kRows);
      const Loss loss = model->loss(tokens, tokens, metadata);
      backward(loss.sum);
      for (Tensor& p : nn::parameters(*model)) p.set_grad(redistribute(p.grad(), layout_of(p)));
      const double norm = optim::clip_grad_norm_(nn::parameters(*model), 0.5).item();
      optimizer.step();
      optimizer.zero_grad();
      const double value = full_tensor(loss.sum).item();
      if (world.rank() == 0) values.insert(values.end(), {value, norm});
    }
  });
  return values;
}

TEST(DataParallel, AReplicatedLayerTrainsAmongShardedOnes) {
  const auto both = [](LanguageModel& model, Mesh mesh) {
    (void)mesh.flatten({"dp_replicate", "dp_shard"}, "dp");
    nn::replicate(*model.units()[1], mesh, "dp");
    nn::fully_shard(*model.units()[0], mesh, {{"dp_shard"}, {"dp_replicate"}});
    nn::fully_shard(model, mesh, {{"dp_shard"}, {"dp_replicate"}});
  };
  for (const std::string family : {"llama3", "gpt2"})
    EXPECT_EQ(train(family, both), train(family, [](LanguageModel&, Mesh) {})) << family;
}

// Their gradients are Partial on tp, and each unit sums its own together.
TEST(DataParallel, NormsUnderSequenceParallelismAreSummedOncePerUnit) {
  test::on_ranks(4, [](World&) {
    const Mesh mesh = Mesh::make({{"dp_replicate", 1}, {"dp_shard", 2}, {"tp", 2}});
    const auto model = test::small_decoder("llama3", 2).make();
    nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan({}));
    fully_shard(*model, mesh, {{"dp_shard"}, {"dp_replicate"}},
                {.precision = {.param = DType::bf16, .reduce = DType::f32}});
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    const Tensor tokens = tokens_of(mesh, 0, kRows);
    const Loss loss = model->loss(tokens, tokens, model->metadata(kLength));
    const CommTrace trace;
    backward(loss.sum);
    std::vector<int64_t> sums;
    for (const CommEntry& e : trace.entries()) {
      if (e.op == "all_reduce" && e.axes == "tp" && e.dtype == DType::f32) sums.push_back(e.bytes);
    }
    // The last norm, then two of each layer, in the dtype of sums.
    EXPECT_EQ(sums, (std::vector<int64_t>{24 * 4, 2 * 24 * 4, 2 * 24 * 4}));
  });
}

TEST(DataParallel, EveryEntryOfAModelComputesWithWholeParameters) {
  for (const std::string family : {"llama3", "gpt2"}) {
    std::map<std::string, std::vector<double>> all;
    for (const std::string pass : {"plain", "shard", "replicate"}) {
      const Setting s{.family = family,
                      .pass = pass,
                      .replicas = pass == "replicate" ? 2 : 1,
                      .shards = pass == "replicate" ? 1 : 2};
      test::on_ranks(2, [&](World& world) {
        const Mesh mesh =
            Mesh::make({{"dp_replicate", s.replicas}, {"dp_shard", s.shards}, {"tp", 1}});
        const auto model = test::small_decoder(family, 2).make();
        wrap(*model, mesh, s);
        nn::initialize(*model, 5, nn::laid_out(*model, mesh));
        const NoGrad guard;
        const Tensor tokens = distribute(from_values({1, 2, 3, 4, 5, 6}, {2, 3}, DType::i64),
                                         Layout::replicated(mesh));
        const Metadata metadata = model->metadata(3);
        std::vector<double> values = full_tensor(model->forward(tokens, metadata)).values();
        const auto add = [&values](const Tensor& t) {
          for (const double v : full_tensor(t).values()) values.push_back(v);
        };
        add(model->logits(model->features(tokens, metadata)));
        Cache cache = model->make_cache(8);
        for (int i = 0; i < 2; ++i) add(model->next_logits(tokens, cache));
        if (world.rank() == 0) all[pass] = values;
      });
    }
    EXPECT_EQ(all["shard"], all["plain"]) << family;
    EXPECT_EQ(all["replicate"], all["plain"]) << family;
  }
}

// Queries, keys and values are one product of weights that lie one behind the other where they were
// gathered.
TEST(DataParallel, JoinedWeightsOfAShardedModelAreNotCopied) {
  for (const std::string family : {"llama3", "gpt2"}) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      test::on_ranks(2, [&](World&) {
        const Mesh mesh = Mesh::make({{"dp_replicate", 1}, {"dp_shard", 2}, {"tp", 1}});
        const auto model = test::small_decoder(family, 2).make();
        wrap(*model, mesh, {.pass = "shard", .policy = {.precision = {.param = compute}}});
        nn::initialize(*model, 5, nn::laid_out(*model, mesh));
        const Tensor tokens = tokens_of(mesh, 0, kRows);
        ASSERT_GE(tokens.numel(), 64);  // below, nothing is joined
        const Shape weights{family == "llama3" ? 24 + 2 * 12 : 3 * 24, 24};
        int joined = 0, copies = 0;
        Context::current().op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors) {
          copies += row.name == "cat";
          joined += row.name == "matmul" && in[1].shape() == weights && in[1].dtype() == compute;
        };
        (void)model->loss(tokens, tokens, model->metadata(kLength));
        Context::current().op_hook = nullptr;
        EXPECT_EQ(joined, 2) << family;  // one in each layer
        EXPECT_EQ(copies, 0) << family << ' ' << name(compute);
      });
    }
  }
}

TEST(DataParallel, AStepThatFailedLeavesNoTrace) {
  const Result plain = run({.shards = 2});
  test::on_ranks(2, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp_replicate", 1}, {"dp_shard", 2}, {"tp", 1}});
    const auto model = test::small_decoder("llama3", 2).make();
    wrap(*model, mesh, {.pass = "shard", .checkpoint = {.mode = Mode::full}});
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    const Metadata metadata = model->metadata(kLength);
    std::string failing;
    int norms = 0;
    const auto step = [&] {
      const Tensor tokens = tokens_of(mesh, 0, kRows);
      model->zero_grad();
      backward(model->loss(tokens, tokens, metadata).sum);
    };
    Context::current().op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
      if (row.name == failing && ++norms == 4) fail<UsageError>("test", "stop");
    };
    for (const std::string op : {"rms_norm", "rms_norm_backward", "rms_norm"}) {
      failing = op;  // in the second layer, forward and backward
      norms = 0;
      EXPECT_THROW(step(), UsageError) << op;
    }
    Context::current().op_hook = nullptr;
    step();
    for (const auto& p : nn::named_parameters(*model)) {
      const auto got = full_tensor(p.tensor.grad()).values();
      EXPECT_EQ(got, plain.gradients.at(p.name)) << p.name << " on " << world.rank();
    }
  });
}

}  // namespace
}  // namespace tessera::models

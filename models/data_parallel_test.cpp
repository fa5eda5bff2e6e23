// SPDX-License-Identifier: Apache-2.0
// fully_shard, HSDP and replicate against the plain path: parameters replicated as distributed
// tensors, whose gradients are redistributed one by one. The same bits where degrees are powers of
// two, in every mode of activation checkpointing; and the collectives of a step, which follow from
// the units alone.
#include "tessera/models/data_parallel.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace tessera::models {
namespace {

using Mode = nn::ActivationCheckpointConfig::Mode;

constexpr int64_t kRows = 12, kLength = 6, kVocabulary = 23;

std::unique_ptr<LanguageModel> make(const std::string& family, DType dtype) {
  if (family == "llama3") {
    return std::make_unique<llama3::Model>(llama3::Config{.dim = 24,
                                                          .n_layers = 3,
                                                          .n_heads = 4,
                                                          .n_kv_heads = 2,
                                                          .ffn_dim = 20,
                                                          .vocab_size = kVocabulary,
                                                          .max_seq_len = 8,
                                                          .dtype = dtype});
  }
  return std::make_unique<gpt2::Model>(gpt2::Config{.dim = 24,
                                                    .n_layers = 3,
                                                    .n_heads = 4,
                                                    .vocab_size = kVocabulary,
                                                    .max_seq_len = 8,
                                                    .dtype = dtype});
}

struct Setting {
  std::string family = "llama3";
  std::string pass = "plain";  // or shard, replicate
  int replicas = 1, shards = 1;
  DType dtype = DType::f32;
  nn::ActivationCheckpointConfig checkpoint = {};
  nn::ShardPolicy policy = {};
  int batches = 1;
  bool last_named = true;
};

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;
  std::vector<CommEntry> trace;  // of the last step
};

void wrap(LanguageModel& model, Mesh mesh, const Setting& s) {
  nn::apply_activation_checkpoint(model.units(), s.checkpoint);
  if (s.pass == "shard") {
    fully_shard(model, mesh, {{"dp_shard"}, {"dp_replicate"}}, s.policy);
  } else if (s.pass == "replicate") {
    replicate(model, mesh, "dp_replicate", {s.policy.precision, s.policy.accumulation});
  }
}

// Two steps, of which the second knows the order of the first; parameters do not change.
Result run(const Setting& s) {
  Result result;
  test::on_ranks(s.replicas * s.shards, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp_replicate", s.replicas}, {"dp_shard", s.shards}, {"tp", 1}});
    const auto model = make(s.family, s.dtype);
    wrap(*model, mesh, s);
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    std::vector<double> numbers;
    for (int64_t i = 0; i < kRows * kLength; ++i)
      numbers.push_back(static_cast<double>((i * i + 3 * i) % kVocabulary));
    const Layout by_row = Layout::of(mesh, {Shard(0), Shard(0), Replicate()});
    const Metadata metadata = model->metadata(kLength);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      const CommTrace trace;
      std::vector<double> losses;
      for (int b = 0; b < s.batches; ++b) {
        const int64_t rows = kRows / s.batches;
        const Tensor all = from_values(numbers, {kRows, kLength}, DType::i64);
        const Tensor tokens = distribute(slice(all, 0, {b * rows, (b + 1) * rows}), by_row);
        const nn::MicroBatch micro(b + 1 == s.batches);
        const Loss loss = model->loss(tokens, tokens, metadata);
        losses.push_back(full_tensor(loss.sum).item());
        backward(loss.sum);
      }
      std::vector<CommEntry> entries(trace.entries().begin(), trace.entries().end());
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
      result = {losses, gradients, entries};
    }
  });
  return result;
}

// The largest error relative to a gradient's own norm. Biases of keys have none but for rounding:
// a shift of all scores of a query changes nothing.
double difference(const Result& a, const Result& b) {
  double worst = std::abs(a.losses[0] - b.losses[0]) / std::abs(b.losses[0]);
  for (const auto& [name, want] : b.gradients) {
    const auto& got = a.gradients.at(name);
    double off = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      off += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    if (name.ends_with("wk.bias")) EXPECT_LT(std::sqrt(std::max(off, norm)), 1e-10) << name;
    else worst = std::max(worst, std::sqrt(off / norm));
  }
  return worst;
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

TEST(DataParallel, AnyNumberOfRanksGivesTheGradientsOfOne) {
  for (const std::string family : {"llama3", "gpt2"}) {
    const Result one = run({.family = family, .dtype = DType::f64});
    for (const char* pass : {"shard", "replicate"}) {
      const bool shard = std::string(pass) == "shard";
      const Result three = run({.family = family,
                                .pass = pass,
                                .replicas = shard ? 1 : 3,
                                .shards = shard ? 3 : 1,
                                .dtype = DType::f64});
      EXPECT_LT(difference(three, one), 1e-10) << family << ' ' << pass;
    }
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
    for (const nn::Reshard reshard : {nn::Reshard::always, nn::Reshard::never}) {
      expect_equal(run({.family = family,
                        .pass = "shard",
                        .shards = 2,
                        .checkpoint = {.mode = Mode::full},
                        .policy = {.reshard_after_forward = reshard}}),
                   plain, family + " reshard " + std::to_string(static_cast<int>(reshard)) + ' ');
    }
  }
}

TEST(DataParallel, CollectivesOfAStepFollowFromUnitsAndPolicy) {
  const Result r = run({.pass = "shard", .shards = 2});
  for (const CommEntry& e : r.trace)
    std::cout << e.op << ' ' << e.axes << ' ' << e.bytes << ' ' << e.tag << ' ' << e.path << '\n';
}

}  // namespace
}  // namespace tessera::models

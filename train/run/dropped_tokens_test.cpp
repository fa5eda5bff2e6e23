// SPDX-License-Identifier: Apache-2.0
// Experts of limited capacity beside the bias that balances them, in whole steps: which tokens are
// dropped, and the counts that move the bias, against the rule written out here over the scores of
// the routers. The bias is moved by what tokens chose, the capacity is of each sequence, and
// neither depends on micro-batches, ranks or recomputation.
#include "tessera/core/context.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/tiny_experts.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::train {
namespace {

using Numbers = std::vector<double>;

constexpr size_t kExperts = 8, kTopK = 2, kLength = 16, kLayers = 2;
constexpr double kFactor = 1.1, kCoefficient = 0.01;

// What the router of a layer should count in a step, and the bias after it.
struct Expected {
  Numbers chosen = Numbers(kExperts), computed = Numbers(kExperts), bias;
  [[nodiscard]] double dropped() const { return 1 - sum_of(computed) / sum_of(chosen); }
  [[nodiscard]] double load() const {
    return std::ranges::max(chosen) * static_cast<double>(kExperts) / sum_of(chosen);
  }
  static double sum_of(const Numbers& all) { return std::accumulate(all.begin(), all.end(), 0.0); }
};

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

// By how much counts move the bias of each expert.
Numbers moves(const Numbers& counts) {
  const double mean = Expected::sum_of(counts) / static_cast<double>(kExperts);
  Numbers signs;
  for (const double n : counts) signs.push_back(sign(mean - n));
  const double middle = Expected::sum_of(signs) / static_cast<double>(kExperts);
  for (double& s : signs) s = kCoefficient * (s - middle);
  return signs;
}

// `batches`: the scores of all tokens of each micro-batch.
Expected expected(const std::vector<Numbers>& batches, const Numbers& bias) {
  Expected r;
  const double room =
      std::ceil(kFactor * static_cast<double>(kLength * kTopK) / static_cast<double>(kExperts));
  Numbers taken(kExperts);  // of the sequence
  for (const Numbers& scores : batches) {
    for (size_t token = 0; token < scores.size() / kExperts; ++token) {
      if (token % kLength == 0) taken.assign(kExperts, 0);
      Numbers choice(bias);
      for (size_t e = 0; e < kExperts; ++e) choice[e] += scores[token * kExperts + e];
      for (size_t k = 0; k < kTopK; ++k) {
        const auto best = static_cast<size_t>(std::ranges::max_element(choice) - choice.begin());
        choice[best] = -INFINITY;
        r.chosen[best] += 1;
        r.computed[best] += taken[best] < room ? 1 : 0;
        taken[best] += 1;
      }
    }
  }
  r.bias = bias;
  const Numbers by = moves(r.chosen);
  for (size_t e = 0; e < kExperts; ++e) r.bias[e] += by[e];
  return r;
}

struct Way {
  std::string name;
  int ranks;
  Words words;
};

class DroppedTokens : public TinyRunTest {
 protected:
  [[nodiscard]] Config config_of(const Way& way) const {
    const Words words = joined(
        joined({"--dataloader.path", path("text.txt"), "--dump_folder", path(way.name)},
               tiny_experts()),
        split(concat("--model.n_kv_heads 2 --model.capacity_factor ", kFactor,
                     " --model.load_balance_coeff ", kCoefficient,
                     " --training.dtype float64 --training.mixed_precision_param float64 "
                     "--training.seq_len ",
                     kLength,
                     " --training.global_batch_size 4 --training.steps 4 --optimizer.lr 1e-2 "
                     "--lr_scheduler.warmup_steps 0 --threads 1 --sample.tokens 0 "
                     "--metrics.measure_ceiling false")));
    return parse_config(joined(words, way.words));
  }

  // Four steps of a run.
  void expect_rule(const Way& way) const {
    SCOPED_TRACE(way.name);
    const Config config = config_of(way);
    const auto on_rank = [&](World& world) {
      Trainer trainer(config);
      auto& model = dynamic_cast<qwen3::Model&>(trainer.model());
      std::vector<Numbers> scores;  // by micro-batch, then by layer
      bool looking = true, tells_them_apart = false;
      Context& context = Context::current();
      context.op_hook = [&](const OpRow& row, const void*, Tensors, Tensors out) {
        if (row.name != "softmax" || trace_tag() != "forward" || !out[0].is_distributed()) return;
        if (!std::exchange(looking, false)) return;
        const NoGrad guard;
        scores.push_back(trial::whole_values(out[0]));
        looking = true;
      };
      for (int step = 1; step <= 4; ++step) {
        std::vector<Numbers> before;
        for (auto& layer : model.layers)
          before.push_back(trial::whole_values(layer.moe->expert_bias));
        scores.clear();
        const StepRecord record = trainer.step();
        double load = 0;
        for (size_t l = 0; l < kLayers; ++l) {
          std::vector<Numbers> own;
          for (size_t i = l; i < scores.size(); i += kLayers) own.push_back(scores[i]);
          const Expected want = expected(own, before[l]);
          EXPECT_EQ(Expected::sum_of(want.chosen), 4.0 * kLength * kTopK);
          EXPECT_NEAR(record.statistic(concat("moe/layer_", l, "/dropped")), want.dropped(), 1e-12);
          EXPECT_GT(want.dropped(), 0);
          const Numbers after = trial::whole_values(model.layers[l].moe->expert_bias);
          for (size_t e = 0; e < kExperts; ++e)
            EXPECT_NEAR(after[e], want.bias[e], 1e-15) << "step " << step << ", layer " << l;
          load = std::max(load, want.load());
          tells_them_apart = tells_them_apart || moves(want.computed) != moves(want.chosen);
        }
        EXPECT_NEAR(record.statistic("moe/load_max_over_mean"), load, 1e-12);
      }
      context.op_hook = nullptr;
      EXPECT_TRUE(tells_them_apart) << world.rank();
    };
    run_ranks(way.ranks, on_rank, world_options(config));
  }
};

TEST_F(DroppedTokens, AreTheLastOfTheirSequencesAndCountForTheBias) {
  const std::string local = "--training.local_batch_size", ranks2 = "2";
  for (const Way& way : std::vector<Way>{
           {"whole", 1, {local, "4"}},
           {"micro-batches", 1, {local, "1"}},
           {"recomputed", 1, {local, "2", "--activation_checkpoint.mode", "full"}},
           {"experts", 2, {local, "1", "--parallelism.expert_parallel_degree", ranks2}},
           {"tensor", 2, {local, "2", "--parallelism.tensor_parallel_degree", ranks2}},
           {"context",
            2,
            {local, "2", "--parallelism.context_parallel_degree", ranks2,
             "--parallelism.context_parallel_load_balancer", "none"}}})
    expect_rule(way);
}

}  // namespace
}  // namespace tessera::train

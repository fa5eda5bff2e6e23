// SPDX-License-Identifier: Apache-2.0
#include "tessera/tests/mesh/experts.h"

#include "tessera/core/context.h"
#include "tessera/core/draws.h"
#include "tessera/core/op_row.h"
#include "tessera/models/pipeline/whole.h"
#include "tessera/nn/parallel/expert_parallel.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/parallel/parallelism.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace tessera::mesh_tests {
namespace {

constexpr int64_t kRows = 24, kLength = 5, kTopK = 2;
constexpr double kGateDeviation = 0.2;

// What the routers of one rank chose in a step, in the order of the layers. Layers that are
// recomputed choose again, behind these.
struct Choices {
  struct Choice {
    Tensor scores, ids;  // (..., experts), (..., top_k)
  };
  std::vector<Choice> all;
};

void widen_gates(models::LanguageModel& model, uint64_t seed) {
  uint64_t stream = 0;
  for (const auto& [name, weight] : models::whole_tensors(model)) {
    if (!name.ends_with("router.gate.weight")) continue;
    const RngKey key{seed, ++stream};
    if (weight.defined())
      nn::copy_values(weight, normal(weight.shape(), key, 0, kGateDeviation, weight.dtype()));
  }
}

size_t routers_of(nn::Module& model) {
  return static_cast<size_t>(std::ranges::count_if(nn::named_parameters(model), [](const auto& p) {
    return p.name.ends_with("router.gate.weight");
  }));
}

double least_margin(std::vector<double> scores, int64_t experts) {
  double least = std::numeric_limits<double>::infinity();
  for (auto row = scores.begin(); row != scores.end(); row += experts) {
    std::partial_sort(row, row + kTopK + 1, row + experts, std::greater());
    least = std::min(least, row[kTopK - 1] - row[kTopK]);
  }
  return least;
}

// The token at each place of the sequences of a run; undefined: in order.
Tensor order_of(const models::LanguageModel& model, const train::Config& config) {
  const auto cut = config.parallelism.sequence_cut();
  if (!cut) return {};
  const train::DataShare share = train::data_share(model.placement().mesh);
  return nn::SequenceCut(*cut, share.by_rows, {kRows, kLength}, model.metadata(kLength).kinds)
      .order();
}

// Values of (rows, length, n) whose tokens lie by `order`, (length), in the order of the sequence.
std::vector<double> in_order(const std::vector<double>& values, const Tensor& order) {
  if (!order.defined()) return values;
  const auto tokens = static_cast<size_t>(kLength);
  const size_t each = values.size() / (static_cast<size_t>(kRows) * tokens);
  std::vector<double> sorted(values.size());
  for (size_t i = 0; i < values.size() / each; ++i) {
    const auto token = static_cast<size_t>(order.data<int64_t>()[i % tokens]);
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(i * each), each,
                sorted.begin() + static_cast<ptrdiff_t>((i - i % tokens + token) * each));
  }
  return sorted;
}

}  // namespace

train::Config with_experts(const ExpertModel& model, const Degrees& degrees, DType compute,
                           Mode mode, const std::string& dump_folder) {
  train::Config c = dense(model.family, degrees, compute, mode, dump_folder);
  config::MoeConfig moe{.num_experts = model.experts,
                        .top_k = kTopK,
                        .moe_inter_dim = 10,
                        .load_balance_coeff = 1e-3};
  if (model.family == "qwen3") {
    moe.route_norm = true;
    moe.balance_loss_coeff = 1e-2;
    auto& qwen = c.model.as<qwen3::Config>();
    qwen.moe = moe;
    // Heads of size 2 are now and then nearly zero: their norm blows up what rounding left.
    qwen.norm_eps = 1e-4;
  } else {
    c.model.as<llama4::Config>().moe = moe;
  }
  c.training.local_batch_size = kRows / degrees.data_parts();
  c.training.seq_len = kLength;
  if (degrees.padded)
    c.parallelism.expert_parallel_padding = static_cast<double>(model.experts) / kTopK;
  return c;
}

std::vector<Degrees> every_mesh_of(int ranks, int64_t experts) {
  constexpr nn::LoadBalancer balancers[] = {nn::LoadBalancer::none, nn::LoadBalancer::head_tail,
                                            nn::LoadBalancer::round_robin};
  size_t balanced = 0, padded = 0;
  std::vector<Degrees> all;
  for (Degrees d : dense_meshes(ranks)) {
    for (d.ep = 1; d.ep <= ranks; ++d.ep) {
      for (d.etp = 1; d.etp <= d.tp; ++d.etp) {
        const nn::ExpertParallel wish{.degree = d.ep, .tensor_degree = d.etp};
        const bool legal = nn::expert_parallel_fault(wish, d.shard * d.cp, d.tp).empty();
        if (!legal || experts % d.ep != 0 || (d.ep == 1 && d.etp > 1)) continue;
        all.push_back(d);
        // Take turns, apart from those of the methods.
        all.back().padded = d.ep > 1 && padded++ % 2 == 1;
        if (d.cp > 1) all.back().balancer = balancers[balanced++ % std::size(balancers)];
      }
    }
  }
  return all;
}

RoutedOutcome routed(const train::Config& config, const Degrees& degrees) {
  RoutedOutcome result;
  result.margin = std::numeric_limits<double>::infinity();
  const auto watch = [&](models::LanguageModel& model, int64_t step) {
    if (step == 0) widen_gates(model, static_cast<uint64_t>(config.debug.seed));
    if (config.parallelism.pipelines()) return;
    Context& context = Context::current();
    auto& choices = context.state<Choices>().all;
    if (step == 0) {
      context.op_hook = [&choices](const OpRow& row, const void*, Tensors in, Tensors out) {
        if (row.name == "topk") choices.push_back({in[0], out[1]});
      };
      return;
    }
    const size_t routers = routers_of(model);
    ASSERT_GE(choices.size(), routers);
    const Tensor order = order_of(model, config);
    for (size_t i = 0; i < routers; ++i) {
      const std::vector<double> scores = trial::whole_values(choices[i].scores),
                                ids = trial::whole_values(choices[i].ids);
      if (World::current().rank() != 0) continue;
      result.margin = std::min(result.margin, least_margin(scores, choices[i].scores.shape()[2]));
      result.ids.push_back(in_order(ids, order));
    }
    choices.clear();
  };
  static_cast<Outcome&>(result) = trained(config, degrees, watch);
  return result;
}

int64_t seed_with_margin(train::Config config, double margin, int64_t first) {
  const int64_t last = first + 1000;
  for (config.debug.seed = first; config.debug.seed < last; ++config.debug.seed)
    if (routed(config, {}).margin > margin) return config.debug.seed;
  fail<ValueError>("seed_with_margin", "no seed from ", first, " to ", last, " has a margin of ",
                   margin, "; make the gates wider");
}

}  // namespace tessera::mesh_tests

// SPDX-License-Identifier: Apache-2.0
// A mixture on meshes against one rank, in f64: results, gradients, load, and what is sent, with
// sizes that no axis divides and ranks without tokens.
#include "tessera/nn/parallel/expert_parallel.h"

#include "tessera/core/message.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/one_hot/one_hot.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/gradients.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::nn {
namespace {

using test::on_ranks;

constexpr int64_t kDim = 6;

MoE::Config config(int64_t experts, int64_t top_k, int64_t shared = 1) {
  MoE::Config c;
  c.router = {.dim = kDim, .experts = experts, .top_k = top_k, .dtype = DType::f64};
  c.router.gate = c.gate = c.output = Init::normal(0.5);
  c.router.route_norm = top_k > 1;
  c.router.balance_loss = 0.01;
  c.hidden = 5;
  c.shared_experts = shared;
  return c;
}

// x + moe(x), the first of a model's units.
class Net final : public Layer<Net> {
 public:
  explicit Net(const MoE::Config& c) : moe(c) {}
  void visit(Visitor& visitor) override { visitor.child("moe", moe); }
  MoE moe;

 private:
  friend class Layer<Net>;
  [[nodiscard]] MoEResult forward(const Tensor& x, const AttentionMetadata& metadata = {}) const {
    const MoEResult r = moe(x, metadata.padding);
    return {x + r.y, r.load, r.sums};
  }
};

struct Degrees {
  int replicate = 1, shard = 1, tp = 1, ep = 1, etp = 1;
  [[nodiscard]] int ranks() const { return replicate * shard * tp; }
};
std::ostream& operator<<(std::ostream& os, const Degrees& d) {
  return os << "dp_replicate " << d.replicate << ", dp_shard " << d.shard << ", tp " << d.tp
            << ", ep " << d.ep << ", etp " << d.etp;
}

struct Setting {
  Degrees degrees = {};
  MoE::Config moe = config(8, 2);
  Shape shape = {5, 7, kDim};  // of x
  bool sequence_parallel = true, ddp = false;
  bool skewed = false;  // most tokens choose the first experts
  double padding = 0;
  bool short_rows = false;  // the last places of each row hold no token
  ActivationCheckpointConfig checkpoint = {};
  MixedPrecision precision = {};
};
std::ostream& operator<<(std::ostream& os, const Setting& s) {
  return os << s.degrees << ", x " << s.shape << ", " << s.moe.router.experts << " experts, top "
            << s.moe.router.top_k << ", " << s.moe.shared_experts << " shared"
            << (s.moe.shared_gate ? " with a gate" : "")
            << (s.moe.score_before_experts ? ", score before" : "")
            << (s.moe.router.capacity_factor > 0 ? ", capacity" : "")
            << (s.sequence_parallel ? "" : ", whole sequences") << (s.ddp ? ", replicate" : "")
            << (s.skewed ? ", skewed" : "") << ", padding " << s.padding
            << (s.short_rows ? ", short rows" : "") << ", checkpoint "
            << static_cast<int>(s.checkpoint.mode);
}

Mesh dense_mesh(const Degrees& d) {
  return Mesh::make({{"dp_replicate", d.replicate}, {"dp_shard", d.shard}, {"tp", d.tp}});
}

// All passes, in the order of a trainer.
void parallelize(Net& net, Mesh mesh, const Setting& s) {
  const Degrees& d = s.degrees;
  TensorParallelPlan plan{.options = {.sequence_parallel = s.sequence_parallel,
                                      .expert_parallel = d.ep > 1 && d.etp != d.tp}};
  add_mixture(plan, "moe", s.moe.shared_experts > 0);
  tensor_parallel(net, mesh, plan);
  if (d.ep > 1 || s.padding > 0) {
    expert_parallel(net, mesh, {.degree = d.ep, .tensor_degree = d.etp, .padding = s.padding});
  }
  Module* const unit = &net;
  apply_activation_checkpoint({&unit, 1}, s.checkpoint);
  if (s.ddp) {
    replicate_experts(net, "dp_replicate", {.precision = s.precision});
    replicate(net, mesh, "dp_replicate", {.precision = s.precision});
  } else {
    fully_shard_experts(net, {"dp_replicate"}, {.precision = s.precision});
    fully_shard(net, mesh, {{"dp_shard"}, {"dp_replicate"}}, {.precision = s.precision});
  }
}

void fill(Net& net, const Setting& s, const LayoutOf& layouts = {}) {
  if (layouts) initialize(net, 5, layouts);
  else initialize(net, 5);
  if (!net.moe.expert_bias.defined()) return;
  std::vector<double> bias(static_cast<size_t>(s.moe.router.experts), 0);
  if (s.skewed) bias[0] = bias[1] = 0.7;
  copy_values(net.moe.expert_bias, from_values(bias, {s.moe.router.experts}, DType::f64));
}

// y, load, sums and every gradient, of r = f(x).
test::Values results(Net& net, const MoEResult& r, const Tensor& x, const Tensor& dy) {
  backward(sum(r.y * dy) + sum(r.sums));
  test::Values all{{"y", trial::whole_values(r.y)},
                   {"load", trial::whole_values(r.load)},
                   {"sums", trial::whole_values(r.sums)},
                   {"x", trial::whole_values(x.grad())}};
  for (const NamedParameter& p : named_parameters(net)) {
    const Tensor g = p.tensor.grad();
    if (g.is_distributed()) {
      EXPECT_EQ(layout_of(g), layout_of(p.tensor)) << p.name;
    }
    all[p.name] = trial::whole_values(g);
  }
  return all;
}

// Row b has 2 / 3 of its places filled, less b. Padding lies as rows of a batch do.
AttentionMetadata metadata_of(const Setting& s, Mesh mesh = {}) {
  if (!s.short_rows) return {};
  std::vector<double> marks;
  for (int64_t b = 0; b < s.shape[0]; ++b)
    for (int64_t t = 0; t < s.shape[1]; ++t) marks.push_back(t < s.shape[1] * 2 / 3 - b ? 0 : 1);
  const Tensor padding =
      cast(from_values(marks, {s.shape[0], s.shape[1]}, DType::f64), DType::bool_);
  if (!mesh) return {.padding = padding};
  return {.padding = distribute(padding, Layout::of(mesh, {Shard(0), Shard(0), Replicate()}))};
}

test::Values on_one(const Setting& s) {
  Net net(s.moe);
  fill(net, s);
  const Tensor x = trial::variable(trial::numbers(s.shape, 1));
  return results(net, net(x, metadata_of(s)), x, trial::numbers(s.shape, 3));
}

// x and dy as they come to a layer.
Layout stream(Mesh mesh, const Setting& s) {
  return Layout::of(mesh, {Shard(0), Shard(0), s.sequence_parallel ? Shard(1) : Replicate()});
}

test::Values on_mesh(const Setting& s) {
  const Mesh mesh = dense_mesh(s.degrees);
  Net net(s.moe);
  parallelize(net, mesh, s);
  fill(net, s, laid_out(net, mesh));
  const Layout lies = stream(mesh, s);
  const Tensor x = trial::variable(trial::numbers(s.shape, 1), lies);
  return results(net, net(x, metadata_of(s, mesh)), x,
                 distribute(trial::numbers(s.shape, 3), lies));
}

void expect_one_rank(const Setting& s) {
  on_ranks(s.degrees.ranks(), [&](World& world) {
    const test::Values got = on_mesh(s), want = on_one(s);
    if (world.rank() == 0) (void)test::expect_same_gradients(got, want, 1e-10, concat(s));
  });
}

// Every way to give n ranks to the axes.
std::vector<Degrees> factorisations(int n) {
  std::vector<Degrees> all;
  for (int replicate = 1; replicate <= n; ++replicate) {
    for (int shard = 1; shard <= n / replicate; ++shard) {
      if (n % (replicate * shard) != 0) continue;
      const int tp = n / replicate / shard;
      for (int ep = 1; ep <= shard * tp; ++ep) {
        for (const int etp : {1, tp}) {
          if (expert_parallel_fault({.degree = ep, .tensor_degree = etp}, shard, tp).empty())
            all.push_back({replicate, shard, tp, ep, etp});
          if (tp == 1) break;
        }
      }
    }
  }
  return all;
}

test::Dice printed_dice(int ranks) {
  unsigned seed = 0;
  on_ranks(ranks, [&](World& world) {
    const unsigned shared = test::shared_seed(world);
    if (world.rank() == 0) std::cout << "TESSERA_TEST_SEED=" << (seed = shared) << '\n';
  });
  return test::Dice(seed);
}

// Settings of each factorisation, once with 8 experts and once with 6, the others drawn by chance.
std::vector<Setting> drawn_settings(int ranks, test::Dice& dice) {
  std::vector<Setting> all;
  for (const Degrees& d : factorisations(ranks)) {
    for (const int64_t experts : {8, 6}) {
      if (experts % d.ep != 0) continue;
      Setting s{.degrees = d, .moe = config(experts, 1 + dice.below(2), dice.below(3))};
      s.moe.shared_gate = s.moe.shared_experts > 0 && dice.below(2) == 0;
      s.moe.score_before_experts = dice.below(3) == 0;
      s.moe.balance = s.skewed = dice.below(2) == 0;
      s.moe.router.capacity_factor = dice.below(4) == 0 ? 1.1 : 0;
      s.shape = {1 + dice.below(6), 1 + dice.below(9), kDim};
      s.sequence_parallel = dice.below(3) > 0;
      s.ddp = d.shard == 1 && dice.below(2) == 0;
      s.short_rows = dice.below(3) == 0;
      using Mode = ActivationCheckpointConfig::Mode;
      s.checkpoint.mode =
          std::array{Mode::none, Mode::full, Mode::selective}[static_cast<size_t>(dice.below(3))];
      all.push_back(s);
    }
  }
  return all;
}

// A third with padding that holds every row.
void expect_one_rank_on(int ranks) {
  test::Dice dice = printed_dice(ranks);
  for (Setting& s : drawn_settings(ranks, dice)) {
    if (s.degrees.ep > 1 && dice.below(3) == 0) {
      s.padding =
          static_cast<double>(s.moe.router.experts) / static_cast<double>(s.moe.router.top_k);
    }
    expect_one_rank(s);
  }
}

TEST(ExpertParallel, EveryFactorisationGivesWhatOneRankGives) {
  for (const int ranks : {1, 2, 3, 4}) expect_one_rank_on(ranks);
}

TEST(ExpertParallelSix, EveryFactorisationGivesWhatOneRankGives) { expect_one_rank_on(6); }

TEST(ExpertParallelEight, EveryFactorisationGivesWhatOneRankGives) { expect_one_rank_on(8); }

// The gate's results are whole on the tensor axis, what they scale is a sum over it or cut.
TEST(ExpertParallel, TheGateOfSharedExpertsIsThatOfOneRank) {
  for (const Degrees& d : {Degrees{1, 1, 2, 1, 1}, Degrees{1, 1, 2, 2, 1}, Degrees{1, 2, 2, 2, 2},
                           Degrees{2, 1, 2, 2, 1}}) {
    for (const bool sequence_parallel : {true, false}) {
      Setting s{.degrees = d, .sequence_parallel = sequence_parallel};
      s.moe.shared_hidden = 7;
      s.moe.shared_gate = true;
      expect_one_rank(s);
      s.ddp = d.shard == 1;
      s.padding = d.ep > 1 ? 4 : 0;  // room for all
      expect_one_rank(s);
    }
  }
}

// Ranks without tokens of their own, and ranks whose experts nobody chooses.
TEST(ExpertParallel, RanksWithoutRowsTakePart) {
  for (const int64_t top_k : {1, 2}) {
    Setting s{.degrees = {1, 4, 1, 4}, .moe = config(8, top_k), .shape = {1, 3, kDim}};
    s.moe.balance = s.skewed = true;
    expect_one_rank(s);
    s.degrees = {1, 2, 2, 4};
    expect_one_rank(s);
    s.shape = {0, 3, kDim};
    on_ranks(4, [&](World&) { EXPECT_EQ(on_mesh(s).at("y").size(), 0u); });
  }
}

// What one step of x + moe(x) sends, and how often.
std::map<std::string, int> sent(const Setting& s) {
  std::map<std::string, int> counts;
  on_ranks(s.degrees.ranks(), [&](World& world) {
    const CommTrace trace;
    const Mesh mesh = dense_mesh(s.degrees);
    Net net(s.moe);
    parallelize(net, mesh, s);
    fill(net, s, laid_out(net, mesh));
    const Layout lies = stream(mesh, s);
    const Tensor x = trial::variable(trial::numbers(s.shape, 1), lies);
    const Tensor dy = distribute(trial::numbers(s.shape, 3), lies);
    const MoEResult r = net(x);
    backward(sum(r.y * dy) + sum(r.sums));
    if (world.rank() != 0) return;
    for (const CommEntry& e : trace.entries()) ++counts[concat(e.op, ' ', e.axes, ' ', e.tag)];
  });
  return counts;
}

TEST(ExpertParallel, CheckpointsKeepTheExchangesOrDoThemAgain) {
  using Mode = ActivationCheckpointConfig::Mode;
  // Counts, rows there and rows back; backward rows back and there.
  for (const auto& [mode, forward] :
       {std::pair{Mode::none, 3}, std::pair{Mode::selective, 3}, std::pair{Mode::full, 6}}) {
    Setting s{.degrees = {1, 2, 1, 2}};
    s.checkpoint.mode = mode;
    const auto counts = sent(s);
    int all = 0;
    for (const auto& [name, n] : counts) all += name.starts_with("all_to_all ep") ? n : 0;
    EXPECT_EQ(all, forward + 2);
  }
}

TEST(ExpertParallel, SendsWhatTheTableSays) {
  using Counts = std::map<std::string, int>;
  const auto of = [](const Degrees& d, bool sequence_parallel = true, bool shared_gate = false) {
    Setting s{.degrees = d, .sequence_parallel = sequence_parallel};
    s.moe.router.balance_loss = 0;
    s.moe.shared_gate = shared_gate;
    return sent(s);
  };
  const Counts exchanges{{"all_to_all ep forward", 3}, {"all_to_all ep grad", 2}},
      shards{{"all_gather dp_shard forward", 1}, {"reduce_scatter dp_shard grad", 1}};
  const auto with = [&](Counts counts) {
    counts.insert(exchanges.begin(), exchanges.end());
    counts.insert(shards.begin(), shards.end());
    return counts;
  };
  EXPECT_EQ(of({1, 2, 1, 2}), with({}));
  // Fewer ranks of ep than of data: experts are a unit of their own. With replicas it has a sum.
  EXPECT_EQ(of({1, 4, 1, 2}),
            with({{"all_gather efsdp forward", 1}, {"reduce_scatter efsdp grad", 1}}));
  EXPECT_EQ(of({2, 2, 1, 2}), with({{"all_reduce dp_replicate grad", 2}}));
  // Whole experts: tokens travel as they are cut, and the shared experts alone gather them. The
  // gradient of the gate is a sum over tp.
  const Counts around{{"all_gather tp forward", 1},
                      {"reduce_scatter tp forward", 1},
                      {"all_gather tp grad", 1},
                      {"reduce_scatter tp grad", 1},
                      {"all_reduce tp grad", 1}};
  EXPECT_EQ(of({1, 2, 2, 4, 1}), with(around));
  // Experts cut over tp: tokens are gathered once for routed and shared experts, whose results are
  // summed once. The same without ep.
  EXPECT_EQ(of({1, 2, 2, 2, 2}), with(around));
  Counts local = around;
  local.insert(shards.begin(), shards.end());
  EXPECT_EQ(of({1, 2, 2, 1, 1}), local);
  // A gate of the shared experts scales sums before they are reduced.
  EXPECT_EQ(of({1, 2, 2, 1, 1}, true, true), local);
  EXPECT_EQ(of({1, 2, 2, 4, 1}, true, true), with(around));
}

// The exchange of rows is launched, then the shared experts run, then the experts, who wait.
TEST(ExpertParallel, TheSharedExpertsRunWhileRowsTravel) {
  on_ranks(2, [](World&) {
    const Setting s{.degrees = {1, 2, 1, 2}};
    const Mesh mesh = dense_mesh(s.degrees);
    Net net(s.moe);
    parallelize(net, mesh, s);
    fill(net, s, laid_out(net, mesh));
    const Tensor x = distribute(trial::numbers(s.shape, 1), stream(mesh, s));
    std::vector<std::string> order;
    Context& context = Context::current();
    context.op_hook = [&](const OpRow& row, const void*, Tensors, Tensors) {
      std::string what(row.name);
      if (joined_path(context.module_path).find("shared_experts") != std::string::npos)
        what = "shared";
      const bool known = what == "exchange_rows" || what == "shared" || what == "grouped_mm";
      if (known && (what == "exchange_rows" || order.empty() || order.back() != what))
        order.push_back(what);
    };
    (void)net(x);
    context.op_hook = {};
    const std::vector<std::string> want{"exchange_rows", "exchange_rows", "shared", "grouped_mm",
                                        "exchange_rows"};
    EXPECT_EQ(order, want);
  });
}

// Computed in bf16 under all three parallelisms: what a tensor says of its dtype is what its bytes
// are, at each product of groups, in forward and in backward.
TEST(ExpertParallel, DTypesAreThoseOfTheBytes) {
  for (const int etp : {1, 2}) {
    Setting s{.degrees = {1, 2, 2, 2, etp}};
    s.moe.router.dtype = DType::f32;
    s.precision = {.param = DType::bf16, .reduce = DType::f32};
    on_ranks(4, [&](World&) {
      const Mesh mesh = dense_mesh(s.degrees);
      Net net(s.moe);
      parallelize(net, mesh, s);
      initialize(net, 5, laid_out(net, mesh));
      int products = 0;
      Context::current().op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors out) {
        if (!row.name.starts_with("grouped_")) return;
        ++products;
        for (const Tensor& t : {in[0], in[1], out[0]}) {
          EXPECT_EQ(t.dtype(), DType::bf16);
          EXPECT_EQ((t.is_distributed() ? local(t) : t).dtype(), t.dtype());
        }
      };
      const Tensor x = trial::variable(trial::numbers(s.shape, 1, DType::f32), stream(mesh, s));
      const MoEResult r = net(x);
      backward(sum(r.y));
      Context::current().op_hook = {};
      EXPECT_EQ(products, 9);
      for (const NamedParameter& p : named_parameters(net)) {
        EXPECT_EQ(p.tensor.grad().dtype(), DType::f32) << p.name;
        EXPECT_EQ(local(p.tensor.grad()).dtype(), DType::f32) << p.name;
      }
    });
  }
}

// Counts of rows are data: plans are made in the first step, whatever it routes.
TEST(ExpertParallel, CountsThatVaryNeedNoNewPlans) {
  on_ranks(4, [](World& world) {
    const Setting s{.degrees = {1, 2, 2, 4}};
    const Mesh mesh = dense_mesh(s.degrees);
    Net net(s.moe);
    parallelize(net, mesh, s);
    fill(net, s, laid_out(net, mesh));
    size_t plans = 0;
    std::set<std::vector<double>> loads;
    for (int step = 0; step < 10; ++step) {
      const Tensor x = trial::variable(trial::numbers(s.shape, 5 * step), stream(mesh, s));
      const MoEResult r = net(x);
      backward(sum(r.y * r.y) + sum(r.sums));
      net.zero_grad();
      loads.insert(local(r.load).values());
      if (step > 4) {  // what is under way when ranks meet chooses plans too, in the first steps
        EXPECT_EQ(world.planner().counts().plans, plans) << step;
      }
      plans = world.planner().counts().plans;
    }
    EXPECT_GT(loads.size(), 5u);
  });
}

TEST(ExpertParallel, FaultsAreNamedBeforeAnyGroupIsMade) {
  const auto fault = [](const Degrees& d, const MoE::Config& c, bool plan_cuts) {
    std::string text;
    on_ranks(d.ranks(), [&](World& world) {
      const Mesh mesh = dense_mesh(d);
      Net net(c);
      TensorParallelPlan plan{.options = {.expert_parallel = !plan_cuts}};
      add_mixture(plan, "moe", true);
      tensor_parallel(net, mesh, plan);
      const CommTrace trace;
      const std::string error = trial::error_of<UsageError>(
          [&] { expert_parallel(net, mesh, {.degree = d.ep, .tensor_degree = d.etp}); });
      EXPECT_EQ(trace.count(), 0);
      if (world.rank() == 0) text = error;
    });
    return text;
  };
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(fault({1, 4, 1, 3, 1}, config(6, 2), true),
         "expert_parallel_degree 3 does not divide the 4 ranks of data_parallel_shard_degree x "
         "context_parallel_degree");
  expect(fault({2, 1, 2, 4, 1}, config(8, 2), false),
         "does not divide the 2 ranks of data_parallel_shard_degree x context_parallel_degree x "
         "tensor_parallel_degree");
  expect(fault({1, 4, 1, 4, 1}, config(6, 2), true), "does not divide the 6 experts of a layer");
  EXPECT_EQ(expert_parallel_fault({.degree = 2, .padding = -0.5}, 2, 1),
            "expert_parallel_padding -0.5: expected a factor above 0, or 0 for no padding");
  expect(fault({1, 1, 4, 2, 2}, config(8, 2), false),
         "expert_tensor_parallel_degree 2: expected 1, or tensor_parallel_degree 4");
  expect(fault({1, 2, 2, 2, 1}, config(8, 2), true),
         "the plan of tensor parallelism cut the experts of moe");
  expect(fault({1, 2, 2, 2, 2}, config(8, 2), false),
         "the plan of tensor parallelism left whole the experts of moe");
  on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"tp", 1}, {"dp_shard", 2}});
    Net net(config(8, 2));
    EXPECT_THROW(expert_parallel(net, mesh, {.degree = 2}), UsageError);
    const Mesh dense = dense_mesh({1, 2, 1});
    fully_shard(net, dense, {{"dp_shard"}});
    EXPECT_THROW(expert_parallel(net, dense, {.degree = 2}), UsageError);
  });
}

// --- padding: fixed sizes, and drops -------------------------------------------------------------------------------

// Which rank routes each token of x: those of a rank have one number.
std::vector<int64_t> owners(Mesh mesh, const Setting& s) {
  const bool cut = s.degrees.etp != s.degrees.tp || s.degrees.tp == 1;
  const Layout own = Layout::of(mesh, {Shard(0), Shard(0), cut ? Shard(1) : Replicate()});
  std::vector<int64_t> numbers(static_cast<size_t>(s.shape[0] * s.shape[1]));
  const int ranks = s.degrees.ranks(), tp = s.degrees.tp, shard = s.degrees.shard;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::array coordinates{rank / tp / shard, rank / tp % shard, rank % tp};
    const auto rows = own.range_at(coordinates, s.shape, 0),
               columns = own.range_at(coordinates, s.shape, 1);
    for (int64_t b = rows.begin; b < rows.begin + rows.size; ++b) {
      for (int64_t t = columns.begin; t < columns.begin + columns.size; ++t)
        numbers[static_cast<size_t>(b * s.shape[1] + t)] = rank;
    }
  }
  return numbers;
}

// 1 for each choice (tokens, top_k) that finds a place: an expert takes the first of each owner.
std::vector<double> kept(const std::vector<double>& ids, const std::vector<int64_t>& owner,
                         const Setting& s) {
  const auto top_k = static_cast<size_t>(s.moe.router.top_k);
  std::map<int64_t, int64_t> tokens;
  for (const int64_t o : owner) ++tokens[o];
  int64_t most = 0;
  for (const auto& [o, n] : tokens) most = std::max(most, n);
  const double even =
      static_cast<double>(most * s.moe.router.top_k) / static_cast<double>(s.moe.router.experts);
  std::map<std::pair<int64_t, double>, double> taken;  // by owner and expert
  std::vector<double> keep;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool has_expert = ids[i] < static_cast<double>(s.moe.router.experts);
    keep.push_back(has_expert &&
                   ++taken[{owner[i / top_k], ids[i]}] <= std::ceil(s.padding * even));
  }
  return keep;
}

// One rank that drops what the ranks of a mesh drop: each expert for every token, times a share
// that is zero where it has not the token.
test::Values on_one_with_drops(const Setting& s, const std::vector<int64_t>& owner) {
  const int64_t experts = s.moe.router.experts, top_k = s.moe.router.top_k,
                tokens = s.shape[0] * s.shape[1];
  Net net(s.moe);
  fill(net, s);
  const MoE& m = net.moe;
  const Tensor x = trial::variable(trial::numbers(s.shape, 1)), rows = reshape(x, {tokens, kDim});
  const Routing routing = m.router(x, m.expert_bias, metadata_of(s).padding);
  const Tensor ids = reshape(routing.experts, {tokens, top_k});
  const Tensor keep = from_values(kept(ids.values(), owner, s), {tokens, top_k}, DType::f64);
  const Tensor taken = slice(one_hot(ids, experts + 1, DType::f64), 2, {0, experts}) *
                       unsqueeze(keep, -1);  // (tokens, top_k, experts)
  const Tensor share = sum(unsqueeze(reshape(routing.scores, {tokens, top_k}), -1) * taken, {1});
  Tensor y = zeros({tokens, kDim}, DType::f64);
  for (int64_t e = 0; e < experts; ++e) {
    const Tensor one = slice(share, 1, {e, e + 1}),
                 in = s.moe.score_before_experts ? rows * one : rows;
    const Tensor hidden =
        swiglu(linear(in, select(m.experts.w1, 0, e)), linear(in, select(m.experts.w3, 0, e)));
    const Tensor out = linear(hidden, select(m.experts.w2, 0, e));
    y = y + (s.moe.score_before_experts ? out : out * one);
  }
  y = x + reshape(y, s.shape);
  if (m.shared_experts) {
    const Tensor shared = (*m.shared_experts)(x);
    y = y + (m.shared_expert_gate ? shared * sigmoid((*m.shared_expert_gate)(x)) : shared);
  }
  const Tensor load = stack({select(routing.load, 0, 0), cast(sum(taken, {0, 1}), DType::i64)});
  return results(net, {y, load, routing.sums}, x, trial::numbers(s.shape, 3));
}

// How many rows a mesh drops; on_one_with_drops drops the same.
double expect_same_drops(const Setting& s) {
  double dropped = 0;
  on_ranks(s.degrees.ranks(), [&](World& world) {
    const test::Values got = on_mesh(s),
                       want = on_one_with_drops(s, owners(dense_mesh(s.degrees), s));
    if (world.rank() != 0) return;
    EXPECT_EQ(got.at("load"), want.at("load")) << s;
    (void)test::expect_same_gradients(got, want, 1e-10, concat(s));
    const std::vector<double>& load = want.at("load");
    for (size_t e = 0; e < load.size() / 2; ++e) dropped += load[e] - load[load.size() / 2 + e];
  });
  return dropped;
}

// In the short form a third of the factorisations of 4, 6 and 8 ranks.
TEST(PaddedExperts, DropWhatFindsNoPlace) {
  double dropped = 0;
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    test::Dice dice = printed_dice(ranks);
    for (Setting& s : drawn_settings(ranks, dice)) {
      if (s.degrees.ep == 1 && s.degrees.tp > 1) continue;  // experts do not travel
      if (ranks > 3 && !test::long_form() && dice.below(3) > 0) continue;
      s.padding = std::array{0.25, 0.5, 1.0, 1.5}[static_cast<size_t>(dice.below(4))];
      dropped += expect_same_drops(s);
    }
  }
  EXPECT_GT(dropped, 0);
}

// An expert has room for 6 tokens of a rank: of 9 places that hold tokens, or only 6.
TEST(PaddedExperts, PlacesWithoutATokenTakeNoRoom) {
  Setting s{.degrees = {1, 2, 1, 2}, .shape = {2, 9, kDim}, .padding = 2.5};
  s.moe.balance = s.skewed = true;
  EXPECT_GT(expect_same_drops(s), 0);
  s.short_rows = true;
  EXPECT_EQ(expect_same_drops(s), 0);
}

TEST(PaddedExperts, RanksWithoutRowsTakePart) {
  Setting s{.degrees = {1, 4, 1, 4}, .shape = {1, 9, kDim}, .padding = 0.5};
  s.moe.balance = s.skewed = true;
  EXPECT_GT(expect_same_drops(s), 0);
  s.shape = {0, 3, kDim};
  on_ranks(4, [&](World&) { EXPECT_EQ(on_mesh(s).at("y").size(), 0u); });
}

// Whatever routers say: the same ops on the same shapes, the same bytes, and rows alone travel.
TEST(PaddedExperts, SizesDoNotDependOnValues) {
  const Setting s{.degrees = {1, 2, 2, 4}, .padding = 1.25};
  on_ranks(4, [&](World&) {
    const Mesh mesh = dense_mesh(s.degrees);
    Net net(s.moe);
    parallelize(net, mesh, s);
    fill(net, s, laid_out(net, mesh));
    std::set<std::vector<double>> loads;
    std::set<std::string> steps;
    const auto step = [&](int salt) {
      std::string done;
      const CommTrace trace;
      Context::current().op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors out) {
        done += row.name;
        for (const Tensors list : {in, out}) {
          for (const Tensor& t : list) done += t.defined() ? concat(' ', t.meta()) : " none";
        }
        done += '\n';
      };
      const Tensor x = trial::variable(trial::numbers(s.shape, 5 * salt), stream(mesh, s));
      const MoEResult r = net(x);
      backward(sum(r.y * r.y) + sum(r.sums));
      net.zero_grad();
      Context::current().op_hook = {};
      EXPECT_EQ(trace.count("all_to_all", "forward"), 2);
      EXPECT_EQ(trace.count("all_to_all", "grad"), 2);
      // At most 12 tokens of a rank, twice each: 4 places for each of 8 experts.
      EXPECT_EQ(trace.bytes("all_to_all"), 4 * 8 * 4 * kDim * 8);
      steps.insert(done + trace.table());
      loads.insert(local(r.load).values());
    };
    for (int i = 0; i < 6; ++i) {
      step(i);
      if (i == 0) steps.clear();  // gathers for the first time
    }
    EXPECT_GT(loads.size(), 3u);
    EXPECT_EQ(steps.size(), 1u);
  });
}

// Bytes of a meta tensor cannot be read.
TEST(PaddedExperts, NothingIsReadOnTheHost) {
  const Setting s{.degrees = {1, 2, 1, 2}, .padding = 1.25};
  run_fake(2, 0, [&](World&) {
    const Mesh mesh = dense_mesh(s.degrees);
    Net net(s.moe);
    parallelize(net, mesh, s);
    const Tensor whole = empty(s.shape, DType::f64, kMeta);
    const Tensor x = distribute(whole, stream(mesh, s)).set_requires_grad();
    const MoEResult r = net(x);
    backward(sum(r.y) + sum(r.sums));
    EXPECT_EQ(x.grad().shape(), s.shape);
  });
}

}  // namespace
}  // namespace tessera::nn

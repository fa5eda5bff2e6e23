// SPDX-License-Identifier: Apache-2.0
// A mixture on meshes against one rank, in f64: results, gradients, load, and what is sent, with
// sizes that no axis divides and ranks without tokens.
#include "tessera/nn/parallel/expert_parallel.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/gradients.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <optional>

namespace tessera::nn {
namespace {

using test::on_ranks;
using trial::error_of;

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
  [[nodiscard]] MoEResult forward(const Tensor& x) const {
    const MoEResult r = moe(x);
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
  ActivationCheckpointConfig checkpoint = {};
};

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
  if (d.ep > 1) expert_parallel(net, mesh, {.degree = d.ep, .tensor_degree = d.etp});
  Module* const unit = &net;
  apply_activation_checkpoint({&unit, 1}, s.checkpoint);
  if (s.ddp) {
    replicate_experts(net, "dp_replicate");
    replicate(net, mesh, "dp_replicate");
  } else {
    fully_shard_experts(net, {"dp_replicate"});
    fully_shard(net, mesh, {{"dp_shard"}, {"dp_replicate"}});
  }
}

struct Outcome {
  test::Values values;  // of y, sums, load and every gradient
};

Outcome outcome(Net& net, const Tensor& x, const Tensor& dy) {
  const MoEResult r = net(x);
  backward(sum(r.y * dy) + sum(r.sums));
  Outcome o;
  o.values["y"] = trial::whole_values(r.y);
  o.values["load"] = trial::whole_values(r.load);
  o.values["sums"] = trial::whole_values(r.sums);
  o.values["x"] = trial::whole_values(x.grad());
  for (const NamedParameter& p : named_parameters(net))
    o.values[p.name] = trial::whole_values(p.tensor.grad());
  return o;
}

Outcome on_one(const Setting& s) {
  Net net(s.moe);
  initialize(net, 5);
  return outcome(net, trial::variable(trial::numbers(s.shape, 1)), trial::numbers(s.shape, 3));
}

// x and dy as they come to a layer.
Layout stream(Mesh mesh, const Setting& s) {
  return Layout::of(mesh, {Shard(0), Shard(0), s.sequence_parallel ? Shard(1) : Replicate()});
}

Outcome on_mesh(const Setting& s) {
  const Mesh mesh = dense_mesh(s.degrees);
  Net net(s.moe);
  parallelize(net, mesh, s);
  initialize(net, 5, laid_out(net, mesh));
  const Layout lies = stream(mesh, s);
  return outcome(net, trial::variable(trial::numbers(s.shape, 1), lies),
                 distribute(trial::numbers(s.shape, 3), lies));
}

void expect_one_rank(const Setting& s) {
  std::ostringstream what;
  what << s.degrees << ", " << s.moe.router.experts << " experts, top " << s.moe.router.top_k
       << (s.sequence_parallel ? "" : ", whole sequences") << (s.ddp ? ", replicate" : "");
  SCOPED_TRACE(what.str());
  on_ranks(s.degrees.ranks(), [&](World& world) {
    const Outcome got = on_mesh(s), want = on_one(s);
    if (world.rank() == 0)
      (void)test::expect_same_gradients(got.values, want.values, 1e-10, what.str());
  });
}

TEST(ExpertParallel, TokensCutOverDataAxesAreSortedOnTheirOwnRanks) {
  for (const Degrees& d :
       {Degrees{1, 1, 1}, Degrees{1, 3, 1}, Degrees{2, 2, 1}, Degrees{1, 2, 2}}) {
    expect_one_rank({.degrees = d});
    expect_one_rank({.degrees = d, .sequence_parallel = false});
  }
}

TEST(ExpertParallel, ExpertsOnSomeRanksGiveWhatOneRankGives) {
  for (const Degrees& d : {Degrees{1, 2, 1, 2}, Degrees{1, 4, 1, 2}, Degrees{1, 2, 2, 4},
                           Degrees{1, 2, 2, 2, 2}, Degrees{1, 1, 4, 2}, Degrees{2, 2, 1, 2}}) {
    expect_one_rank({.degrees = d});
    expect_one_rank({.degrees = d, .sequence_parallel = false});
  }
}

}  // namespace
}  // namespace tessera::nn

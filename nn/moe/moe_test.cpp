// SPDX-License-Identifier: Apache-2.0
// The mixture against the formula: every expert for every token in f64, times a share that is zero
// where the token did not take it.
#include "tessera/nn/moe/moe.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/one_hot/one_hot.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::nn {
namespace {

using trial::expect_same;

constexpr int64_t kDim = 6, kExperts = 8;

MoE::Config config() {
  MoE::Config c;
  c.router = {.dim = kDim, .experts = kExperts, .top_k = 3, .dtype = DType::f64};
  c.router.gate = c.gate = c.output = Init::normal(0.5);
  c.hidden = 5;
  return c;
}

// Which experts the scores (T, E) and the bias choose, one token at a time.
std::vector<double> chosen(const MoE::Config& c, const Tensor& scores, const Tensor& bias) {
  const auto s = scores.values();
  const auto b = bias.defined() ? bias.values() : std::vector<double>(kExperts, 0);
  std::vector<double> experts;
  for (size_t t = 0; t < s.size() / kExperts; ++t) {
    std::vector<double> choice(kExperts);
    for (size_t e = 0; e < kExperts; ++e) choice[e] = s[t * kExperts + e] + b[e];
    if (c.router.groups > 0) {
      const size_t groups = static_cast<size_t>(c.router.groups), size = kExperts / groups;
      std::vector<std::pair<double, size_t>> sums;
      for (size_t g = 0; g < groups; ++g) {
        std::vector<double> own(choice.begin() + static_cast<int64_t>(g * size),
                                choice.begin() + static_cast<int64_t>((g + 1) * size));
        std::ranges::sort(own, std::greater());
        sums.emplace_back(-own[0] - own[1], g);
      }
      std::ranges::sort(sums);
      for (size_t g = static_cast<size_t>(c.router.limited_groups); g < groups; ++g) {
        for (size_t i = 0; i < size; ++i) choice[sums[g].second * size + i] = -INFINITY;
      }
    }
    std::vector<size_t> order(kExperts);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t i, size_t j) { return choice[i] > choice[j]; });
    for (size_t k = 0; k < static_cast<size_t>(c.router.top_k); ++k)
      experts.push_back(static_cast<double>(order[k]));
  }
  return experts;
}

MoEResult dense(const MoE& m, const MoE::Config& c, const Tensor& x) {
  const int64_t tokens = x.numel() / kDim;
  const Tensor rows = reshape(x, {tokens, kDim}), logits = linear(rows, m.router.gate.weight);
  const Tensor scores =
      c.router.score == Router::Score::sigmoid ? sigmoid(logits) : softmax(logits, -1);  // (T, E)
  const Tensor ids =
      from_values(chosen(c, scores.detach(), m.expert_bias), {tokens, c.router.top_k}, DType::i64);
  const Tensor taken = sum(one_hot(ids, kExperts, DType::f64), {1});  // (T, E) of 0 and 1
  Tensor share = scores * taken;
  if (c.router.route_norm) share = share / sum(share, {1}, true);
  share = share * c.router.route_scale;
  Tensor y = zeros({tokens, kDim}, DType::f64);
  for (int64_t e = 0; e < kExperts; ++e) {
    const Tensor one = slice(share, 1, {e, e + 1}), in = c.score_before_experts ? rows * one : rows;
    const Tensor out = linear(
        swiglu(linear(in, select(m.experts.w1, 0, e)), linear(in, select(m.experts.w3, 0, e))),
        select(m.experts.w2, 0, e));
    y = y + (c.score_before_experts ? out * slice(taken, 1, {e, e + 1}) : out * one);
  }
  y = reshape(y, x.shape());
  if (m.shared_experts) {
    const FeedForward& f = *m.shared_experts;
    Tensor shared = linear(swiglu(linear(x, f.w1.weight), linear(x, f.w3.weight)), f.w2.weight);
    if (c.shared_gate) shared = shared * sigmoid(linear(x, m.shared_expert_gate->weight));
    y = y + shared;
  }
  const Tensor load = expand(cast(sum(taken, {0}), DType::i64), {2, kExperts});
  return {y, load, zeros({3}, DType::f64)};
}

void expect_dense(const MoE::Config& c, const Shape& shape) {
  MoE m(c);
  initialize(m, 5);
  if (m.expert_bias.defined()) assign_(m.expert_bias, trial::numbers({kExperts}, 2) * 0.3);
  const Tensor x = trial::variable(trial::numbers(shape, 1)), dy = trial::numbers(shape, 3);
  std::vector<Tensor> inputs{x};
  for (const auto& p : named_parameters(m)) inputs.push_back(p.tensor);
  const MoEResult got = m(x), want = dense(m, c, x);
  expect_same(got.y, want.y);
  EXPECT_EQ(got.load.values(), want.load.values());
  const auto g = grad({got.y}, inputs, {.grad_outputs = {dy}}),
             want_g = grad({want.y}, inputs, {.grad_outputs = {dy}});
  for (size_t i = 0; i < g.size(); ++i) expect_same(g[i], want_g[i], 1e-11);
}

TEST(MoE, IsTheSumOverAllExperts) {
  const Session session;
  expect_dense(config(), {3, 7, kDim});
  MoE::Config c = config();
  c.router.score = Router::Score::softmax;
  c.router.route_norm = true;
  expect_dense(c, {17, kDim});
  c.router.route_scale = 2.5;
  c.balance = true;
  c.shared_experts = 2;
  expect_dense(c, {5, 4, kDim});
  c.router.groups = 4;
  c.router.limited_groups = 2;
  expect_dense(c, {23, kDim});
  c = config();
  c.score_before_experts = true;
  c.router.top_k = 1;
  expect_dense(c, {1, 9, kDim});
  c.router.top_k = kExperts;
  expect_dense(c, {1, kDim});
}

TEST(MoE, AGateScalesTheSharedExperts) {
  const Session session;
  MoE::Config c = config();
  c.router.score = Router::Score::softmax;
  c.shared_experts = 1;
  c.shared_hidden = 13;
  c.shared_gate = true;
  expect_dense(c, {3, 7, kDim});
  c.shared_experts = 0;  // the network's size says that there is one
  expect_dense(c, {1, kDim});
  const MoE m(c);
  EXPECT_EQ(m.shared_experts->w1.weight.shape(), (Shape{13, kDim}));
  EXPECT_EQ(m.shared_expert_gate->weight.shape(), (Shape{1, kDim}));
  c.shared_hidden = 0;
  EXPECT_EQ(test::error_of([&] { (void)MoE(c); }),
            "[moe] shared_gate without shared experts: give shared_experts or shared_hidden, or no "
            "gate");
}

// What a capacity drops adds nothing, in neither pass; a token may have lost all of its experts.
TEST(MoE, DroppedChoicesAddNothing) {
  const Session session;
  for (const bool before : {false, true}) {
    MoE::Config c = config();
    c.score_before_experts = before;
    c.router.route_norm = true;
    c.router.capacity_factor = 0.4;
    MoE m(c);
    initialize(m, 5);
    const Tensor x = trial::variable(trial::numbers({2, 11, kDim}, 1)),
                 dy = trial::numbers({2, 11, kDim}, 3);
    const Routing routing = m.router(x, Tensor());
    Tensor want = zeros({2, 11, kDim}, DType::f64);
    for (int64_t e = 0; e < kExperts; ++e) {
      const Tensor share =
          sum(masked_fill(routing.scores, routing.experts != e, 0), {-1}, true);  // (2, 11, 1)
      const Tensor in = before ? x * share : x;
      const Tensor out = linear(
          swiglu(linear(in, select(m.experts.w1, 0, e)), linear(in, select(m.experts.w3, 0, e))),
          select(m.experts.w2, 0, e));
      want = want + (before ? out : out * share);
    }
    const MoEResult got = m(x);
    const auto load = got.load.values();
    EXPECT_EQ(std::accumulate(load.begin(), load.begin() + kExperts, 0.0), 2 * 11 * 3);
    EXPECT_LT(std::accumulate(load.begin() + kExperts, load.end(), 0.0), 2 * 11 * 2);
    expect_same(got.y, want);
    std::vector<Tensor> inputs{x};
    for (const auto& p : named_parameters(m)) inputs.push_back(p.tensor);
    const auto g = grad({got.y}, inputs, {.grad_outputs = {dy}}),
               want_g = grad({want}, inputs, {.grad_outputs = {dy}});
    for (size_t i = 0; i < g.size(); ++i) expect_same(g[i], want_g[i], 1e-11);
  }
}

// A place without a token costs no expert anything, in neither pass.
TEST(MoE, PaddingGoesToNoExpert) {
  const Session session;
  for (const bool before : {false, true}) {
    MoE::Config c = config();
    c.score_before_experts = before;
    c.router.capacity_factor = before ? 0.4 : 0;
    c.router.balance_loss = 0.3;
    c.shared_experts = 1;
    c.shared_gate = before;
    MoE m(c);
    initialize(m, 5);
    const int64_t tokens = 7, length = 11;
    const Tensor x = trial::variable(trial::numbers({2, length, kDim}, 1)),
                 dy = trial::numbers({2, length, kDim}, 3), ds = trial::numbers({3}, 4);
    const Tensor place = expand(arange(length, DType::i64), {2, length});
    const auto first = [&](const Tensor& t) { return slice(t, 1, {0, tokens}); };
    const auto rest = [&](const Tensor& t) { return slice(t, 1, {tokens}); };
    std::vector<Tensor> inputs{x};
    for (const auto& p : named_parameters(m)) inputs.push_back(p.tensor);
    const MoEResult got = m(x, place >= tokens), want = m(first(x));
    expect_same(first(got.y), want.y);
    Tensor shared = (*m.shared_experts)(rest(x));
    if (before) shared = shared * sigmoid((*m.shared_expert_gate)(rest(x)));
    expect_same(rest(got.y), shared);
    EXPECT_EQ(got.load.values(), want.load.values());
    expect_same(got.sums, want.sums);
    // The shared experts see padding, as attention does; what is behind a token gives it nothing.
    const auto g = grad({first(got.y), got.sums}, inputs, {.grad_outputs = {first(dy), ds}}),
               want_g = grad({want.y, want.sums}, inputs, {.grad_outputs = {first(dy), ds}});
    for (size_t i = 0; i < g.size(); ++i) expect_same(g[i], want_g[i], 1e-11);
  }
}

TEST(MoE, NoTokensGiveNone) {
  const Session session;
  MoE m(config());
  initialize(m, 5);
  const MoEResult r = m(zeros({2, 0, kDim}, DType::f64));
  EXPECT_EQ(r.y.shape(), (Shape{2, 0, kDim}));
  EXPECT_EQ(r.load.values(), std::vector<double>(2 * kExperts, 0));
}

TEST(MoE, RecomputationCountsNothingTwice) {
  const Session session;
  MoE::Config c = config();
  c.balance = true;
  MoE m(c);
  initialize(m, 5);
  const Tensor x = trial::variable(trial::numbers({4, 3, kDim}, 1));
  const MoEResult plain = m(x);
  backward(sum(plain.y));
  const auto want = m.experts.w1.grad().values();
  m.zero_grad();
  m.set_checkpoint(CheckpointOptions{});
  const MoEResult again = m(x);
  backward(sum(again.y));
  EXPECT_EQ(again.load.values(), plain.load.values());
  EXPECT_EQ(m.experts.w1.grad().values(), want);
}

// bf16 is rounded once, where the terms of a token have been added in f32.
TEST(MoE, Bf16IsCloseToF64) {
  const Session session;
  MoE::Config c = config();
  c.router.dtype = DType::bf16;
  c.router.force_balance = true;  // since rounded scores may choose others
  MoE narrow(c), wide(c);
  initialize(narrow, 5);
  initialize(wide, 5);
  wide.to(DType::f64);
  const Tensor x = cast(trial::numbers({40, kDim}, 1), DType::bf16);
  expect_same(cast(narrow(x).y, DType::f64), wide(cast(x, DType::f64)).y, 0.05);
}

TEST(MoE, ForcedBalanceIsEven) {
  const Session session;
  MoE::Config c = config();
  c.router.force_balance = true;
  MoE m(c);
  initialize(m, 5);
  const auto load = m(trial::numbers({16, kDim})).load.values();
  EXPECT_EQ(load, std::vector<double>(2 * kExperts, 16 * 3 / 8));
}

TEST(MoE, WhatNoRankCanSortIsRefused) {
  run_fake(2, 0, [](World&) {
    const Mesh mesh = Mesh::make({{"tp", 2}});
    const Layout whole = Layout::replicated(mesh), rows = Layout::of(mesh, {Shard(0)}),
                 columns = Layout::of(mesh, {Shard(1)});
    const auto made = [&](const LayoutOf& layout_of) {
      auto m = std::make_unique<MoE>(config());
      initialize(*m, 5, layout_of);
      return m;
    };
    const auto error = [&](const MoE& m, Layout layout) {
      const AutoRedistribute wish;  // the router would refuse what it must send
      const Tensor x = distribute(trial::numbers({4, kDim}), layout);
      return test::error_of([&] { (void)m(x); });
    };
    const auto alike = made([&](const std::string&, const TensorMeta&) { return whole; });
    EXPECT_EQ(error(*alike, columns),
              "[moe] x f64[4, 6] is mesh(tp=2) {tp: Shard(1)}: axis tp must cut "
              "its tokens, or none of its dims; redistribute it");
    const auto cut = made([&](const std::string& path, const TensorMeta&) {
      return path == "experts.w2"           ? Layout::of(mesh, {Shard(2)})
             : path.starts_with("experts.") ? Layout::of(mesh, {Shard(1)})
                                            : whole;
    });
    EXPECT_EQ(error(*cut, rows),
              "[moe] axis tp cuts the experts' hidden dim, and x f64[4, 6] too, which is "
              "mesh(tp=2) {tp: Shard(0)}: give x Replicate on tp");
  });
}

}  // namespace
}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// The router against its rule, one token at a time in f64; its losses against differences; and on
// meshes against one rank, with every collective pinned.
#include "tessera/nn/moe/router.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/lay_out.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace tessera::nn {
namespace {

using trial::error_of;
using trial::expect_same;
using Numbers = std::vector<double>;

constexpr int64_t kDim = 6;

Router::Config config(int64_t experts = 8, int64_t top_k = 3) {
  return {.dim = kDim,
          .experts = experts,
          .top_k = top_k,
          .gate = Init::normal(0.5),
          .dtype = DType::f64};
}

// Everything on.
Router::Config config_of_all() {
  Router::Config c = config();
  c.route_norm = true;
  c.route_scale = 2.5;
  c.groups = 4;
  c.limited_groups = 2;
  c.balance_loss = 0.3;
  c.z_loss = 0.2;
  c.capacity_factor = 0.8;
  return c;
}

// The experts of one token with these scores plus bias: the best first, of equal ones the first.
std::vector<int64_t> best(const Router::Config& c, Numbers choice) {
  const auto best_of = [](const Numbers& x) {
    std::vector<int64_t> order(x.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(order, [&](int64_t i, int64_t j) {
      return x[static_cast<size_t>(i)] > x[static_cast<size_t>(j)];
    });
    return order;
  };
  if (c.groups > 0) {
    const auto size = c.experts / c.groups;
    Numbers sums;
    for (int64_t g = 0; g < c.groups; ++g) {
      Numbers own(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::ranges::sort(own, std::greater());
      sums.push_back(own[0] + own[1]);
    }
    const auto order = best_of(sums);
    for (auto g = static_cast<size_t>(c.limited_groups); g < order.size(); ++g)
      std::fill_n(choice.begin() + order[g] * size, size, -INFINITY);
  }
  auto order = best_of(choice);
  order.resize(static_cast<size_t>(c.top_k));
  return order;
}

struct Rule {
  Numbers shares, experts, load, sums;
};

// What the router should give for logits (sequences, T, experts).
Rule rule(const Router::Config& c, const Tensor& logits, const Numbers& bias) {
  const auto score = (c.score == Router::Score::sigmoid ? sigmoid(logits) : softmax(logits, -1))
                         .values(),
             logit = logits.values();
  const auto experts = static_cast<size_t>(c.experts), top_k = static_cast<size_t>(c.top_k);
  const auto length = static_cast<size_t>(logits.shape()[1]),
             sequences = static_cast<size_t>(logits.shape()[0]);
  const double even = static_cast<double>(length * top_k) / static_cast<double>(experts);
  Rule r{{}, {}, Numbers(2 * experts), Numbers(3)};
  for (size_t s = 0; s < sequences; ++s) {
    Numbers counts(experts), shares(experts);  // of the sequence
    for (size_t t = s * length; t < (s + 1) * length; ++t) {
      Numbers choice(experts);
      double all = 0, power = 0;
      for (size_t e = 0; e < experts; ++e) {
        choice[e] = score[t * experts + e] + bias[e];
        all += score[t * experts + e];
        power += std::exp(logit[t * experts + e]);
      }
      for (size_t e = 0; e < experts; ++e) shares[e] += score[t * experts + e] / all;
      r.sums[1] += c.z_loss * std::pow(std::log(power), 2);
      const auto ids = best(c, choice);
      double norm = c.route_norm ? 0 : 1;
      for (const int64_t e : ids)
        norm += c.route_norm ? score[t * experts + static_cast<size_t>(e)] : 0;
      for (const int64_t id : ids) {
        const auto e = static_cast<size_t>(id);
        const bool kept = c.capacity_factor == 0 || counts[e] < std::ceil(c.capacity_factor * even);
        counts[e] += 1;
        r.load[e] += 1;
        r.load[experts + e] += kept ? 1 : 0;
        r.experts.push_back(kept ? static_cast<double>(e) : static_cast<double>(experts));
        r.shares.push_back(kept ? score[t * experts + e] / norm * c.route_scale : 0);
      }
    }
    for (size_t e = 0; length > 0 && e < experts; ++e)
      r.sums[0] += c.balance_loss * counts[e] / even * shares[e];  // T times f times P
  }
  return r;
}

void expect_rule(const Router::Config& c, int64_t sequences, int64_t length, uint64_t seed) {
  Router router(c);
  initialize(router, seed);
  const Tensor x = normal({sequences, length, kDim}, {seed, 1}, 0.3, 1, DType::f64),
               bias = normal({c.experts}, {seed, 2}, 0, 0.3, DType::f64);
  const Routing got = router(x, bias);
  const Rule want = rule(c, router.gate(x), bias.values());
  const Shape shape{sequences, length, c.top_k};
  EXPECT_EQ(got.experts.values(), want.experts);
  EXPECT_EQ(got.load.values(), want.load);
  expect_same(got.scores, from_values(want.shares, shape, DType::f64));
  expect_same(got.sums, from_values(want.sums, {3}, DType::f64));
}

TEST(Router, IsItsRule) {
  const Session session;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 60; ++i) {
    const int64_t groups = std::array{0, 2, 3}[random() % 3];
    const auto experts = static_cast<int64_t>(
        groups == 0 ? 1 + random() % 9 : static_cast<size_t>(groups) * (2 + random() % 3));
    const int64_t limited =
        groups == 0 ? 0 : static_cast<int64_t>(1 + random() % static_cast<size_t>(groups));
    const int64_t most = groups == 0 ? experts : experts / groups * limited;
    Router::Config c =
        config(experts, static_cast<int64_t>(1 + random() % static_cast<size_t>(most)));
    c.groups = groups;
    c.limited_groups = limited;
    c.score = random() % 2 == 0 ? Router::Score::sigmoid : Router::Score::softmax;
    c.route_norm = random() % 2 == 0;
    c.route_scale = std::array{1.0, 2.5}[random() % 2];
    c.balance_loss = std::array{0.0, 0.3}[random() % 2];
    c.z_loss = std::array{0.0, 0.2}[random() % 2];
    c.capacity_factor = std::array{0.0, 0.0, 0.5, 1.1, 1e9}[random() % 5];
    expect_rule(c, static_cast<int64_t>(random() % 4), static_cast<int64_t>(random() % 12),
                random());
  }
}

// Losses, capacities, counts and choices of padded sequences are those of the shorter ones.
TEST(Router, PaddingIsNoToken) {
  const Session session;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20; ++i) {
    Router::Config c = config_of_all();
    if (i % 2 == 0) c.score = Router::Score::softmax;
    if (i % 3 == 0) c.capacity_factor = 0;
    Router router(c);
    initialize(router, seed + static_cast<uint64_t>(i));
    const int64_t sequences = 3, length = 9;
    const Tensor x = trial::variable(
                     normal({sequences, length, kDim}, {seed, 1}, 0, 2, DType::f64)),
                 bias = normal({c.experts}, {seed, 2}, 0, 0.3, DType::f64),
                 dy = normal({sequences, length, c.top_k}, {seed, 3}, 0, 1, DType::f64),
                 ds = trial::numbers({3}, 4);
    // One is full, one is padding alone, unless chance says otherwise.
    std::vector<int64_t> lengths{length, 0, static_cast<int64_t>(random() % 9)};
    std::ranges::shuffle(lengths, random);
    Numbers marks;
    for (const int64_t n : lengths)
      for (int64_t t = 0; t < length; ++t) marks.push_back(t < n ? 0 : 1);
    const Tensor padding = cast(from_values(marks, {sequences, length}, DType::f64), DType::bool_);
    const Routing got = router(x, bias, padding);
    const auto g =
        grad({got.scores, got.sums}, {x, router.gate.weight}, {.grad_outputs = {dy, ds}});
    Tensor load = zeros({2, c.experts}, DType::i64), sums = zeros({3}, DType::f64),
           gate = zeros_like(router.gate.weight);
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t n = lengths[static_cast<size_t>(s)];
      const auto tokens = [&](const Tensor& t) {
        return slice(slice(t, 0, {s, s + 1}), 1, {0, n});
      };
      const auto rest = [&](const Tensor& t) { return slice(slice(t, 0, {s, s + 1}), 1, {n}); };
      const Tensor own = trial::variable(contiguous(tokens(x).detach()));
      const Routing want = router(own, bias);
      const auto want_g = grad({want.scores, want.sums}, {own, router.gate.weight},
                               {.grad_outputs = {tokens(dy), ds}});
      load = load + want.load;
      sums = sums + want.sums.detach();
      gate = gate + want_g[1];
      EXPECT_EQ(tokens(got.experts).values(), want.experts.values());
      expect_same(tokens(got.scores), want.scores);
      expect_same(tokens(g[0]), want_g[0], 1e-11);
      for (const double id : rest(got.experts).values())
        EXPECT_EQ(id, static_cast<double>(c.experts));
      for (const Tensor& t : {rest(got.scores), rest(g[0])})
        for (const double value : t.values()) EXPECT_EQ(value, 0);
    }
    EXPECT_EQ(got.load.values(), load.values());
    expect_same(got.sums, sums);
    expect_same(g[1], gate, 1e-11);
  }
}

TEST(Router, PaddingThatDoesNotFitIsNamed) {
  const Session session;
  Router router(config());
  initialize(router, 5);
  const Tensor x = trial::numbers({2, 3, kDim});
  for (const Tensor& padding :
       {zeros({2, 4}, DType::bool_), zeros({3}, DType::bool_), zeros({2, 3}, DType::i64)})
    TESSERA_EXPECT_HOLDS(error_of<ShapeError>([&] { (void)router(x, Tensor(), padding); }),
                         "expected a bool for each token");
}

TEST(Router, EqualScoresGoToTheFirst) {
  const Session session;
  Router router(config());
  initialize(router, 1);
  const NoGrad guard;
  assign_(router.gate.weight, zeros_like(router.gate.weight));
  EXPECT_EQ(router(trial::numbers({2, kDim}), Tensor()).experts.values(),
            (Numbers{0, 1, 2, 0, 1, 2}));
}

// A factor that is a little more than what was meant.
TEST(Router, CapacityIsNotRoundedUpTwice) {
  const Session session;
  Router::Config c = config(1, 1);
  c.capacity_factor = 0.1 + 0.2;  // 0.30000000000000004
  Router router(c);
  initialize(router, 1);
  EXPECT_EQ(router(trial::numbers({10, kDim}), Tensor()).load.values(), (Numbers{10, 3}));
  router.eval();
  EXPECT_EQ(router(trial::numbers({10, kDim}), Tensor()).load.values(), (Numbers{10, 10}));
}

// Counts do not change with small steps, so differences know them as constants, too.
TEST(Router, GradientsAreThoseOfDifferences) {
  const Session session;
  for (const auto score : {Router::Score::sigmoid, Router::Score::softmax}) {
    Router::Config c = config_of_all();
    c.score = score;
    Router router(c);
    initialize(router, 5);
    const Tensor x = trial::variable(trial::numbers({2, 7, kDim}, 1)),
                 dy = trial::numbers({2, 7, c.top_k}, 2);
    const auto loss = [&] {
      const Routing r = router(x, Tensor());
      return sum(r.scores * dy) + sum(r.sums);
    };
    backward(loss());
    const NoGrad guard;
    for (const Tensor& p : {x, router.gate.weight}) {
      const auto slopes = p.grad().values();
      double* values = p.detach().data<double>();
      for (size_t i = 0; i < slopes.size(); ++i) {
        const double at = values[i], h = 1e-6;
        values[i] = at + h;
        const double above = loss().item();
        values[i] = at - h;
        const double below = loss().item();
        values[i] = at;
        EXPECT_NEAR(slopes[i], (above - below) / (2 * h), 1e-7) << i;
      }
    }
  }
}

TEST(Router, TokensWithoutFiniteScoresAreCounted) {
  const Session session;
  Router router(config());
  initialize(router, 5);
  Tensor x = copy(trial::numbers({3, 4, kDim}));
  x.data<double>()[0] = std::numeric_limits<double>::quiet_NaN();
  x.data<double>()[1] = std::numeric_limits<double>::infinity();
  x.data<double>()[7 * kDim] = -std::numeric_limits<double>::infinity();
  const Routing r = router(x, Tensor());
  EXPECT_EQ(r.sums.values(), (Numbers{0, 0, 2}));
  EXPECT_EQ(sum(r.load).item(), 2 * 12 * 3);
}

TEST(Router, SizesThatDoNotFitAreNamed) {
  const auto text = [](auto change) {
    Router::Config c = config();
    change(c);
    return error_of<ValueError>([&] { const Router r(c); });
  };
  EXPECT_EQ(text([](auto& c) { c.top_k = 9; }),
            "[router] top_k is 9 of 8 experts: expected 1 to 8");
  TESSERA_EXPECT_HOLDS(text([](auto& c) { c.groups = 3, c.limited_groups = 1; }),
                       "8 experts in 3 groups");
  TESSERA_EXPECT_HOLDS(text([](auto& c) { c.groups = 4, c.limited_groups = 5; }),
                       "limited_groups is 5");
  TESSERA_EXPECT_HOLDS(text([](auto& c) { c.groups = 4, c.limited_groups = 1; }),
                       "1 group with 2 experts");
}

TEST(Router, BadCoefficientsAndShapesAreNamed) {
  const Session session;
  Router::Config c = config();
  c.z_loss = -1;
  EXPECT_EQ(error_of<ValueError>([&] { const Router r(c); }),
            "[router] z_loss is -1: expected 0 (off) or more");
  c = config();
  c.capacity_factor = NAN;
  TESSERA_EXPECT_HOLDS(error_of<ValueError>([&] { const Router r(c); }), "capacity_factor is nan");
  c = config();
  c.balance_loss = 1;
  Router router(c);
  initialize(router, 5);
  TESSERA_EXPECT_HOLDS(
      error_of<ShapeError>([&] { (void)router(trial::numbers({kDim}), Tensor()); }),
      "expected (..., T, dim)");
}

// The same on a mesh.

struct Case {
  std::vector<MeshAxis> axes;
  std::vector<Placement> x;
  Shape shape;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {{{"dp_replicate", 2}, {"dp_shard", 2}}, {Shard(0), Shard(0)}, {5, 3, kDim}},  // uneven
      {{{"dp_replicate", 2}, {"dp_shard", 2}}, {Shard(0), Shard(0)}, {2, 3, kDim}},  // some empty
      {{{"dp", 2}, {"tp", 2}}, {Shard(0), Shard(1)}, {3, 5, kDim}},
      {{{"dp", 1}, {"tp", 4}}, {Shard(0), Shard(1)}, {2, 6, kDim}},  // the last has none
      {{{"dp", 2}, {"tp", 2}}, {Shard(0), Replicate()}, {3, 5, kDim}},
  };
  return all;
}

// (B, T) bool: row b has T - b tokens, or none.
Tensor behind_tokens(const Shape& x) {
  Numbers marks;
  for (int64_t b = 0; b < x[0]; ++b)
    for (int64_t t = 0; t < x[1]; ++t) marks.push_back(t + b < x[1] ? 0 : 1);
  return cast(from_values(marks, {x[0], x[1]}, DType::f64), DType::bool_);
}

// Of the shares, and of the losses where one is on.
std::vector<Tensor> gradients(const Routing& r, const std::vector<Tensor>& inputs,
                              const std::array<Tensor, 2>& dy) {
  if (!r.sums.requires_grad()) return grad({r.scores}, inputs, {.grad_outputs = {dy[0]}});
  return grad({r.scores, r.sums}, inputs, {.grad_outputs = {dy[0], dy[1]}});
}

// Runs the router on all meshes against one rank, then `check` with the traces of both passes.
void expect_same_on_meshes(const Router::Config& c, bool padded,
                           const std::function<void(const Case&, const CommTrace& forward,
                                                    const CommTrace& backward)>& check) {
  for (const Case& t : cases()) {
    test::on_ranks(4, [&](World&) {
      const Mesh mesh = Mesh::make(t.axes);
      const Layout replicated = Layout::replicated(mesh);
      Router whole(c), router(c);
      initialize(whole, 5);
      initialize(router, 5, [&](const std::string&, const TensorMeta&) { return replicated; });
      const Tensor values = trial::numbers(t.shape, 1), bias = trial::numbers({c.experts}, 2) * 0.3;
      const Tensor x = trial::variable(values),
                   cut = trial::variable(values, Layout::of(mesh, t.x));
      const Tensor dy = trial::numbers({t.shape[0], t.shape[1], c.top_k}, 3),
                   ds = trial::numbers({3}, 4);

      // Padding lies as rows do: whole where the sequence is cut over a tensor axis.
      Layout rows = layout_of(cut);
      for (const int a : rows.axes_of(1)) rows = rows.with(mesh.axis(a).name, Replicate());
      const Tensor marks = behind_tokens(t.shape);
      const Routing want = whole(x, bias, padded ? marks : Tensor());
      const Tensor padding = padded ? distribute(marks, rows) : Tensor();
      const CommTrace forward;
      const Routing got = router(cut, distribute(bias, replicated), padding);
      const int forward_collectives = forward.count();
      const CommTrace backward;
      const auto g = gradients(got, {cut, router.gate.weight},
                               {distribute(dy, layout_of(got.scores)), distribute(ds, replicated)});
      EXPECT_EQ(forward.count(), forward_collectives + backward.count());
      check(t, forward, backward);
      const auto want_g = gradients(want, {x, whole.gate.weight}, {dy, ds});

      expect_same(got.experts, want.experts, 0);
      expect_same(got.load, want.load, 0);
      expect_same(got.scores, want.scores, 1e-10);
      expect_same(got.sums, want.sums, 1e-10);
      for (size_t i = 0; i < g.size(); ++i) expect_same(g[i], want_g[i], 1e-10);
      for (int a = 0; a < mesh.axes(); ++a) {
        if (mesh.size(a) == 1) continue;
        EXPECT_EQ(layout_of(g[0]).placement(a), t.x[static_cast<size_t>(a)]);
        const Placement part =
            t.x[static_cast<size_t>(a)].kind == Placement::Kind::shard ? Partial() : Replicate();
        EXPECT_EQ(layout_of(got.load).placement(a), part);
        EXPECT_EQ(layout_of(got.sums).placement(a), part);
        EXPECT_EQ(layout_of(got.experts).placement(a), t.x[static_cast<size_t>(a)]);
      }
    });
  }
}

TEST(Router, CommunicatesNothingOnAMesh) {
  const auto nothing = [](const Case&, const CommTrace& forward, const CommTrace& backward) {
    EXPECT_EQ(forward.count(), 0) << forward;
    EXPECT_EQ(backward.count(), 0) << backward;
  };
  for (const bool padded : {false, true}) {
    Router::Config c = config();
    expect_same_on_meshes(c, padded, nothing);
    c.score = Router::Score::softmax;
    c.route_norm = true;
    c.groups = 4;
    c.limited_groups = 2;
    c.z_loss = 0.2;
    expect_same_on_meshes(c, padded, nothing);
    c.force_balance = true;
    expect_same_on_meshes(c, padded, nothing);
  }
}

TEST(Router, JoinsCountsAndIdsOfCutSequences) {
  const Router::Config c = config_of_all();
  const auto check = [&](const Case& t, const CommTrace& forward, const CommTrace& backward) {
    EXPECT_EQ(backward.count(), 0) << backward;
    if (t.x[1] != Shard(1)) {
      EXPECT_EQ(forward.count(), 0) << forward;
      return;
    }
    const auto entries = forward.entries();
    ASSERT_EQ(entries.size(), 2u) << forward;
    const int64_t sequences =
        chunk({0, t.shape[0], t.shape[0]}, t.axes[0].size, World::current().rank() / t.axes[1].size)
            .size;
    EXPECT_EQ(entries[0].op, "all_reduce");
    EXPECT_EQ(entries[0].axes, "tp");
    EXPECT_EQ(entries[0].bytes, sequences * c.experts * 8);
    EXPECT_EQ(entries[1].op, "all_gather");
    EXPECT_EQ(entries[1].axes, "tp");
  };
  for (const bool padded : {false, true}) expect_same_on_meshes(c, padded, check);
}

TEST(Router, NeedsNoValuesToInferShapes) {
  run_fake(4, 0, [&](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
    Router::Config c = config_of_all();
    for (const bool forced : {false, true}) {
      c.force_balance = forced;
      Router router(c);
      const Layout cut = Layout::of(mesh, {Shard(0), Shard(1)});
      lay_out(router,
              [&](const std::string&, const TensorMeta&) { return Layout::replicated(mesh); });
      const Tensor x = distribute(empty({4, 6, kDim}, DType::f64, kMeta), cut);
      const Routing r = router(x, Tensor());
      EXPECT_EQ(r.experts.shape(), (Shape{4, 6, 3}));
      EXPECT_EQ(layout_of(r.experts), cut);
    }
  });
}

// The bias.

TEST(ExpertBias, TwoMicroBatchesAreOneBatch) {
  const Session session;
  for (const DType dtype : {DType::f32, DType::f64}) {
    Router router(config());
    initialize(router, 5);
    const Tensor x = trial::numbers({6, 5, kDim});
    Tensor one = cast(trial::numbers({8}, 2), dtype), two = copy(one);
    update_expert_bias(one, select(router(x, one).load, 0, 0), 1e-3);
    const Tensor load =
        router(slice(x, 0, {0, 4}), two).load + router(slice(x, 0, {4, 6}), two).load;
    update_expert_bias(two, select(load, 0, 0), 1e-3);
    EXPECT_EQ(one.values(), two.values());
    EXPECT_EQ(one.dtype(), dtype);
    EXPECT_NE(one.values(), cast(trial::numbers({8}, 2), dtype).values());
  }
}

TEST(ExpertBias, MovesByTheSignAndKeepsItsMean) {
  const Session session;
  const Tensor bias = zeros({4}, DType::f64), counts = tensor({9, 1, 1, 1}, DType::i64);
  update_expert_bias(bias, counts, 0.1);
  expect_same(bias, from_values({-0.15, 0.05, 0.05, 0.05}, {4}, DType::f64));
  const auto before = bias.values();
  update_expert_bias(bias, counts, 0.1, full({}, 1, DType::bool_));
  EXPECT_EQ(bias.values(), before);
  update_expert_bias(bias, tensor({3, 3, 3, 3}, DType::i64), 0.1, full({}, 0, DType::bool_));
  EXPECT_EQ(bias.values(), before);
}

TEST(ExpertBias, OfAMeshTakesCountsThatAreWhole) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"dp", 2}});
    const Tensor counts = tensor({9, 1, 1, 1}, DType::i64), plain = zeros({4}, DType::f32);
    update_expert_bias(plain, counts, 0.1);
    const CommTrace trace;
    for (const Tensor& own : {counts, distribute(counts, Layout::replicated(mesh))}) {
      const Tensor bias = full({4}, 0, DType::f32, Layout::replicated(mesh));
      update_expert_bias(bias, own, 0.1);
      EXPECT_EQ(full_tensor(bias).values(), plain.values());
    }
    EXPECT_EQ(trace.count(), 0) << trace;
    const Tensor cut = distribute(counts, Layout::of(mesh, {Shard(0)}));
    TESSERA_EXPECT_HOLDS(error_of<LayoutError>([&] { update_expert_bias(plain, cut, 0.1); }),
                         "counts lies as");
  });
}

// The largest load divided by the mean.
double unevenness(const Numbers& load, int64_t experts) {
  const auto end = load.begin() + experts;
  return *std::max_element(load.begin(), end) * static_cast<double>(experts) /
         std::accumulate(load.begin(), end, 0.0);
}

TEST(ExpertBias, BalancesASkewedRouterWithTheSameCountersOnAMesh) {
  test::on_ranks(2, [](World&) {
    const Layout replicated = Layout::replicated(Mesh::make({{"dp", 2}})),
                 cut = Layout::of(replicated.mesh(), {Shard(0)});
    Router::Config c = config(16, 2);
    c.dim = 32;
    c.gate = Init::normal(0.05);
    Router whole(c), router(c);
    initialize(whole, 5);
    initialize(router, 5, [&](const std::string&, const TensorMeta&) { return replicated; });
    const Tensor x = normal({512, c.dim}, {1, 1}, 1, 0.5, DType::f64), rows = distribute(x, cut);
    const Tensor whole_bias = zeros({c.experts}, DType::f64),
                 bias = distribute(whole_bias, replicated);
    const NoGrad guard;
    EXPECT_GT(unevenness(whole(x, whole_bias).load.values(), c.experts), 4);
    for (int step = 0; step < 300; ++step) {
      const Tensor want = whole(x, whole_bias).load,
                   got = redistribute(router(rows, bias).load, replicated);
      ASSERT_EQ(local(got).values(), want.values()) << "step " << step;
      update_expert_bias(whole_bias, select(want, 0, 0), 1e-3);
      update_expert_bias(bias, select(got, 0, 0), 1e-3);
    }
    EXPECT_EQ(local(bias).values(), whole_bias.values());
    EXPECT_NEAR(sum(whole_bias).item(), 0, 1e-12);
    EXPECT_LT(unevenness(whole(x, whole_bias).load.values(), c.experts), 1.1);
  });
}

}  // namespace
}  // namespace tessera::nn

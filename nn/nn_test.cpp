// SPDX-License-Identifier: Apache-2.0
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/layer_norm/layer_norm.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/fused_linear.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace tessera::nn {
namespace {

class NnTest : public testing::Test {
 protected:
  Session session_;
};

FeedForward feed_forward() {
  return FeedForward({.dim = 4, .hidden = 6, .output = Init::truncated_normal(0.5)});
}

TEST_F(NnTest, NamesFollowTheTree) {
  FeedForward m = feed_forward();
  std::vector<std::string> names;
  for (const auto& p : named_parameters(m)) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"w1.weight", "w2.weight", "w3.weight"}));
  EXPECT_EQ(parameter_count(m), 3 * 24);
  EXPECT_EQ(m.w2.name(), "w2");
}

TEST_F(NnTest, ParametersHaveNoBytesBeforeInitialisation) {
  FeedForward m = feed_forward();
  EXPECT_TRUE(m.w1.weight.device().is_meta());
  initialize(m, 1);
  EXPECT_TRUE(m.w1.weight.device().is_cpu());
  EXPECT_TRUE(m.w1.weight.requires_grad());
}

TEST_F(NnTest, InitialValuesFollowSeedAndNameAlone) {
  FeedForward a = feed_forward(), b = feed_forward(), c = feed_forward();
  initialize(a, 1);
  initialize(b, 1);
  initialize(c, 2);
  EXPECT_EQ(a.w1.weight.values(), b.w1.weight.values());
  EXPECT_NE(a.w1.weight.values(), c.w1.weight.values());
  EXPECT_NE(a.w2.weight.values(), a.w3.weight.values());
}

TEST_F(NnTest, InitialValuesHaveTheirDistribution) {
  Linear m(200, 300, Init::truncated_normal(0.02));
  initialize(m, 3);
  double sum = 0, squares = 0;
  for (double v : m.weight.values()) {
    EXPECT_LE(std::abs(v), 0.0600001);
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / 60000, 0, 4e-4);
  EXPECT_NEAR(std::sqrt(squares / 60000), 0.02 * 0.98658,
              4e-4);  // the deviation of a normal cut at three
  RmsNorm norm(5, 1e-5);
  initialize(norm, 3);
  EXPECT_EQ(norm.weight.values(), std::vector<double>(5, 1.0));
}

TEST_F(NnTest, AnOffsetNormBeginsAtTheFactorOne) {
  RmsNorm norm({.dim = 5, .weight_offset = 1}), plain(5);
  initialize(norm, 3);
  initialize(plain, 3);
  EXPECT_EQ(norm.weight.values(), std::vector<double>(5, 0.0));
  const Tensor x = normal({2, 5}, {7, 1});
  EXPECT_EQ(norm(x).values(), plain(x).values());

  const Tensor weight = tensor({1, -2, 0.5, 0, 3});
  auto values = named_parameters(norm);
  values[0].tensor = weight;
  load(norm, values);
  EXPECT_EQ(norm(x).values(), rms_norm(x, weight, 1e-5, 1).values());
  EXPECT_EQ(norm.extra_repr(), "(5,), eps=1e-05, weight_offset=1");
  EXPECT_EQ(plain.extra_repr(), "(5,), eps=1e-05");
}

TEST_F(NnTest, ALayerNormHasTheParametersThatItsConfigSays) {
  const auto names = [](LayerNorm& norm) {
    std::string all;
    for (const auto& p : named_parameters(norm)) all += p.name + ' ';
    return all;
  };
  LayerNorm whole(5), scaled({.dim = 5, .bias = false}), shifted({.dim = 5, .weight = false}),
      bare({.dim = 5, .weight = false, .bias = false});
  EXPECT_EQ(names(whole), "weight bias ");
  EXPECT_EQ(names(scaled), "weight ");
  EXPECT_EQ(names(shifted), "bias ");
  EXPECT_EQ(names(bare), "");
  EXPECT_EQ(whole.extra_repr(), "(5,), eps=1e-05");
  EXPECT_EQ(scaled.extra_repr(), "(5,), eps=1e-05, bias=False");
  EXPECT_EQ(bare.extra_repr(), "(5,), eps=1e-05, weight=False, bias=False");

  const Tensor x = normal({2, 5}, {7, 1}).set_requires_grad();
  for (LayerNorm* norm : {&whole, &scaled, &shifted, &bare}) {
    initialize(*norm, 3);
    EXPECT_EQ((*norm)(x).values(), layer_norm(x).values());
  }
  backward(sum(scaled(x) * 2.0));
  EXPECT_TRUE(scaled.weight.grad().defined());
  EXPECT_TRUE(x.grad().defined());
  EXPECT_THROW((void)bare(zeros({2, 4})), ShapeError);
}

TEST_F(NnTest, LoadTakesWhatFitsAndNamesWhatDoesNot) {
  FeedForward a = feed_forward(), b = feed_forward();
  initialize(a, 1);
  load(b, named_parameters(a));
  EXPECT_EQ(a.w3.weight.values(), b.w3.weight.values());
  EXPECT_TRUE(b.w3.weight.requires_grad());

  auto wrong = named_parameters(a);
  wrong[0].tensor = zeros({4, 6});
  wrong[1].name = "w9.weight";
  try {
    load(b, wrong);
    FAIL();
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("w1.weight is f32[4, 6], expected f32[6, 4]"), text.npos) << text;
    EXPECT_NE(text.find("w2.weight is missing"), text.npos) << text;
    EXPECT_NE(text.find("w9.weight is not in the model"), text.npos) << text;
  }
}

TEST_F(NnTest, FeedForwardIsSwiGlu) {
  FeedForward m = feed_forward();
  initialize(m, 1);
  const Tensor x = normal({2, 3, 4}, {7, 1});
  const Tensor y = m(x);
  const Tensor expected = m.w2(silu(m.w1(x)) * m.w3(x));
  EXPECT_EQ(y.shape(), (Shape{2, 3, 4}));
  for (double v : (y - expected).values()) EXPECT_NEAR(v, 0, 1e-6);
}

Attention attention() {
  return Attention({.dim = 16,
                    .n_heads = 4,
                    .n_kv_heads = 2,
                    .head_dim = 4,
                    .input = Init::normal(0.5),
                    .output = Init::normal(0.5)});
}

TEST_F(NnTest, AttentionIsCausal) {
  Attention m = attention();
  initialize(m, 1);
  const Tensor x = normal({2, 6, 16}, {7, 1});
  const Tensor y = m(x, causal_metadata(6, 4, 10000));
  const Tensor shorter = m(contiguous(slice(x, 1, {0, 4})), causal_metadata(4, 4, 10000));
  for (double v : (slice(y, 1, {0, 4}) - shorter).values()) EXPECT_NEAR(v, 0, 1e-5);
}

TEST_F(NnTest, AttentionSeesOnlyRelativePositions) {
  Attention m = attention();
  initialize(m, 1);
  const Tensor x = normal({1, 5, 16}, {7, 1});
  const Tensor gap = m(x, causal_metadata(5, 4, 10000)) - m(x, causal_metadata(5, 4, 10000, 37));
  for (double v : gap.values()) EXPECT_NEAR(v, 0, 1e-4);
}

// Rotary rows, documents and the places of tokens are three things: a packed row gives what its
// documents give, and tokens in another order what they gave in order.
TEST_F(NnTest, AttentionReadsDocumentsAndPlacesOfTokens) {
  Attention m = attention();
  initialize(m, 1);
  const Tensor x = normal({1, 7, 16}, {7, 1});
  const auto ids = [](std::vector<double> v) {
    return from_values(v, {1, static_cast<int64_t>(v.size())}, DType::i64);
  };
  const auto expect_same = [](const Tensor& a, const Tensor& b) {
    for (double v : (a - b).values()) EXPECT_NEAR(v, 0, 1e-5);
  };
  AttentionMetadata packed = causal_metadata(7, 4, 10000);
  packed.position_ids = ids({0, 1, 2, 0, 1, 2, 3});
  packed.documents = ids({4, 4, 4, 5, 5, 5, 5});
  const Tensor y = m(x, packed);
  for (const Range part : {Range{0, 3}, Range{3, 7}}) {
    const Tensor alone =
        m(contiguous(slice(x, 1, part)), causal_metadata(part.stop - part.start, 4, 10000));
    expect_same(slice(y, 1, part), alone);
  }
  const std::vector<double> order{6, 0, 3, 2, 5, 1, 4};
  const Tensor rows = from_values(order, {7}, DType::i64);
  AttentionMetadata moved = causal_metadata(7, 4, 10000);
  moved.position_ids = moved.token_positions = ids(order);
  expect_same(m(index_select(x, 1, rows), moved),
              index_select(m(x, causal_metadata(7, 4, 10000)), 1, rows));
  // A map has the last word: here it hides nothing.
  AttentionMetadata open = causal_metadata(7, 4, 10000), all = open;
  open.block_map =
      make_block_map({.queries = 7, .keys = 7}, [](int64_t, int64_t, int64_t) { return true; });
  all.mask = AttentionMask();
  expect_same(m(x, open), m(x, all));
  const NoGrad guard;
  KvCache cache{.capacity = 9};
  EXPECT_THROW((void)m(x, packed, &cache), ValueError);
  EXPECT_EQ(cache.length, 0);
}

// What makes scores twice as large, or would: the weights of queries, or the scale of their tokens.
TEST_F(NnTest, AttentionScalesQueriesAndNormsThemWithoutWeights) {
  const Tensor x = normal({2, 5, 16}, {7, 1});
  for (const bool normed : {false, true}) {
    const auto made = [&](double size) {
      Attention m({.dim = 16,
                   .n_heads = 4,
                   .n_kv_heads = 2,
                   .head_dim = 4,
                   .input = Init::normal(0.5),
                   .qk_l2_norm_eps = normed ? 1e-12 : 0});
      initialize(m, 1);
      const NoGrad guard;
      copy_values(m.wq.weight, m.wq.weight * size);
      return m;
    };
    const AttentionMetadata plain = causal_metadata(5, 4, 10000);
    AttentionMetadata scaled = plain, by_row = plain;
    scaled.query_scale = full({5}, 2);
    by_row.query_scale = from_values({2, 2, 2, 2, 2, 1, 1, 1, 1, 1}, {2, 5});
    Attention m = made(1), twice = made(2);
    const Tensor y = m(x, plain), larger = m(x, scaled);
    const auto distance = [](const Tensor& a, const Tensor& b) { return amax(abs(a - b)).item(); };
    EXPECT_GT(distance(y, larger), 1e-3);
    EXPECT_LT(distance(twice(x, plain), normed ? y : larger), 1e-5);
    const Tensor both = m(x, by_row);
    EXPECT_EQ(select(both, 0, 0).values(), select(larger, 0, 0).values());
    EXPECT_EQ(select(both, 0, 1).values(), select(y, 0, 1).values());
  }
}

// Against the ops: a part of each head turns, scores have a scale of their own, and norms are over
// each head or over all heads of a token.
TEST_F(NnTest, AttentionTurnsAPartOfAHeadAndNormsHeadsOrAllOfThem) {
  constexpr DType kWide = DType::f64;
  const Tensor x = normal({2, 5, 15}, {7, 1}, 0, 1, kWide);
  const AttentionMetadata metadata = causal_metadata(5, 4, 100, 0, {}, kWide);
  for (const bool whole : {false, true}) {
    Attention m({.dim = 15,
                 .n_heads = 4,
                 .n_kv_heads = 2,
                 .head_dim = 7,
                 .input = Init::normal(0.5),
                 .rope_halves = whole,
                 .rotary_dim = 4,
                 .scale = 0.3,
                 .qk_norm_eps = 1e-5,
                 .qk_norm_whole = whole,
                 .dtype = kWide});
    initialize(m, 1);
    for (RmsNorm* norm : {&*m.q_norm, &*m.k_norm})
      assign_(norm->weight.detach(), normal(norm->weight.shape(), {9, 1}, 0, 1, kWide));
    EXPECT_EQ(m.q_norm->weight.numel(), whole ? 28 : 7);
    EXPECT_EQ(m.k_norm->weight.numel(), whole ? 14 : 7);
    const auto prepared = [&](const Linear& w, const RmsNorm& norm, int64_t heads) {
      const Shape shape{2, 5, heads, 7};
      const Tensor y = linear(x, w.weight);
      const Tensor z = whole ? reshape(rms_norm(y, norm.weight, 1e-5), shape)
                             : rms_norm(reshape(y, shape), norm.weight, 1e-5);
      return rope(z, metadata.cos, metadata.sin, {.halves = whole, .rotary = 4});
    };
    const Tensor y = scaled_dot_product_attention(
        prepared(m.wq, *m.q_norm, 4), prepared(m.wk, *m.k_norm, 2),
        reshape(linear(x, m.wv.weight), {2, 5, 2, 7}),
        {.mask = AttentionMask::causal(), .heads_inner = true, .scale = 0.3});
    const Tensor expected = linear(reshape(y, {2, 5, 28}), m.wo.weight);
    for (double v : (m(x, metadata) - expected).values()) EXPECT_NEAR(v, 0, 1e-12);
    const NoGrad guard;
    KvCache cache{.capacity = 5};
    Tensor last;
    for (int64_t t = 0; t < 5; ++t) {
      last =
          m(contiguous(slice(x, 1, {t, t + 1})), causal_metadata(1, 4, 100, t, {}, kWide), &cache);
    }
    for (double v : (last - slice(expected, 1, {4, 5})).values()) EXPECT_NEAR(v, 0, 1e-12);
  }
}

TEST_F(NnTest, AttentionCapsScoresWithACacheToo) {
  const Tensor x = normal({2, 6, 16}, {7, 1});
  const AttentionMetadata plain = causal_metadata(6, 4, 10000);
  const auto made = [](double soft_cap) {
    Attention m({.dim = 16,
                 .n_heads = 4,
                 .n_kv_heads = 2,
                 .head_dim = 4,
                 .input = Init::normal(0.5),
                 .soft_cap = soft_cap});
    initialize(m, 1);
    return m;
  };
  const auto distance = [](const Tensor& a, const Tensor& b) { return amax(abs(a - b)).item(); };
  const Tensor uncapped = made(0)(x, plain);
  Attention m = made(0.5);
  const Tensor y = m(x, plain);
  EXPECT_GT(distance(y, uncapped), 1e-3);
  EXPECT_LT(distance(made(1e20)(x, plain), uncapped), 1e-5);
  AttentionMetadata even = plain;  // all scores are 0
  even.query_scale = zeros({6});
  EXPECT_LT(distance(made(1e-20)(x, plain), made(0)(x, even)), 1e-5);
  EXPECT_THROW((void)made(-1)(x, plain), ValueError);
  const NoGrad guard;
  KvCache cache{.capacity = 6};
  for (const Range step : {Range{0, 3}, Range{3, 5}, Range{5, 6}}) {
    const int64_t n = step.stop - step.start;
    const Tensor part =
        m(contiguous(slice(x, 1, step)), causal_metadata(n, 4, 10000, step.start), &cache);
    EXPECT_LT(distance(part, slice(y, 1, step)), 1e-5);
  }
}

TEST_F(NnTest, TemperatureGrowsWithTheLogarithmOfThePosition) {
  const std::vector<double> all = query_temperature(7, 0, 3, 0.5, DType::f64).values();
  const std::vector<double> expected{0, 0, 1, 1, 1, 2, 2};  // whole steps of three
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_DOUBLE_EQ(all[i], 1 + 0.5 * std::log(1 + expected[i]));
  const std::vector<double> later = query_temperature(2, 5, 3, 0.5, DType::f64).values();
  EXPECT_EQ(later, std::vector<double>(all.begin() + 5, all.end()));
  EXPECT_THROW((void)query_temperature(2, 0, 0, 0.5), ValueError);
}

Attention plain_attention(bool fused) {  // positions are not rotary, heads of odd size, biases
  return Attention({.dim = 15,
                    .n_heads = 5,
                    .n_kv_heads = 5,
                    .head_dim = 3,
                    .input = Init::normal(0.5),
                    .qkv_bias = true,
                    .output_bias = true,
                    .rotary = false,
                    .fused_qkv = fused});
}

TEST_F(NnTest, AttentionWithBiasesNeedsNoTables) {
  const auto run = [](bool fused) {
    Attention m = plain_attention(fused);
    initialize(m, 1);
    int64_t stream = 0;
    for (Linear* l : {&m.wq, &m.wk, &m.wv, &m.wo})
      assign_(l->bias.detach(), normal({15}, {5, static_cast<uint64_t>(++stream)}));
    std::vector<Tensor> all{
        m(normal({2, 40, 15}, {7, 1}), AttentionMetadata())};  // enough rows to join
    backward(sum(all[0] * all[0]));
    for (const auto& p : named_parameters(m)) all.push_back(p.tensor.grad());
    // Without the biases another result.
    assign_(m.wv.bias.detach(), zeros({15}));
    EXPECT_NE(m(normal({2, 40, 15}, {7, 1}), AttentionMetadata()).values(), all[0].values());
    return all;
  };
  const auto joined = run(true), apart = run(false);
  ASSERT_EQ(joined.size(), 9u);
  for (size_t i = 0; i < joined.size(); ++i) {
    const auto a = joined[i].values(), b = apart[i].values();
    for (size_t j = 0; j < a.size(); ++j) EXPECT_NEAR(a[j], b[j], 2e-4 * (1 + std::abs(b[j]))) << i;
  }
}

TEST_F(NnTest, BiasesOfAFusedLinearAreAddedOnce) {
  const Tensor w[]{normal({3, 4}, {1, 1}), normal({2, 4}, {1, 2})};
  const Tensor b[]{normal({3}, {1, 3}), normal({2}, {1, 4})};
  for (int64_t rows : {2, 100}) {  // alone, and joined
    const Tensor x = normal({rows, 4}, {1, 5});
    const auto y = fused_linear(x, w, b);
    for (size_t i = 0; i < 2; ++i) {
      for (double v : (y[i] - linear(x, w[i]) - b[i]).values()) EXPECT_NEAR(v, 0, 1e-6) << rows;
    }
    EXPECT_THROW((void)fused_linear(x, w, std::span(b, 1)), ValueError);
  }
}

struct Function {
  Nonlinearity name;
  Tensor (*of)(const Tensor&);
};
constexpr std::array<Function, 4> kFunctions{
    {{Nonlinearity::silu, [](const Tensor& x) { return silu(x); }},
     {Nonlinearity::gelu, [](const Tensor& x) { return gelu(x); }},
     {Nonlinearity::gelu_tanh, [](const Tensor& x) { return gelu(x, true); }},
     {Nonlinearity::relu_squared, [](const Tensor& x) { return relu(x) * relu(x); }}}};

TEST_F(NnTest, MlpIsANonlinearityBetweenTwoLinears) {
  for (const auto& [name, function] : kFunctions) {
    Mlp m({.dim = 4, .hidden = 6, .input = Init::normal(0.5), .nonlinearity = name});
    initialize(m, 1);
    assign_(m.w1.bias.detach(), normal({6}, {7, 2}));
    assign_(m.w2.bias.detach(), normal({4}, {7, 3}));
    EXPECT_EQ(parameter_count(m), 2 * 24 + 6 + 4);
    const Tensor x = normal({2, 3, 4}, {7, 1});
    const Tensor hidden = function(linear(x, m.w1.weight) + m.w1.bias);
    EXPECT_EQ(m(x).values(), (linear(hidden, m.w2.weight) + m.w2.bias).values());
  }
}

TEST_F(NnTest, FeedForwardGatesByItsNonlinearity) {
  for (const auto& [name, function] : kFunctions) {
    FeedForward m({.dim = 4,
                   .hidden = 6,
                   .gate = Init::normal(0.5),
                   .dtype = DType::f64,
                   .bias = true,
                   .nonlinearity = name});
    initialize(m, 1);
    uint64_t stream = 0;
    for (Linear* l : {&m.w1, &m.w2, &m.w3})
      assign_(l->bias.detach(), normal(l->bias.shape(), {7, ++stream}, 0, 1, DType::f64));
    EXPECT_EQ(parameter_count(m), 3 * 24 + 2 * 6 + 4);
    const Tensor x = normal({2, 3, 4}, {8, 1}, 0, 1, DType::f64);
    const auto of = [](const Linear& l, const Tensor& y) { return linear(y, l.weight) + l.bias; };
    const Tensor expected = of(m.w2, function(of(m.w1, x)) * of(m.w3, x));
    for (double v : (m(x) - expected).values()) EXPECT_NEAR(v, 0, 1e-14);
  }
}

TEST_F(NnTest, EveryParameterGetsAGradient) {
  Attention m = attention();
  initialize(m, 1);
  backward(sum(m(normal({2, 3, 16}, {7, 1}), causal_metadata(3, 4, 10000))));
  for (const auto& p : named_parameters(m)) EXPECT_TRUE(p.tensor.grad().defined()) << p.name;
}

TEST_F(NnTest, BadConfigurationsAreNamed) {
  EXPECT_THROW(Attention({.dim = 16, .n_heads = 4, .n_kv_heads = 3, .head_dim = 4}), ValueError);
  EXPECT_THROW(Attention({.dim = 16, .n_heads = 4, .n_kv_heads = 2, .head_dim = 3}), ValueError);
  for (const int64_t rotary_dim : {-2, 3, 6}) {
    EXPECT_THROW(
        Attention(
            {.dim = 16, .n_heads = 4, .n_kv_heads = 2, .head_dim = 4, .rotary_dim = rotary_dim}),
        ValueError);
  }
  Attention m = attention();
  initialize(m, 1);
  EXPECT_THROW((void)m(normal({3, 16}, {7, 1}), causal_metadata(3, 4, 10000)), ShapeError);
}

TEST_F(NnTest, ErrorsInAnomalyModeNameTheModule) {
  session_.context().options.anomaly = true;
  FeedForward m = feed_forward();
  initialize(m, 1);
  m.w2.weight =
      full({4, 6}, std::numeric_limits<double>::infinity());  // times both signs: not a number
  try {
    (void)m(normal({8, 4}, {7, 1}));
    FAIL() << "nothing was thrown";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find(" (in w2)"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::nn

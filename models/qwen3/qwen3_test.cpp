// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/qwen3/qwen3.h"

#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/gguf.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tessera::qwen3 {
namespace {

using test::ids;

const Config kTiny{.dim = 24,
                   .n_layers = 2,
                   .n_heads = 4,
                   .n_kv_heads = 2,
                   .head_dim = 8,
                   .ffn_dim = 40,
                   .vocab_size = 50,
                   .max_seq_len = 16,
                   .rope_theta = 10000};

// Layer 0 has a feed-forward, layer 1 experts.
Config tiny_moe() {
  Config c = kTiny;
  c.moe = {.num_experts = 6,
           .top_k = 2,
           .moe_inter_dim = 12,
           .route_norm = true,
           .load_balance_coeff = 0.25};
  c.decoder_sparse_step = 2;
  return c;
}

class Qwen3Test : public testing::Test {
 protected:
  Session session_;
};

TEST_F(Qwen3Test, NamesAreTorchtitans) {
  Model model(kTiny);
  std::vector<std::string> expected{"tok_embeddings.weight"};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const auto* name : {"attention.wq", "attention.wk", "attention.wv", "attention.wo",
                             "attention.q_norm", "attention.k_norm", "feed_forward.w1",
                             "feed_forward.w2", "feed_forward.w3", "attention_norm", "ffn_norm"}) {
      expected.push_back(layer + name + ".weight");
    }
  }
  expected.insert(expected.end(), {"norm.weight", "output.weight"});
  EXPECT_EQ(test::parameter_names(model), expected);
}

TEST_F(Qwen3Test, FlavorsHaveTheirPublishedSizes) {
  test::expect_sizes<Model>(flavor, 151936,
                            {{"0.6B", 596'049'920},
                             {"1.7B", 1'720'574'976},
                             {"4B", 4'022'468'096},
                             {"8B", 8'190'735'360},
                             {"14B", 14'768'307'200},
                             {"32B", 32'762'123'264},
                             {"30B-A3B", 30'532'122'624},
                             {"235B-A22B", 235'093'634'560}});
  EXPECT_THROW((void)flavor("7B"), ValueError);
  EXPECT_EQ(flavors().size(), 11u);
}

TEST_F(Qwen3Test, ATokenUsesTheExpertsThatItTakes) {
  const auto active = [](std::string_view name) {
    Model model(flavor(name));
    return nn::parameter_count(model) - model.idle_parameters();
  };
  EXPECT_EQ(active("30B-A3B"), 3'353'032'704);
  EXPECT_EQ(active("235B-A22B"), 22'190'763'520);
  Model model(tiny_moe());
  // Attention of both layers; w1, w2, w3 of one, gate and two experts of the other; the head.
  const double dense =
      2 * 24 * (32 + 16 + 16 + 32) + 3 * 24 * 40 + 24 * 6 + 2 * 3 * 24 * 12 + 24 * 50;
  EXPECT_EQ(model.flops(std::vector<int64_t>{5}), 6 * (dense * 5 + 2 * 2 * 4 * 8 * 15));
  EXPECT_EQ(Model(kTiny).idle_parameters(), 0);
}

TEST_F(Qwen3Test, LayersWithExpertsHaveTorchtitansNames) {
  Model model(tiny_moe());
  const std::vector<std::string> names = test::parameter_names(model);
  EXPECT_EQ(std::ranges::count(names, "layers.0.feed_forward.w1.weight"), 1);
  EXPECT_EQ(std::ranges::count(names, "layers.1.feed_forward.w1.weight"), 0);
  for (const char* name : {"router.gate.weight", "experts.w1", "experts.w2", "experts.w3"})
    EXPECT_EQ(std::ranges::count(names, concat("layers.1.moe.", name)), 1) << name;
  const auto buffers = nn::named_buffers(model, true);
  ASSERT_EQ(buffers.size(), 1u);
  EXPECT_EQ(buffers[0].name, "layers.1.moe.expert_bias");
}

TEST_F(Qwen3Test, WithExpertsResidualsBeginSmaller) {
  Config config = tiny_moe();
  config.dim = 240;
  Model model(config);
  nn::initialize(model, 0);
  const auto& layer = model.layers[1];
  for (const Tensor& t :
       {layer.moe->experts.w1, layer.moe->experts.w3, layer.moe->router.gate.weight})
    EXPECT_NEAR(test::deviation(t), 0.02, 1e-3);
  for (const Tensor& t : {layer.moe->experts.w2, layer.attention.wo.weight})
    EXPECT_NEAR(test::deviation(t), 0.01, 5e-4);  // 0.02 / sqrt(2 * 2)
}

TEST_F(Qwen3Test, FlopsCountHeadsThatAreWiderThanTheModel) {
  Model model(kTiny);
  // wq, wk, wv, wo, and w1, w2, w3 of each layer, and the head.
  const double dense = 2 * (24 * (32 + 16 + 16 + 32) + 3 * 24 * 40) + 24 * 50;
  EXPECT_EQ(model.flops(std::vector<int64_t>{5}), 6 * (dense * 5 + 2 * 2 * 4 * 8 * 15));
}

TEST_F(Qwen3Test, InitialisationIsNormal) {
  Model model(debugmodel());
  nn::initialize(model, 0);
  const auto& layer = model.layers[5];
  for (const Tensor& t :
       {model.tok_embeddings->weight, layer.attention.wq.weight, layer.attention.wo.weight,
        layer.feed_forward->w1.weight, layer.feed_forward->w2.weight}) {
    EXPECT_NEAR(test::deviation(t), 0.02, 3e-4);
  }
}

TEST_F(Qwen3Test, LossWithoutLogitsIsTheLoss) {
  for (const bool tied : {false, true}) {
    Config config = kTiny;
    config.enable_weight_tying = tied;
    (void)test::expect_loss_without_logits<Model>(config);
  }
}

TEST_F(Qwen3Test, CacheGivesTheLogitsOfTheWhole) {
  Model model(kTiny);
  nn::initialize(model, 3);
  const Tensor tokens = ids({1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 11, 12}, {2, 6});  // (B, T)
  models::Cache cache = model.make_cache(6);
  test::expect_cached_logits(model, tokens, cache, {3, 1, 2});
}

TEST_F(Qwen3Test, InF64GradientsAreThoseOfDifferences) {
  Config config = kTiny;
  config.dtype = DType::f64;
  Model model(config);
  test::expect_gradients_of_differences(model);
}

TEST_F(Qwen3Test, WithExpertsTheLossAndTheCacheAreThoseOfTheLogits) {
  (void)test::expect_loss_without_logits<Model>(tiny_moe());
  Model model(tiny_moe());
  nn::initialize(model, 3);
  models::Cache cache = model.make_cache(6);
  test::expect_cached_logits(model, ids({1, 2, 3, 4, 5, 9}, {1, 6}), cache, {3, 1, 2});
}

TEST_F(Qwen3Test, WithExpertsGradientsInF64AreThoseOfDifferences) {
  Config config = tiny_moe();
  config.dtype = DType::f64;
  Model model(config);
  test::expect_gradients_of_differences(model);
}

TEST_F(Qwen3Test, TheLossCarriesWhatRoutersDid) {
  Config config = tiny_moe();
  config.decoder_sparse_step = 1;
  Model plain(config);
  config.moe.balance_loss_coeff = 0.5;
  config.moe.z_loss_coeff = 0.25;
  Model model(config);
  for (Model* m : {&plain, &model}) nn::initialize(*m, 3);
  const Tensor tokens = test::two_rows(), targets = test::their_targets();
  const models::Metadata metadata = model.metadata(4);
  EXPECT_TRUE(plain.loss(tokens, targets, metadata).auxiliary.empty());
  models::Loss loss = model.loss(tokens, targets, metadata);
  EXPECT_EQ(loss.load.shape(), (Shape{2, 2, 6}));
  for (const int64_t layer : {0, 1})
    EXPECT_EQ(sum(select(select(loss.load, 0, layer), 0, 0)).item(), 8 * 2);
  EXPECT_EQ(loss.not_finite.values(), (std::vector<double>{0, 0}));
  ASSERT_EQ(loss.auxiliary.size(), 2u);
  EXPECT_EQ(loss.auxiliary[0].name, "load_balance");
  EXPECT_NEAR(loss.auxiliary[0].value.item(), 0.5 * 2 * 8, 0.5);  // 1 where the load is even
  EXPECT_EQ(loss.auxiliary[1].name, "router_z");
  EXPECT_NEAR(loss.auxiliary[1].value.item(), 0.25 * 2 * 8 * std::pow(std::log(6), 2), 1);
  backward(loss.auxiliary[0].value + loss.auxiliary[1].value);
  EXPECT_GT(norm({model.layers[0].moe->router.gate.weight.grad()}).item(), 0);

  // Recompute counts nothing again.
  model.layers[0].set_checkpoint(CheckpointOptions());
  const models::Loss again = model.loss(tokens, targets, metadata);
  backward(again.sum);
  EXPECT_EQ(again.load.values(), loss.load.values());

  const auto statistics = model.statistics(loss.load);
  ASSERT_EQ(statistics.size(), 1u + 2 * 3);
  EXPECT_EQ(statistics[0].name, "moe/load_max_over_mean");
  EXPECT_EQ(statistics[0].value.item(),
            std::max(statistics[1].value.item(), statistics[4].value.item()));
  EXPECT_EQ(statistics[4].name, "moe/layer_1/load_max_over_mean");
}

TEST_F(Qwen3Test, AStepMovesEachBiasAgainstItsLoadUnlessItIsSkipped) {
  Model model(tiny_moe());
  nn::initialize(model, 3);
  const Tensor bias = model.layers[1].moe->expert_bias;
  const Tensor load = from_values({4, 0, 2, 2, 2, 2, 4, 0, 2, 2, 2, 2}, {1, 2, 6}, DType::i64);
  const NoGrad guard;
  model.before_optimizer_step(load, ones({}, DType::bool_));
  EXPECT_EQ(bias.values(), std::vector<double>(6, 0));
  model.before_optimizer_step(load, zeros({}, DType::bool_));
  EXPECT_EQ(bias.values(), (std::vector<double>{-0.25, 0.25, 0, 0, 0, 0}));
}

TEST_F(Qwen3Test, AForcedBalanceGivesEachExpertTheSame) {
  Model model(tiny_moe()), dense(kTiny);
  nn::initialize(model, 3);
  EXPECT_TRUE(model.force_load_balance());
  EXPECT_FALSE(dense.force_load_balance());
  const Tensor tokens = ids({1, 1, 1}, {1, 3});
  EXPECT_EQ(model.loss(tokens, tokens, model.metadata(3)).load.values(),
            std::vector<double>(12, 1));
}

TEST_F(Qwen3Test, ARouterThatFailsIsNamed) {
  Model model(tiny_moe());
  nn::initialize(model, 3);
  const NoGrad guard;
  assign_(model.layers[1].moe->router.gate.weight, full({6, 24}, 1e39, DType::f32, kCpu));
  const Tensor tokens = ids({1, 2, 3}, {1, 3});
  const models::Loss loss = model.loss(tokens, tokens, model.metadata(3));
  EXPECT_EQ(model.routing_fault(loss.not_finite),
            "scores of routers are not finite: layers.1 (3 tokens)");
  EXPECT_EQ(model.routing_fault({}), "");
}

TEST_F(Qwen3Test, WhatOtherFormatsCannotSayIsNamed) {
  const auto config = [](const Config& c) {
    return models::ModelConfig::of<Model>("qwen3", "", c);
  };
  const auto hf_error = [&](const Config& c) {
    return test::error_of<ValueError>(
        [&] { (void)models::hf_config(hugging_face(), config(c), DType::f32, {}); });
  };
  Config divided = kTiny;
  divided.rope_scaling.kind = RopeScaling::Kind::llama3;
  EXPECT_EQ(
      test::error_of<ValueError>([&] { (void)gguf().values(config(divided)); }),
      "[gguf] this rope_scaling cannot be expressed: llama.cpp's qwen3 has none, linear, plain "
      "yarn");
  EXPECT_EQ(hf_error(tiny_moe()),
            "[hugging_face] num_experts 6 cannot be expressed in config.json of qwen3: expected 0");
}

TEST_F(Qwen3Test, BadInputIsNamed) {
  Config odd = kTiny;
  odd.head_dim = 7;
  odd.n_kv_heads = 3;
  EXPECT_THROW(Model{odd}, ValueError);
  EXPECT_EQ(odd.conflicts().size(), 2u);
  Config few = tiny_moe();
  few.moe.top_k = 7;
  few.decoder_sparse_step = 3;
  EXPECT_EQ(few.conflicts(),
            (std::vector<std::string>{
                "[--model.top_k] 7 is above --model.num_experts 6",
                "[--model.decoder_sparse_step] 3 is above --model.n_layers 2: no layer would have "
                "the experts"}));
  Model model(kTiny);
  test::expect_typed_errors(model);
}

}  // namespace
}  // namespace tessera::qwen3

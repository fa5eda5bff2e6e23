// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/qwen3/qwen3.h"

#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/decoders.h"

#include <gtest/gtest.h>

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
                             {"32B", 32'762'123'264}});
  EXPECT_THROW((void)flavor("7B"), ValueError);
  EXPECT_EQ(flavors().size(), 7u);
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
        layer.feed_forward.w1.weight, layer.feed_forward.w2.weight}) {
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

TEST_F(Qwen3Test, BadInputIsNamed) {
  Config odd = kTiny;
  odd.head_dim = 7;
  odd.n_kv_heads = 3;
  EXPECT_THROW(Model{odd}, ValueError);
  EXPECT_EQ(odd.conflicts().size(), 2u);
  Model model(kTiny);
  test::expect_typed_errors(model);
}

}  // namespace
}  // namespace tessera::qwen3

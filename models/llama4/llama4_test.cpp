// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama4/llama4.h"

#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/decoders.h"

#include <gtest/gtest.h>

namespace tessera::llama4 {
namespace {

using test::ids;

// Chunks of five tokens, experts in the layers 1 and 3, no RoPE in layer 2.
const Config kTiny{.dim = 24,
                   .n_layers = 4,
                   .n_heads = 4,
                   .n_kv_heads = 2,
                   .head_dim = 8,
                   .ffn_dim = 40,
                   .moe = {.num_experts = 3, .moe_inter_dim = 12},
                   .interleave_moe_layer_step = 2,
                   .vocab_size = 50,
                   .max_seq_len = 16,
                   .rope_theta = 10000,
                   .nope_layer_interval = 3,
                   .attention_chunk_size = 5,
                   .floor_scale = 2,
                   .attn_scale = 0.5};

class Llama4Test : public testing::Test {
 protected:
  Session session_;
};

TEST_F(Llama4Test, NamesAreTorchtitans) {
  Model model(kTiny);
  std::vector<std::string> expected{"tok_embeddings.weight"};
  for (int i = 0; i < 4; ++i) {
    const std::string layer = concat("layers.", i, '.');
    for (const auto* name : {"wq", "wk", "wv", "wo"})
      expected.push_back(layer + "attention." + name + ".weight");
    if (i % 2 == 0) {
      for (const auto* name : {"w1", "w2", "w3"})
        expected.push_back(layer + "feed_forward." + name + ".weight");
    } else {
      expected.push_back(layer + "moe.router.gate.weight");
      for (const auto* name : {"w1", "w2", "w3"}) expected.push_back(layer + "moe.experts." + name);
      for (const auto* name : {"w1", "w2", "w3"})
        expected.push_back(layer + "moe.shared_experts." + name + ".weight");
    }
    expected.push_back(layer + "attention_norm.weight");
    expected.push_back(layer + "ffn_norm.weight");
  }
  expected.insert(expected.end(), {"norm.weight", "output.weight"});
  EXPECT_EQ(test::parameter_names(model), expected);
}

TEST_F(Llama4Test, FlavorsHaveTheirPublishedSizes) {
  constexpr int64_t kScout = 107'769'861'120, kMaverick = 400'711'848'960;
  test::expect_sizes<Model>(flavor, 202048, {{"17Bx16E", kScout}, {"17Bx128E", kMaverick}});
  EXPECT_EQ(kScout - Model(flavor("17Bx16E")).idle_parameters(), 17'172'894'720);
  EXPECT_EQ(kMaverick - Model(flavor("17Bx128E")).idle_parameters(), 17'184'691'200);
  EXPECT_THROW((void)flavor("Scout"), ValueError);
  EXPECT_EQ(flavors().size(), 3u);
}

TEST_F(Llama4Test, FlopsCountChunksAndTheExpertsOfAToken) {
  Model model(kTiny);
  const double attention = 24 * (32 + 16 + 16 + 32), dense = 3 * 24 * 40,
               experts = 3 * 24 + 2 * 3 * 24 * 12;  // the router, an expert and the shared one
  const double weights = 4 * attention + 2 * dense + 2 * experts + 24 * 50;
  // Of 7 tokens: in chunks of 5 and 2, or all of them.
  EXPECT_EQ(model.flops(std::vector<int64_t>{7}),
            6 * (weights * 7 + 2 * 4 * 8 * (3 * (15 + 3) + 28)));
}

TEST_F(Llama4Test, InitialisationIsTorchtitans) {
  Model model(debugmodel());
  nn::initialize(model, 0);
  const auto& layer = model.layers[5];
  const double deep = 0.02 / std::sqrt(12.0);
  EXPECT_NEAR(test::deviation(model.tok_embeddings->weight), 1, 2e-2);
  EXPECT_NEAR(test::deviation(layer.attention.wq.weight), 0.02, 5e-4);
  EXPECT_NEAR(test::deviation(layer.moe->experts.w1), 0.02, 5e-4);
  for (const Tensor& t : {layer.attention.wo.weight, layer.moe->experts.w2, layer.moe->experts.w3,
                          layer.moe->shared_experts->w2.weight, layer.moe->router.gate.weight})
    EXPECT_NEAR(test::deviation(t), deep, 3e-4);
}

// A layer with RoPE sees its chunk alone, one without sees all.
TEST_F(Llama4Test, ChunksHideWhatIsBeforeThem) {
  const Tensor a = ids({1, 2, 3, 4, 5, 6, 7}, {1, 7}), b = ids({9, 8, 3, 9, 8, 6, 7}, {1, 7});
  for (const bool hidden : {true, false}) {
    Config config = kTiny;
    if (hidden) config.nope_layer_interval = 5;  // above the number of layers: none
    Model model(config);
    nn::initialize(model, 3);
    const NoGrad guard;
    const auto last = [&](const Tensor& tokens) {
      return slice(model.forward(tokens), 1, {5}).values();
    };
    if (hidden) EXPECT_EQ(last(a), last(b));
    else EXPECT_NE(last(a), last(b));
  }
}

TEST_F(Llama4Test, MetadataSayHowManyLayersHaveEach) {
  const models::Metadata m = Model(kTiny).metadata(8);
  EXPECT_EQ(m.kinds.size(), 2U);
  EXPECT_EQ(m.of(0).layers, 3);  // with RoPE, in chunks
  EXPECT_EQ(m.of(1).layers, 1);
}

TEST_F(Llama4Test, LossWithoutLogitsIsTheLoss) {
  for (const bool tied : {false, true}) {
    Config config = kTiny;
    config.enable_weight_tying = tied;
    config.attention_chunk_size = 2;
    (void)test::expect_loss_without_logits<Model>(config);
  }
}

TEST_F(Llama4Test, CacheGivesTheLogitsOfTheWhole) {
  Model model(kTiny);
  nn::initialize(model, 3);
  std::vector<double> row;
  for (int i = 0; i < 26; ++i) row.push_back(i * i % 47);
  const Tensor tokens = ids(row, {2, 13});  // (B, T): three chunks
  models::Cache cache = model.make_cache(13);
  test::expect_cached_logits(model, tokens, cache, {3, 1, 4, 1, 1, 3});
}

TEST_F(Llama4Test, InF64GradientsAreThoseOfDifferences) {
  Config config = kTiny;
  config.dtype = DType::f64;
  config.attention_chunk_size = 3;
  Model model(config);
  test::expect_gradients_of_differences(model);
}

TEST_F(Llama4Test, BadInputIsNamed) {
  Config odd = kTiny;
  odd.head_dim = 7;
  odd.n_kv_heads = 3;
  odd.moe.top_k = 4;
  EXPECT_THROW(Model{odd}, ValueError);
  EXPECT_EQ(odd.conflicts().size(), 3u);
  Config few = kTiny;
  few.interleave_moe_layer_step = 5;
  EXPECT_EQ(few.conflicts(),
            std::vector<std::string>{"[--model.interleave_moe_layer_step] 5 is above "
                                     "--model.n_layers 4: no layer would have the experts"});
  few.moe.num_experts = 0;
  EXPECT_EQ(few.conflicts(), std::vector<std::string>{});
  Model model(kTiny);
  test::expect_typed_errors(model);
}

}  // namespace
}  // namespace tessera::llama4

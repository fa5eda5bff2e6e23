// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama3/llama3.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/gguf.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::llama3 {
namespace {

using test::deviation;
using test::ids;

const Config kTiny = test::tiny_llama3(2);

class Llama3Test : public testing::Test {
 protected:
  Session session_;
};

TEST_F(Llama3Test, NamesAreTorchtitans) {
  Model model(kTiny);
  std::vector<std::string> expected{"tok_embeddings.weight"};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const auto* name :
         {"attention.wq", "attention.wk", "attention.wv", "attention.wo", "feed_forward.w1",
          "feed_forward.w2", "feed_forward.w3", "attention_norm", "ffn_norm"}) {
      expected.push_back(layer + name + ".weight");
    }
  }
  expected.insert(expected.end(), {"norm.weight", "output.weight"});
  EXPECT_EQ(test::parameter_names(model), expected);
}

TEST_F(Llama3Test, DebugModelHasItsSize) {
  Model model(debugmodel());
  // 2 * 2048 * 256 + 6 * (4 * 256^2 + 3 * 256 * 768 + 2 * 256) + 256
  EXPECT_EQ(nn::parameter_count(model), 6'163'712);
  const double dense = 2048 * 256 + 6 * (4 * 256 * 256 + 3 * 256 * 768);  // weights in matmuls
  const std::vector<int64_t> row{256}, documents{200, 56};
  // A pair of tokens is a product of 16 x 32 for the score, and one for the sum of values; a token
  // attends to itself and those before it: 256 * 257 / 2 pairs.
  EXPECT_EQ(model.flops(row), 6 * (dense * 256 + 6 * 2 * 16 * 16 * 32896));
  // Tokens of one document do not attend to those of another: 200 * 201 / 2 and 56 * 57 / 2 pairs.
  EXPECT_EQ(model.flops(documents), 6 * (dense * 256 + 6 * 2 * 16 * 16 * (20100 + 1596)));
}

TEST_F(Llama3Test, FlavorsHaveTheirPublishedSizes) {
  test::expect_sizes<Model>(flavor, 128256,
                            {{"1B", 1'235'814'400},
                             {"3B", 3'212'749'824},
                             {"8B", 8'030'261'248},
                             {"70B", 70'553'706'496},
                             {"405B", 405'853'388'800}});
  EXPECT_THROW((void)flavor("7B"), ValueError);
  EXPECT_EQ(flavors().size(), 6u);
}

TEST_F(Llama3Test, TiedTableIsHeadAndEmbedding) {
  Config config = kTiny;
  config.enable_weight_tying = true;
  Model model(config);
  EXPECT_FALSE(model.output);
  EXPECT_EQ(nn::named_parameters(model).back().name, "norm.weight");
  nn::initialize(model, 3);
  // The head's rule wins.
  EXPECT_NEAR(deviation(model.tok_embeddings->weight), 1 / std::sqrt(32.0), 0.02);
  const Tensor tokens = ids({1, 2, 3, 4}, {1, 4});
  const Tensor logits = model.forward(tokens);
  EXPECT_EQ(logits.shape(), (Shape{1, 4, 50}));
  const Tensor total = model.loss(tokens, tokens, model.metadata(4)).sum;
  EXPECT_NEAR(total.item(), cross_entropy(logits, tokens).sum.item(), 1e-4);
  backward(total);
  EXPECT_TRUE(model.tok_embeddings->weight.grad().defined());
}

TEST_F(Llama3Test, LossWithoutLogitsIsTheLoss) {
  (void)test::expect_loss_without_logits<Model>(kTiny);
}

TEST_F(Llama3Test, CacheGivesTheLogitsOfTheWhole) {
  Model model(kTiny);
  nn::initialize(model, 3);
  const Tensor tokens = ids({1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 11, 12}, {2, 6});  // (B, T)
  models::Cache cache = model.make_cache(6);
  test::expect_cached_logits(model, tokens, cache, {3, 1, 2});
  const NoGrad guard;
  EXPECT_THROW((void)model.next_logits(slice(tokens, 1, {0, 1}), cache), ValueError);
  EXPECT_THROW((void)model.make_cache(17), ValueError);
}

TEST_F(Llama3Test, CacheIsForGenerationAlone) {
  Model model(kTiny);
  nn::initialize(model, 3);
  models::Cache cache = model.make_cache(4);
  EXPECT_THROW((void)model.next_logits(ids({1}, {1, 1}), cache), UsageError);
}

TEST_F(Llama3Test, InitialisationFollowsDepth) {
  Model model(debugmodel());
  nn::initialize(model, 0);
  const double cut = 0.98658;  // of a normal's deviation at three
  EXPECT_NEAR(deviation(model.tok_embeddings->weight), 1, 0.01);
  EXPECT_NEAR(deviation(model.output->weight), cut / 16, 0.001);
  EXPECT_NEAR(deviation(model.layers[3].attention.wq.weight), cut * 0.02, 3e-4);
  EXPECT_NEAR(deviation(model.layers[3].feed_forward->w1.weight), cut * 0.02, 3e-4);
  for (size_t layer : {0u, 5u}) {
    const double expected = cut * 0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1));
    EXPECT_NEAR(deviation(model.layers[layer].attention.wo.weight), expected, 2e-4);
    EXPECT_NEAR(deviation(model.layers[layer].feed_forward->w2.weight), expected, 2e-4);
    EXPECT_NEAR(deviation(model.layers[layer].feed_forward->w3.weight), expected, 2e-4);
  }
}

TEST_F(Llama3Test, LossOfAnUntrainedModelIsThatOfGuessing) {
  Model model(kTiny);
  nn::initialize(model, 0);
  const Tensor tokens = ids({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  const Tensor logits = model.forward(tokens);
  EXPECT_EQ(logits.shape(), (Shape{2, 4, 50}));
  const auto [sum, count] = cross_entropy(logits, tokens);
  EXPECT_EQ(count.item(), 8);
  EXPECT_NEAR(sum.item() / 8, std::log(50.0), 1.5);
  backward(sum);
  for (const auto& p : nn::named_parameters(model))
    EXPECT_TRUE(p.tensor.grad().defined()) << p.name;
}

TEST_F(Llama3Test, ALaterTokenChangesNothingBefore) {
  Model model(kTiny);
  nn::initialize(model, 0);
  const Tensor a = model.forward(ids({1, 2, 3, 4}, {1, 4}));
  const Tensor b = model.forward(ids({1, 2, 3, 9}, {1, 4}));
  for (double v : (slice(a, 1, {0, 3}) - slice(b, 1, {0, 3})).values()) EXPECT_EQ(v, 0);
  EXPECT_NE(select(a, 1, 3).values(), select(b, 1, 3).values());
}

TEST_F(Llama3Test, RunsOnMetaTensors) {
  // Shapes can be planned without bytes.
  Model model(debugmodel());
  EXPECT_EQ(model.forward(empty({2, 8}, DType::i64, kMeta)).shape(), (Shape{2, 8, 2048}));
}

TEST_F(Llama3Test, InF64GradientsAreThoseOfDifferences) {
  Config config = kTiny;
  config.dtype = DType::f64;
  Model model(config);
  EXPECT_EQ(model.metadata(4).of().cos.dtype(), DType::f64);
  test::expect_gradients_of_differences(model);
}

TEST_F(Llama3Test, ScalingThatGgufCannotSayIsNamed) {
  Config yarn = kTiny;
  yarn.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .truncate = false};
  EXPECT_EQ(
      test::error_of<ValueError>(
          [&] { (void)gguf().values(models::ModelConfig::of<Model>("llama3", "", yarn)); }),
      "[gguf] this rope_scaling cannot be expressed: llama.cpp's llama has none, linear, plain "
      "yarn, llama");
}

TEST_F(Llama3Test, BadInputIsNamed) {
  Config odd = kTiny;
  odd.n_heads = 5;
  EXPECT_THROW(Model{odd}, ValueError);
  Model model(kTiny);
  test::expect_typed_errors(model);
}

}  // namespace
}  // namespace tessera::llama3

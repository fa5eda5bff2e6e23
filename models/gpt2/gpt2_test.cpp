// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2/gpt2.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace tessera::gpt2 {
namespace {

using test::deviation;
using test::ids;

const Config kTiny{.dim = 24, .n_layers = 2, .n_heads = 8, .vocab_size = 50, .max_seq_len = 16};

class Gpt2Test : public testing::Test {
 protected:
  Session session_;
};

TEST_F(Gpt2Test, NamesAreThoseOfOurDecoders) {
  Model model(kTiny);
  std::vector<std::string> expected{"tok_embeddings.weight", "pos_embeddings.weight"};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const auto* name : {"attention.wq", "attention.wk", "attention.wv", "attention.wo",
                             "feed_forward.w1", "feed_forward.w2", "attention_norm", "ffn_norm"}) {
      expected.push_back(layer + name + ".weight");
      expected.push_back(layer + name + ".bias");
    }
  }
  expected.insert(expected.end(), {"norm.weight", "norm.bias"});
  EXPECT_EQ(test::parameter_names(model), expected);
}

TEST_F(Gpt2Test, FlavorsHaveTheirPublishedSizes) {
  test::expect_sizes<Model>(flavor, 50257,
                            {{"124M", 124'439'808},
                             {"355M", 354'823'168},
                             {"774M", 774'030'080},
                             {"1558M", 1'557'611'200}});
  EXPECT_THROW((void)flavor("125M"), ValueError);
  EXPECT_EQ(flavors().size(), 5u);
}

TEST_F(Gpt2Test, DebugModelHasItsSize) {
  Model model(debugmodel());
  const int64_t matrices = 2048 * 256 + 6 * 12 * 256 * 256, vectors = 6 * 13 * 256 + 2 * 256;
  EXPECT_EQ(nn::parameter_count(model), matrices + vectors + 1024 * 256);
  const std::vector<int64_t> documents{100, 28};
  // 100 * 101 / 2 and 28 * 29 / 2 pairs of tokens, none between documents.
  EXPECT_EQ(model.flops(documents), 6.0 * (matrices * 128 + 6 * 2 * 256 * (5050 + 406)));
}

TEST_F(Gpt2Test, InitialisationIsThePublished) {
  Model model(debugmodel());
  nn::initialize(model, 0);
  EXPECT_NEAR(deviation(model.tok_embeddings->weight), 0.02, 2e-4);
  EXPECT_NEAR(deviation(model.pos_embeddings->weight), 0.02, 2e-4);
  for (size_t layer : {0u, 5u}) {
    const models::TransformerBlock& block = model.layers[layer];
    EXPECT_NEAR(deviation(block.attention.wk.weight), 0.02, 3e-4);
    EXPECT_NEAR(deviation(block.mlp->w1.weight), 0.02, 3e-4);
    EXPECT_NEAR(deviation(block.attention.wo.weight), 0.02 / std::sqrt(12.0), 2e-4);
    EXPECT_NEAR(deviation(block.mlp->w2.weight), 0.02 / std::sqrt(12.0), 2e-4);
    EXPECT_EQ(norm({block.attention.wq.bias, block.mlp->w2.bias}).item(), 0);
  }
}

TEST_F(Gpt2Test, LossWithoutLogitsIsTheLoss) {
  // That of a model that guesses.
  EXPECT_NEAR(test::expect_loss_without_logits<Model>(kTiny), std::log(50.0), 0.1);
}

TEST_F(Gpt2Test, CacheGivesTheLogitsOfTheWhole) {
  Model model(kTiny);
  nn::initialize(model, 3);
  const Tensor tokens = ids({1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 11, 12}, {2, 6});  // (B, T)
  models::Cache cache = model.make_cache(6);
  EXPECT_THROW((void)model.next_logits(tokens, cache), UsageError) << "gradients are recorded";
  test::expect_cached_logits(model, tokens, cache, {3, 1, 2});
  const NoGrad guard;
  EXPECT_THROW((void)model.next_logits(slice(tokens, 1, {0, 1}), cache), ValueError);
  EXPECT_THROW((void)model.make_cache(17), ValueError);
}

TEST_F(Gpt2Test, ACacheOfAnotherModelIsRefused) {
  const Model model(kTiny);
  models::Cache cache = model.make_cache(6);
  cache.layers.pop_back();
  const NoGrad guard;
  EXPECT_EQ(test::error_of<ValueError>([&] {
              (void)model.next_logits(ids({1, 2}, {1, 2}), cache);
            }),
            "[gpt2] the cache has 1 layer, the first of 0 tokens; expected 2 of equal length: use "
            "make_cache");
}

TEST_F(Gpt2Test, DocumentsOfARowStandAlone) {
  Model model(kTiny);
  nn::initialize(model, 3);
  const models::Metadata metadata =
      model.metadata(5).with_documents(ids({0, 1, 0, 1, 2}, {1, 5}), ids({0, 0, 1, 1, 1}, {1, 5}));
  const Tensor packed = model.forward(ids({7, 8, 1, 2, 3}, {1, 5}), metadata);
  const auto got = slice(packed, 1, {2, 5}).values();
  const auto want = model.forward(ids({1, 2, 3}, {1, 3})).values();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

TEST_F(Gpt2Test, PositionsMatter) {
  Model model(kTiny);
  nn::initialize(model, 3);
  const Tensor logits = model.forward(ids({4, 4}, {1, 2}));
  EXPECT_NE(select(logits, 1, 0).values(), select(logits, 1, 1).values());
  const Tensor later = model.forward(ids({4}, {1, 1}), model.metadata(1, 5));
  EXPECT_NE(later.values(), select(logits, 1, 0).values());
}

TEST_F(Gpt2Test, DropoutFieldsDropWhileTraining) {
  for (double Config::*field : {&Config::embedding_dropout, &Config::residual_dropout}) {
    Config config = kTiny;
    config.*field = 0.5;
    Model model(config), plain(kTiny);
    nn::initialize(model, 3);
    nn::initialize(plain, 3);
    const Tensor tokens = ids({1, 2, 3, 4}, {1, 4});
    EXPECT_NE(model.forward(tokens).values(), plain.forward(tokens).values());
    model.eval();
    EXPECT_EQ(model.forward(tokens).values(), plain.forward(tokens).values());
  }
}

TEST_F(Gpt2Test, InF64GradientsAreThoseOfDifferences) {
  Config config = kTiny;
  config.dtype = DType::f64;
  Model model(config);
  test::expect_gradients_of_differences(model);
}

TEST_F(Gpt2Test, MixedPrecisionAndCheckpointsKeepTheLoss) {
  const auto loss = [](bool wrapped) {
    Model model(kTiny);
    nn::initialize(model, 3);
    const auto units = model.units();
    if (wrapped) {
      nn::apply_activation_checkpoint(units, {.mode = nn::ActivationCheckpointConfig::Mode::full});
      nn::mixed_precision(model, units, DType::bf16);
    }
    const Tensor tokens = test::two_rows();
    const Tensor sum = model.loss(tokens, tokens, model.metadata(4)).sum;
    backward(sum);
    for (const auto& p : nn::named_parameters(model))
      EXPECT_EQ(p.tensor.grad().dtype(), DType::f32) << p.name;
    return sum.item();
  };
  EXPECT_NEAR(loss(true), loss(false), 0.05);
}

TEST_F(Gpt2Test, FieldsAndTheirConflicts) {
  Config c;
  config::Fields fields;
  fields.section("model", c);
  const std::vector<std::string> words{
      "--model.n_heads", "7", "--model.attention_dropout", "0.1", "--model.residual_dropout", "1"};
  EXPECT_EQ(fields.parse(words).size(), 1u) << "a share below 1";
  EXPECT_EQ(c.n_heads, 7);
  EXPECT_EQ(c.conflicts(),
            (std::vector<std::string>{
                "[--model.dim] 768 is not a multiple of --model.n_heads 7",
                "[--model.attention_dropout] is 0.1, but attention drops no probabilities: set it "
                "to 0 and use --model.residual_dropout"}));
  for (const auto& f : flavors()) EXPECT_TRUE(f.config.conflicts().empty()) << f.name;
}

// The gradients of all parameters; rows cut over the mesh's ranks, if there is one.
std::vector<std::vector<double>> gradients(std::optional<Mesh> mesh, bool packed) {
  Config config = kTiny;
  config.dtype = DType::f64;
  Model model(config);
  nn::initialize(model, 3, [mesh](const std::string&, const TensorMeta&) {
    return mesh ? Layout::replicated(*mesh) : Layout();
  });
  const auto lying = [mesh](const std::vector<double>& values) {
    const Tensor rows = ids(values, {4, 3});
    return mesh ? distribute(rows, Layout::of(*mesh, {Shard(0)})) : rows;
  };
  models::Metadata metadata = model.metadata(3);
  if (packed)
    metadata = metadata.with_documents(lying({0, 1, 2, 0, 1, 0, 0, 0, 1, 0, 0, 0}),
                                       lying({0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 2}));
  backward(model
               .loss(lying({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
                     lying({2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, -100}), metadata)
               .sum);
  std::vector<std::vector<double>> all;
  for (const auto& p : nn::named_parameters(model))
    all.push_back((mesh ? full_tensor(p.tensor.grad()) : p.tensor.grad()).values());
  return all;
}

TEST(Gpt2Ranks, GradientsAreThoseOfOneRank) {
  for (const bool packed : {false, true}) {
    std::vector<std::vector<double>> expected;
    {
      const Session session;
      expected = gradients({}, packed);
    }
    run_ranks(4, [&](World& world) {
      const auto got = gradients(Mesh::make({{"dp", 4}}), packed);
      if (world.rank() != 0) return;
      for (size_t i = 0; i < expected.size(); ++i) {
        for (size_t j = 0; j < expected[i].size(); ++j)
          EXPECT_NEAR(got[i][j], expected[i][j], 1e-12) << i << ' ' << j;
      }
    });
  }
}

TEST_F(Gpt2Test, BadInputIsNamed) {
  Config wrong = kTiny;
  wrong.n_heads = 5;
  EXPECT_THROW(Model{wrong}, ValueError);
  wrong = kTiny;
  wrong.attention_dropout = 0.1;
  try {
    const Model model(wrong);
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "[--model.attention_dropout] is 0.1, but attention drops no probabilities: set it "
                 "to 0 and use --model.residual_dropout");
  }
  Model model(kTiny);
  test::expect_typed_errors(model);
}

}  // namespace
}  // namespace tessera::gpt2

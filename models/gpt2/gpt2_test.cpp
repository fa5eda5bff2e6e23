// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2/gpt2.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/mixed_precision.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace tessera::gpt2 {
namespace {

const Config kTiny{.dim = 24, .n_layers = 2, .n_heads = 8, .vocab_size = 50, .max_seq_len = 16};

class Gpt2Test : public testing::Test {
 protected:
  static Tensor ids(const std::vector<double>& values, const Shape& shape) {
    return from_values(values, shape, DType::i64);
  }
  Session session_;
};

TEST_F(Gpt2Test, NamesAreThoseOfOurDecoders) {
  Model model(kTiny);
  std::vector<std::string> names;
  for (const auto& p : nn::named_parameters(model)) names.push_back(p.name);
  std::vector<std::string> expected{"tok_embeddings.weight", "pos_embeddings.weight"};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const auto* name : {"attention.wq", "attention.wk", "attention.wv", "attention.wo",
                             "feed_forward.w1", "feed_forward.w2", "attention_norm", "ffn_norm"}) {
      expected.push_back(layer + name + ".weight");
      expected.push_back(layer + name + ".bias");
    }
  }
  expected.insert(expected.end(), {"norm.weight", "norm.bias"});
  EXPECT_EQ(names, expected);
}

TEST_F(Gpt2Test, FlavorsHaveTheirPublishedSizes) {
  const std::pair<std::string_view, int64_t> sizes[]{{"124M", 124'439'808},
                                                     {"355M", 354'823'168},
                                                     {"774M", 774'030'080},
                                                     {"1558M", 1'557'611'200}};
  for (const auto& [name, count] : sizes) {
    Model model(flavor(name));  // on the meta device: no bytes
    EXPECT_EQ(nn::parameter_count(model), count) << name;
    const Tensor tokens = empty({1, 8}, DType::i64, kMeta);
    const NoGrad guard;
    const Tensor logits = model.forward(tokens);
    EXPECT_TRUE(logits.device().is_meta());
    EXPECT_EQ(logits.shape(), (Shape{1, 8, 50257})) << name;
  }
  EXPECT_THROW((void)flavor("125M"), ValueError);
  EXPECT_EQ(flavors().size(), 5u);
}

TEST_F(Gpt2Test, DebugModelHasItsSize) {
  Model model(debugmodel());
  const int64_t dense = 2048 * 256 + 6 * (12 * 256 * 256 + 13 * 256) + 2 * 256;
  EXPECT_EQ(nn::parameter_count(model), dense + 1024 * 256);
  const std::vector<int64_t> documents{100, 28};
  EXPECT_EQ(model.flops(documents), 6.0 * (dense * 128 + 6 * 256 * 2 * (100 * 100 + 28 * 28)));
}

TEST_F(Gpt2Test, InitialisationIsThePublished) {
  Model model(debugmodel());
  nn::initialize(model, 0);
  const auto deviation = [](const Tensor& t) {
    return norm({t}) / std::sqrt(static_cast<double>(t.numel()));
  };
  EXPECT_NEAR(deviation(model.tok_embeddings->weight), 0.02, 2e-4);
  EXPECT_NEAR(deviation(model.pos_embeddings->weight), 0.02, 2e-4);
  for (size_t layer : {0u, 5u}) {
    const Block& block = model.layers[layer];
    EXPECT_NEAR(deviation(block.attention.wk.weight), 0.02, 3e-4);
    EXPECT_NEAR(deviation(block.feed_forward.w1.weight), 0.02, 3e-4);
    EXPECT_NEAR(deviation(block.attention.wo.weight), 0.02 / std::sqrt(12.0), 2e-4);
    EXPECT_NEAR(deviation(block.feed_forward.w2.weight), 0.02 / std::sqrt(12.0), 2e-4);
    EXPECT_EQ(norm({block.attention.wq.bias, block.feed_forward.w2.bias}), 0);
  }
}

TEST_F(Gpt2Test, LossWithoutLogitsIsTheLoss) {
  const auto run = [](bool fused) {
    Model model(kTiny);
    nn::initialize(model, 3);
    const Tensor tokens = ids({1, 2, 3, 4, 9, 8, 7, 6}, {2, 4});
    const Tensor targets = ids({2, 3, 4, -100, 8, 7, 6, 5}, {2, 4});
    const CrossEntropyResult made = cross_entropy(model.forward(tokens), targets);
    const models::Loss loss =
        fused ? model.loss(tokens, targets, model.metadata(4)) : models::Loss{made.sum, made.count};
    EXPECT_EQ(loss.count.item(), 7);
    EXPECT_NEAR(loss.sum.item() / 7, std::log(50.0), 0.1);  // of a model that guesses
    backward(loss.sum);
    std::vector<double> values{loss.sum.item()};
    for (const auto& p : nn::named_parameters(model)) {
      for (double v : p.tensor.grad().values()) values.push_back(v);
    }
    return values;
  };
  const auto a = run(true), b = run(false);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5 * (1 + std::abs(b[i]))) << i;
}

TEST_F(Gpt2Test, CacheGivesTheLogitsOfTheWhole) {
  Model model(kTiny);
  nn::initialize(model, 3);
  const Tensor tokens = ids({1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 11, 12}, {2, 6});  // (B, T)
  models::Cache cache = model.make_cache(6);
  EXPECT_THROW((void)model.next_logits(tokens, cache), UsageError) << "gradients are recorded";
  const NoGrad guard;
  const Tensor whole = model.forward(tokens);  // (B, T, V)
  int64_t at = 0;
  for (int64_t count : {3, 1, 2}) {
    const Tensor last = model.next_logits(slice(tokens, 1, {at, at + count}), cache);  // (B, 1, V)
    at += count;
    const auto got = last.values(), want = slice(whole, 1, {at - 1, at}).values();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << at;
  }
  EXPECT_THROW((void)model.next_logits(slice(tokens, 1, {0, 1}), cache), ValueError);
  EXPECT_THROW((void)model.make_cache(17), ValueError);
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
  nn::initialize(model, 3);
  const Tensor tokens = ids({1, 2, 3, 4, 9, 8, 7, 6}, {2, 4});
  const Tensor targets = ids({2, 3, 4, -100, 8, 7, 6, 5}, {2, 4});
  const auto loss = [&] { return model.loss(tokens, targets, model.metadata(4)).sum; };
  const Tensor sum = loss();
  EXPECT_EQ(sum.dtype(), DType::f64);
  EXPECT_EQ(model.forward(tokens).dtype(), DType::f64);
  backward(sum);
  const NoGrad guard;
  for (const auto& p : nn::named_parameters(model)) {
    ASSERT_EQ(p.tensor.grad().dtype(), DType::f64) << p.name;
    double* x = p.tensor.detach().data<double>();
    for (int64_t i : {int64_t{1}, p.tensor.numel() / 2}) {
      const double at = x[i], h = 1e-5;
      x[i] = at + h;
      const double above = loss().item();
      x[i] = at - h;
      const double below = loss().item();
      x[i] = at;
      const double slope = (above - below) / (2 * h);
      EXPECT_NEAR(p.tensor.grad().values()[static_cast<size_t>(i)], slope,
                  1e-8 * (1 + std::abs(slope)))
          << p.name << ' ' << i;
    }
  }
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
    const Tensor tokens = ids({1, 2, 3, 4, 9, 8, 7, 6}, {2, 4});
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
  const auto ids = [mesh](const std::vector<double>& values) {
    const Tensor rows = from_values(values, {4, 3}, DType::i64);
    return mesh ? distribute(rows, Layout::of(*mesh, {Shard(0)})) : rows;
  };
  models::Metadata metadata = model.metadata(3);
  if (packed)
    metadata = metadata.with_documents(ids({0, 1, 2, 0, 1, 0, 0, 0, 1, 0, 0, 0}),
                                       ids({0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 2}));
  backward(model
               .loss(ids({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
                     ids({2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, -100}), metadata)
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
  nn::initialize(model, 0);
  EXPECT_THROW((void)model.metadata(17), ValueError);
  EXPECT_THROW((void)model.forward(ids({1, 2}, {2})), ShapeError);
  EXPECT_THROW((void)model.forward(ids({1, 50}, {1, 2})), IndexError);
  EXPECT_THROW((void)model.forward(from_values({1, 2}, {1, 2})), DTypeError);
}

}  // namespace
}  // namespace tessera::gpt2

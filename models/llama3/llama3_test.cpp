// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/llama3/llama3.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::llama3 {
namespace {

const Config kTiny{.dim = 32,
                   .n_layers = 2,
                   .n_heads = 4,
                   .n_kv_heads = 2,
                   .ffn_dim = 64,
                   .vocab_size = 50,
                   .max_seq_len = 16,
                   .rope_theta = 10000,
                   .norm_eps = 1e-5};

class Llama3Test : public testing::Test {
 protected:
  Session session_;
};

TEST_F(Llama3Test, NamesAreTorchtitans) {
  Model model(kTiny);
  std::vector<std::string> names;
  for (const auto& p : nn::named_parameters(model)) names.push_back(p.name);
  std::vector<std::string> expected{"tok_embeddings.weight"};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const auto* name :
         {"attention.wq", "attention.wk", "attention.wv", "attention.wo", "feed_forward.w1",
          "feed_forward.w2", "feed_forward.w3", "attention_norm", "ffn_norm"}) {
      expected.push_back(layer + name + ".weight");
    }
  }
  expected.insert(expected.end(), {"norm.weight", "output.weight"});
  EXPECT_EQ(names, expected);
}

TEST_F(Llama3Test, DebugModelHasItsSize) {
  Model model(debugmodel());
  // 2 * 2048 * 256 + 6 * (4 * 256^2 + 3 * 256 * 768 + 2 * 256) + 256
  EXPECT_EQ(nn::parameter_count(model), 6'163'712);
  const double dense = 6'163'712 - 2048 * 256;
  const std::vector<int64_t> row{256}, documents{200, 56};
  EXPECT_EQ(model.flops(row), 256 * 6 * (dense + 6 * 16 * 32 * 256));
  // Tokens of one document do not multiply with those of another.
  EXPECT_EQ(model.flops(documents), 6 * (dense * 256 + 6 * 16 * 32 * (200. * 200 + 56 * 56)));
}

TEST_F(Llama3Test, FlavorsHaveTheirPublishedSizes) {
  const std::pair<std::string_view, int64_t> sizes[]{{"1B", 1'235'814'400},
                                                     {"3B", 3'212'749'824},
                                                     {"8B", 8'030'261'248},
                                                     {"70B", 70'553'706'496},
                                                     {"405B", 405'853'388'800}};
  for (const auto& [name, count] : sizes) {
    Model model(flavor(name));  // on the meta device: no bytes
    EXPECT_EQ(nn::parameter_count(model), count) << name;
    const Tensor tokens = empty({1, 8}, DType::i64, kMeta);
    const NoGrad guard;
    const Tensor logits = model.forward(tokens);
    EXPECT_TRUE(logits.device().is_meta());
    EXPECT_EQ(logits.shape(), (Shape{1, 8, 128256})) << name;
  }
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
  EXPECT_NEAR(norm({model.tok_embeddings->weight}) / std::sqrt(50.0 * 32), 1 / std::sqrt(32.0),
              0.02);
  const Tensor tokens = from_values({1, 2, 3, 4}, {1, 4}, DType::i64);
  const Tensor logits = model.forward(tokens);
  EXPECT_EQ(logits.shape(), (Shape{1, 4, 50}));
  const Tensor total = model.loss(tokens, tokens, model.metadata(4)).sum;
  EXPECT_NEAR(total.item(), cross_entropy(logits, tokens).sum.item(), 1e-4);
  backward(total);
  EXPECT_TRUE(model.tok_embeddings->weight.grad().defined());
}

TEST_F(Llama3Test, LossWithoutLogitsIsTheLoss) {
  const auto run = [](bool fused) {
    Model model(kTiny);
    nn::initialize(model, 3);
    const Tensor tokens = from_values({1, 2, 3, 4, 9, 8, 7, 6}, {2, 4}, DType::i64);
    const Tensor targets = from_values({2, 3, 4, -100, 8, 7, 6, 5}, {2, 4}, DType::i64);
    const models::Metadata metadata = model.metadata(4);
    CrossEntropyResult result;
    if (fused) {
      const models::Loss loss = model.loss(tokens, targets, metadata);
      result = {loss.sum, loss.count};
    } else {
      result = cross_entropy(model.forward(tokens, metadata), targets);
    }
    EXPECT_EQ(result.count.item(), 7);
    backward(result.sum);
    std::vector<double> values{result.sum.item()};
    for (const auto& p : nn::named_parameters(model)) {
      for (double v : p.tensor.grad().values()) values.push_back(v);
    }
    return values;
  };
  const auto a = run(true), b = run(false);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5 * (1 + std::abs(b[i]))) << i;
}

TEST_F(Llama3Test, CacheGivesTheLogitsOfTheWhole) {
  Model model(kTiny);
  nn::initialize(model, 3);
  const NoGrad guard;
  const Tensor tokens =
      from_values({1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 11, 12}, {2, 6}, DType::i64);  // (B, T)
  const Tensor whole = model.forward(tokens);                                   // (B, T, V)
  models::Cache cache = model.make_cache(6);
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

TEST_F(Llama3Test, CacheIsForGenerationAlone) {
  Model model(kTiny);
  nn::initialize(model, 3);
  models::Cache cache = model.make_cache(4);
  EXPECT_THROW((void)model.next_logits(from_values({1}, {1, 1}, DType::i64), cache), UsageError);
}

TEST_F(Llama3Test, InitialisationFollowsDepth) {
  Model model(debugmodel());
  nn::initialize(model, 0);
  const auto deviation = [](const Tensor& t) {
    return norm({t}) / std::sqrt(static_cast<double>(t.numel()));
  };
  const double cut = 0.98658;  // of a normal's deviation at three
  EXPECT_NEAR(deviation(model.tok_embeddings->weight), 1, 0.01);
  EXPECT_NEAR(deviation(model.output->weight), cut / 16, 0.001);
  EXPECT_NEAR(deviation(model.layers[3].attention.wq.weight), cut * 0.02, 3e-4);
  EXPECT_NEAR(deviation(model.layers[3].feed_forward.w1.weight), cut * 0.02, 3e-4);
  for (size_t layer : {0u, 5u}) {
    const double expected = cut * 0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1));
    EXPECT_NEAR(deviation(model.layers[layer].attention.wo.weight), expected, 2e-4);
    EXPECT_NEAR(deviation(model.layers[layer].feed_forward.w2.weight), expected, 2e-4);
    EXPECT_NEAR(deviation(model.layers[layer].feed_forward.w3.weight), expected, 2e-4);
  }
}

TEST_F(Llama3Test, LossOfAnUntrainedModelIsThatOfGuessing) {
  Model model(kTiny);
  nn::initialize(model, 0);
  const Tensor tokens = from_values({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4}, DType::i64);
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
  const Tensor a = model.forward(from_values({1, 2, 3, 4}, {1, 4}, DType::i64));
  const Tensor b = model.forward(from_values({1, 2, 3, 9}, {1, 4}, DType::i64));
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
  nn::initialize(model, 3);
  const Tensor tokens = from_values({1, 2, 3, 4, 9, 8, 7, 6}, {2, 4}, DType::i64);
  const Tensor targets = from_values({2, 3, 4, -100, 8, 7, 6, 5}, {2, 4}, DType::i64);
  const models::Metadata metadata = model.metadata(4);
  EXPECT_EQ(metadata.of().cos.dtype(), DType::f64);
  const auto loss = [&] { return model.loss(tokens, targets, metadata).sum; };
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

TEST_F(Llama3Test, BadInputIsNamed) {
  Config odd = kTiny;
  odd.n_heads = 5;
  EXPECT_THROW(Model{odd}, ValueError);
  Model model(kTiny);
  nn::initialize(model, 0);
  EXPECT_THROW((void)model.metadata(17), ValueError);
  EXPECT_THROW((void)model.forward(from_values({1, 2}, {2}, DType::i64)), ShapeError);
  EXPECT_THROW((void)model.forward(from_values({1, 50}, {1, 2}, DType::i64)), IndexError);
  EXPECT_THROW((void)model.forward(from_values({1, 2}, {1, 2})), DTypeError);
}

}  // namespace
}  // namespace tessera::llama3

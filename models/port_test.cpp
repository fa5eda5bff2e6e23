// SPDX-License-Identifier: Apache-2.0
// The model port: models without a name, stages of a model, and a family made in a few lines.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/models/models.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/toy_family.h"

#include <gtest/gtest.h>

namespace tessera::models {
namespace {

const llama3::Config kTiny{.dim = 32,
                           .n_layers = 3,
                           .n_heads = 4,
                           .n_kv_heads = 2,
                           .ffn_dim = 64,
                           .vocab_size = 50,
                           .max_seq_len = 16,
                           .rope_theta = 10000,
                           .norm_eps = 1e-5};

class PortTest : public testing::Test {
 protected:
  Session session_;
};

template <class F> std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(PortTest, AConfigurationIsAValueOfAnyFamily) {
  const std::vector<Family> all = families();
  ModelConfig a = find_family(all, "llama3").flavor("debugmodel");
  ModelConfig b = a;
  b.as<llama3::Config>().dim = 64;
  b.dtype() = DType::bf16;
  EXPECT_EQ(a.as<llama3::Config>().dim, 256);
  EXPECT_EQ(a.dtype(), DType::f32);
  EXPECT_EQ(b.flavor(), "debugmodel");
  EXPECT_EQ(a.vocab_size(), 2048);
  EXPECT_EQ(nn::parameter_count(*a.make()), 6'163'712);
  b.as<llama3::Config>().n_heads = 3;
  EXPECT_EQ(b.conflicts().size(), 2u);
  EXPECT_EQ(message_of([] { (void)ModelConfig().vocab_size(); }),
            "[model] no model is configured: give --model.name and --model.flavor, or assign a "
            "flavor of a family");
  struct Other {};
  EXPECT_THROW((void)a.as<Other>(), UsageError);
}

TEST_F(PortTest, AnUnknownNameIsAnsweredWithTheList) {
  const std::vector<Family> all = families();
  EXPECT_TRUE(message_of([&] { (void)find_family(all, "lama3"); })
                  .starts_with("[--model.name] there is no 'lama3': did you mean llama3? There are "
                               "llama3"));
  EXPECT_EQ(message_of([&] { (void)find_family(all, "llama3").flavor("7B"); }),
            "[--model.flavor] there is no '7B': did you mean 1B? There are debugmodel, 1B, 3B, 8B, "
            "70B, 405B");
}

// A pipeline's stages: each is a model that lacks what the others hold.
TEST_F(PortTest, StagesComputeWhatTheWholeComputes) {
  llama3::Model whole(kTiny), first(kTiny), middle(kTiny), last(kTiny);
  for (llama3::Model* m : {&first, &middle}) {
    m->norm.reset();
    m->output.reset();
    m->layers.remove(2);
  }
  for (llama3::Model* m : {&middle, &last}) {
    m->tok_embeddings.reset();
    m->layers.remove(0);
  }
  first.layers.remove(1);
  last.layers.remove(1);
  int64_t parameters = 0;
  for (llama3::Model* m : {&first, &middle, &last}) {
    nn::initialize(*m, 3);
    parameters += nn::parameter_count(*m);
    EXPECT_EQ(m->units().size(), 1u);
  }
  nn::initialize(whole, 3);
  EXPECT_EQ(parameters, nn::parameter_count(whole));
  const Tensor tokens = from_values({1, 2, 3, 4, 9, 8, 7, 6}, {2, 4}, DType::i64);
  const Metadata m = whole.metadata(4);
  const Tensor sent = middle.features(first.features(tokens, m), m);
  EXPECT_EQ(last.forward(sent, m).values(), whole.forward(tokens, m).values());
  const Loss a = whole.loss(tokens, tokens, m), b = last.loss(sent, tokens, m);
  EXPECT_EQ(a.sum.item(), b.sum.item());
  backward(a.sum);
  backward(b.sum);
  EXPECT_EQ(first.tok_embeddings->weight.grad().values(),
            whole.tok_embeddings->weight.grad().values());
  EXPECT_EQ(message_of([&] { (void)middle.loss(sent, tokens, m); }),
            "[llama3] loss needs the head, which this stage lacks: call it on the last stage");
}

TEST_F(PortTest, AFamilyIsAFolderAndALine) {
  std::vector<Family> all = families();
  all.push_back(test::toy_family());
  const auto model = find_family(all, "toy").flavor("wide").make();
  EXPECT_EQ(nn::parameter_count(*model), 11 * 9);
  nn::initialize(*model, 1);
  const Tensor tokens = from_values({1, 2, 3}, {1, 3}, DType::i64);
  const Loss l = model->loss(tokens, tokens, model->metadata(3));
  EXPECT_EQ(l.auxiliary.at(0).name, "size");
  backward(l.sum + l.auxiliary.at(0).value);
  model->before_optimizer_step();
  EXPECT_EQ(model->statistics().at(0).value.item(), 1);
  EXPECT_EQ(model->forward(tokens).shape(), (Shape{1, 3, 11}));
}

}  // namespace
}  // namespace tessera::models

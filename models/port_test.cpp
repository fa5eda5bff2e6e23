// SPDX-License-Identifier: Apache-2.0
// The model port: models without a name, stages of a model, and a family made in a few lines.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/models/models.h"
#include "tessera/nn/parallel/mixed_precision.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/toy_family.h"

#include <gtest/gtest.h>

namespace tessera::models {
namespace {

using test::error_of;

const llama3::Config kTiny = test::tiny_llama3(3);
const gpt2::Config kTinyGpt2{
    .dim = 24, .n_layers = 3, .n_heads = 4, .vocab_size = 50, .max_seq_len = 16};
const std::vector<int64_t> kDocuments{5, 3};

class PortTest : public testing::Test {
 protected:
  Session session_;
};

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
  EXPECT_EQ(error_of([] { (void)ModelConfig().vocab_size(); }),
            "[model] no model is configured: give --model.name and --model.flavor, or assign a "
            "flavor of a family");
  struct Other {};
  EXPECT_THROW((void)a.as<Other>(), UsageError);
}

TEST_F(PortTest, AnUnknownNameIsAnsweredWithTheList) {
  const std::vector<Family> all = families();
  EXPECT_TRUE(error_of([&] { (void)find_family(all, "lama3"); })
                  .starts_with("[--model.name] there is no 'lama3': did you mean llama3? There are "
                               "llama3"));
  EXPECT_EQ(error_of([&] { (void)find_family(all, "llama3").flavor("7B"); }),
            "[--model.flavor] there is no '7B': did you mean 1B? There are debugmodel, 1B, 3B, 8B, "
            "70B, 405B");
}

// A pipeline's stages: each is a model that lacks what the others hold.
TEST_F(PortTest, StagesComputeWhatTheWholeComputes) {
  llama3::Model whole(kTiny), first(kTiny), middle(kTiny), last(kTiny);
  EXPECT_EQ(whole.parts(), (std::vector<std::string>{"tok_embeddings", "layers.0", "layers.1",
                                                     "layers.2", "norm", "output"}));
  first.keep(std::vector<std::string>{"tok_embeddings", "layers.0"});
  middle.keep(std::vector<std::string>{"layers.1"});
  last.keep(std::vector<std::string>{"layers.2", "norm", "output"});
  EXPECT_EQ(first.parts(), (std::vector<std::string>{"tok_embeddings", "layers.0"}));
  int64_t parameters = 0;
  double flops = 0;
  for (llama3::Model* m : {&first, &middle, &last}) {
    nn::initialize(*m, 3);
    parameters += nn::parameter_count(*m);
    flops += m->flops(kDocuments);
    EXPECT_EQ(m->units().size(), 1u);
  }
  nn::initialize(whole, 3);
  EXPECT_EQ(parameters, nn::parameter_count(whole));
  EXPECT_EQ(flops, whole.flops(kDocuments));
  const Tensor tokens = test::two_rows();
  const Metadata m = whole.metadata(4);
  const Tensor sent = middle.features(first.features(tokens, m), m);
  EXPECT_EQ(last.forward(sent, m).values(), whole.forward(tokens, m).values());
  const Loss a = whole.loss(tokens, tokens, m), b = last.loss(sent, tokens, m);
  EXPECT_EQ(a.sum.item(), b.sum.item());
  backward(a.sum);
  backward(b.sum);
  EXPECT_EQ(first.tok_embeddings->weight.grad().values(),
            whole.tok_embeddings->weight.grad().values());
  EXPECT_EQ(error_of([&] { (void)middle.loss(sent, tokens, m); }),
            "[llama3] loss needs the head, which this stage lacks: call it on the last stage");
  EXPECT_THROW((void)middle.features(tokens, m), ShapeError);
  EXPECT_EQ(
      error_of([&] {
        (void)middle.features(empty({1, 2, 3}, DType::i64), m);
      }),
      "[llama3] features are i64[1, 2, 3], expected floating (B, T, dim) of the stage before: "
      "this one embeds no tokens");
}

// One table is embedding and head, so the first stage and the last both hold it.
template <class Model> void compare_tied_stages(const typename Model::Config& config) {
  Model whole(config), first(config), last(config);
  const std::vector<std::string> all = whole.parts();
  EXPECT_EQ(all.back(), "output");
  const auto second = std::ranges::find(all, "layers.1");
  first.keep(std::vector(all.begin(), second));
  last.keep(std::vector(second, all.end()));
  for (Model* m : {&whole, &first, &last}) nn::initialize(*m, 3);
  EXPECT_EQ(first.flops(kDocuments) + last.flops(kDocuments), whole.flops(kDocuments));
  const Tensor tokens = test::two_rows();
  const Metadata m = whole.metadata(4);
  const Tensor sent = first.features(tokens, m);
  EXPECT_EQ(last.forward(sent, m).values(), whole.forward(tokens, m).values());
  const Loss a = whole.loss(tokens, tokens, m), b = last.loss(sent, tokens, m);
  EXPECT_EQ(a.sum.item(), b.sum.item());
  backward(a.sum);
  backward(b.sum);
  const auto got = (first.tok_embeddings->weight.grad() + last.tok_embeddings->weight.grad());
  const auto want = whole.tok_embeddings->weight.grad();
  for (double v : (got - want).values()) EXPECT_NEAR(v, 0, 1e-4);
  EXPECT_THROW((void)first.forward(tokens, m), UsageError);
  EXPECT_THROW((void)first.logits(sent), UsageError);
  EXPECT_THROW((void)last.forward(tokens, m), ShapeError);
}

TEST_F(PortTest, StagesOfATiedModelSayWhichTheyAre) {
  llama3::Config tied = kTiny;
  tied.enable_weight_tying = true;
  compare_tied_stages<llama3::Model>(tied);
  compare_tied_stages<gpt2::Model>(kTinyGpt2);
  gpt2::Model without(kTinyGpt2);
  without.pos_embeddings.reset();
  nn::initialize(without, 3);
  EXPECT_EQ(error_of([&] {
              (void)without.forward(test::ids({1}, {1, 1}));
            }),
            "[gpt2] a stage that embeds tokens needs pos_embeddings beside tok_embeddings: keep "
            "both");
}

TEST_F(PortTest, AbsentLayersKeepTheirPlaceInACache) {
  for (const size_t absent : {0u, 1u}) {
    llama3::Model model(kTiny);
    model.layers.remove(absent);
    nn::initialize(model, 3);
    Cache cache = model.make_cache(5);
    test::expect_cached_logits(model, test::ids({1, 2, 3, 4, 5}, {1, 5}), cache, {2, 1, 2});
    for (const nn::KvCache& c : cache.layers) EXPECT_EQ(c.length, 5);
  }
}

TEST_F(PortTest, FeaturesAndLogitsComeApartInMixedPrecision) {
  llama3::Model model(kTiny);
  nn::initialize(model, 3);
  const auto units = model.units();
  nn::mixed_precision(model, units, DType::bf16);
  const Tensor tokens = test::ids({1, 2, 3, 4}, {1, 4});
  const Metadata m = model.metadata(4);
  const Tensor features = model.features(tokens, m);
  EXPECT_EQ(features.dtype(), DType::bf16);
  const Tensor logits = model.logits(features);
  EXPECT_EQ(logits.values(), model.forward(tokens, m).values());
  backward(sum(logits));
  for (const auto& p : nn::named_parameters(model))
    EXPECT_EQ(p.tensor.grad().dtype(), DType::f32) << p.name;
}

TEST_F(PortTest, WhatIsMissingIsATypedError) {
  EXPECT_EQ(error_of([] { (void)Metadata().of(2); }),
            "[metadata] no kind of layer 2: there are 0, counted from 0");
  const Family none{.name = "none", .description = "", .flavors = {}};
  EXPECT_EQ(error_of([&] { (void)none.flavor(""); }),
            "[family] none has no flavors: give it at least one");
  llama3::Config config = kTiny;
  config.n_layers = 1;
  llama3::Model model(config);
  model.tok_embeddings.reset();
  model.output.reset();
  model.norm.reset();
  model.layers.remove(0);
  EXPECT_THROW((void)model.placement(), UsageError);
  config.n_layers = 0;
  EXPECT_THROW(llama3::Model{config}, ValueError);
}

TEST_F(PortTest, AFamilyIsAFolderAndALine) {
  std::vector<Family> all = families();
  all.push_back(test::toy_family());
  const auto model = find_family(all, "toy").flavor("wide").make();
  EXPECT_EQ(nn::parameter_count(*model), 11 * 9);
  nn::initialize(*model, 1);
  const Tensor tokens = test::ids({1, 2, 3}, {1, 3});
  const Loss l = model->loss(tokens, tokens, model->metadata(3));
  EXPECT_EQ(l.auxiliary.at(0).name, "size");
  backward(l.sum + l.auxiliary.at(0).value);
  model->before_optimizer_step(l.load, zeros({}, DType::bool_));
  EXPECT_EQ(model->statistics(l.load).at(0).value.item(), 1);
  EXPECT_EQ(model->statistics(l.load).at(1).value.item(), 3);
  EXPECT_EQ(model->forward(tokens).shape(), (Shape{1, 3, 11}));
}

}  // namespace
}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// The tables of names: they cover every tensor of every size, and values only change their places.
#include "tessera/models/hugging_face.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/models.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/toy_family.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

namespace tessera::models {
namespace {

TEST(HuggingFaceNames, CoverEveryTensorOfEverySizeOnce) {
  const Session session;
  for (const Family& family : families()) {
    ASSERT_TRUE(family.hugging_face) << family.name;
    for (const ModelConfig& size : family.flavors) {
      std::map<std::string, int64_t> ours;
      const auto model = size.make();
      for (const auto& [name, tensor] : nn::named_parameters(*model)) ours[name] = tensor.numel();
      std::set<std::string> theirs;
      for (const HfTensor& t : hf_tensors(*family.hugging_face, size)) {
        EXPECT_TRUE(theirs.insert(t.name).second) << t.name;
        int64_t parts = 0;
        for (const auto& part : t.ours) {
          ASSERT_TRUE(ours.contains(part.name)) << part.name;
          parts += ours.at(part.name);
          ours.erase(part.name);
        }
        EXPECT_EQ(parts, t.shape.numel()) << t.name;
      }
      EXPECT_TRUE(ours.empty()) << family.name << ' ' << size.flavor() << ' '
                                << ours.begin()->first;
    }
  }
}

TEST(HuggingFaceNames, JoiningAndParting) {
  const Session session;
  const auto counted = [](const Shape& shape, double from) {
    std::vector<double> v(static_cast<size_t>(shape.numel()));
    std::iota(v.begin(), v.end(), from);
    return from_values(v, shape, DType::f32);
  };
  const HfTensor conv{.name = "c",
                      .shape = {3, 5},
                      .ours = {{"q", {2, 3}}, {"k", {3, 3}}},
                      .change = HfChange::transposed};
  const std::vector<Tensor> parts{counted({2, 3}, 0), counted({3, 3}, 6)};
  const Tensor joined = conv.join(parts);
  EXPECT_EQ(joined.shape(), conv.shape);
  EXPECT_EQ(joined.values(),
            (std::vector<double>{0, 3, 6, 9, 12, 1, 4, 7, 10, 13, 2, 5, 8, 11, 14}));
  // Two heads of six rows: first the even rows of a head, then the odd ones.
  const HfTensor turned{.name = "q",
                        .shape = {12, 1},
                        .ours = {{"q", {12, 1}}},
                        .change = HfChange::halves,
                        .head_dim = 6};
  const Tensor rows = counted({12, 1}, 0);
  EXPECT_EQ(turned.join({rows}).values(),
            (std::vector<double>{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
  EXPECT_EQ(turned.part(turned.join({rows}), 0).values(), rows.values());
  for (size_t i = 0; i < parts.size(); ++i)
    EXPECT_EQ(conv.part(joined, i).values(), parts[i].values());
}

// What config.json says of a size is that size again.
TEST(HuggingFaceNames, EverySizeComesBackFromItsConfiguration) {
  const std::vector<Family> all = families();
  for (const Family& family : all) {
    for (const ModelConfig& size : family.flavors) {
      const std::string text = hf_config(*family.hugging_face, size, DType::bf16, {.begin = 1});
      HfModel back = parse_hf_config(text, "config.json", all);
      EXPECT_EQ(back.dtype, DType::bf16);
      EXPECT_TRUE(back.passed_over.empty()) << back.passed_over[0];
      back.config.set_flavor(size.flavor());
      const auto dump = [](ModelConfig c) {
        config::Fields fields;
        fields.section("model", c);
        return fields.dump();
      };
      EXPECT_EQ(dump(back.config), dump(size)) << text;
    }
  }
}

TEST(HuggingFaceNames, OlderFormsOfAConfigurationAreRead) {
  const std::vector<Family> all = families();
  // Llama 2: as many key heads as query heads, and no word of them, of the base of RoPE or of ties.
  const std::string llama2 =
      R"({"model_type": "llama", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": null, "max_position_embeddings": 64,
    "hidden_act": "silu", "rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4,
    "original_max_position_embeddings": 32}, "attention_dropout": 0.1, "sliding_window": 5, "nothing": []})";
  const HfModel model = parse_hf_config(llama2, "config.json", all);
  EXPECT_FALSE(model.dtype);
  EXPECT_EQ(model.passed_over,
            (std::vector<std::string>{"attention_dropout 0.1", "sliding_window 5"}));
  ModelConfig config = model.config;
  config::Fields fields;
  fields.section("model", config);
  const std::map<std::string, std::string> expected{
      {"n_kv_heads", "2"},
      {"rope_theta", "10000"},
      {"rope_scaling", "llama"},
      {"rope_scaling_factor", "2"},
      {"norm_eps", "1e-06"},
      {"enable_weight_tying", "false"},
      {"rope_original_max_position_embeddings", "32"}};
  for (const auto& [field, value] : expected)
    EXPECT_EQ(fields.find("model." + field)->text(), value) << field;
  EXPECT_EQ(config.flavor(), "");
}

TEST(HuggingFaceNames, AFamilyWithoutATableSaysWhichRowIsMissing) {
  const Session session;
  const HuggingFace none{.model_type = "toy", .architecture = "Toy", .tensors = {}, .fields = {}};
  EXPECT_THROW((void)hf_tensors(none, test::toy_family().flavor("small")), UsageError);
}

}  // namespace
}  // namespace tessera::models

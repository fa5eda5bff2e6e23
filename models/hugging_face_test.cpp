// SPDX-License-Identifier: Apache-2.0
// The tables of names: they cover every tensor of every size, and values only change their places.
#include "tessera/models/hugging_face.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/models.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/toy_family.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

namespace tessera::models {
namespace {

TEST(HuggingFaceNames, CoverEveryTensorOfEverySizeOnce) {
  const Session session;
  for (const Family& family : families()) {
    for (const ModelConfig& flavor : family.flavors) {
      const ModelConfig size = family.flavor(flavor.flavor());
      ASSERT_TRUE(size.hugging_face()) << family.name;
      std::map<std::string, int64_t> ours;
      const auto model = size.make();
      for (const auto& [name, tensor] : nn::named_parameters(*model)) ours[name] = tensor.numel();
      std::set<std::string> theirs;
      const HfTensors tensors(*size.hugging_face(), size);
      for (const HfTensor& t : tensors.all()) {
        EXPECT_TRUE(theirs.insert(t.name).second) << t.name;
        int64_t parts = 0;
        for (const auto& [name, shape] : t.ours) {
          ASSERT_TRUE(ours.contains(name)) << name;
          parts += shape.numel();
          int64_t& left = ours.at(name);  // experts apart are parts of one of ours
          if ((left -= shape.numel()) == 0) ours.erase(name);
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
  HfTensor back = turned;
  back.change = HfChange::pairs;
  EXPECT_EQ(back.join({turned.join({rows})}).values(), rows.values());
  // Gate and up take turns, in each expert, and a row of theirs is a column of ours.
  const HfTensor fused{.name = "gate_up",
                       .shape = {2, 1, 4},
                       .ours = {{"gate", {2, 2, 1}}, {"up", {2, 2, 1}}},
                       .change = HfChange::transposed,
                       .experts = true,
                       .order = HfJoin::rows};
  EXPECT_EQ(fused.join({counted({2, 2, 1}, 0), counted({2, 2, 1}, 10)}).values(),
            (std::vector<double>{0, 10, 1, 11, 2, 12, 3, 13}));
  // Two heads of two rows: queries, keys and values of the first, then of the second.
  const HfTensor qkv{.name = "qkv",
                     .shape = {12},
                     .ours = {{"q", {4}}, {"k", {4}}, {"v", {4}}},
                     .head_dim = 2,
                     .order = HfJoin::heads};
  EXPECT_EQ(qkv.join({counted({4}, 0), counted({4}, 10), counted({4}, 20)}).values(),
            (std::vector<double>{0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23}));
}

// A made-up model with each kind of row: any range of ours is read from theirs, and no element of
// theirs outside of what the range needs.
TEST(HuggingFaceNames, AnyRangeOfOursIsReadFromTheirs) {
  const Session session;
  constexpr int64_t kHead = 6, kExperts = 3;
  using enum HfChange;
  const std::vector<HfTensorNames> rows{
      {"norm", {"norm"}},
      {"q.#", {"wq.#"}, halves},
      {"k.#", {"wk.#"}, pairs},
      {"conv.#", {"w1.#", "w2.#", "w3.#"}, transposed},
      {"rows.#", {"r1.#", "r2.#"}},
      {"e.#.%.down", {"down.#"}, none, HfExperts::apart},
      {"e.#.%.gate_up", {"gate.#", "up.#"}, none, HfExperts::apart, HfJoin::rows},
      {"fused.#", {"f1.#", "f2.#"}, transposed, HfExperts::together},
      {"turns.#", {"t1.#", "t2.#"}, transposed, HfExperts::together, HfJoin::rows},
      {"bias.#", {"b1.#", "b2.#"}, none, HfExperts::together, HfJoin::rows},
      {"qkv.#.weight", {"hq.#", "hk.#", "hv.#"}, none, HfExperts::none, HfJoin::heads},
      {"qkv.#.bias", {"hqb.#", "hkb.#", "hvb.#"}, none, HfExperts::none, HfJoin::heads},
      {"conv_qkv.#", {"ha.#", "hb.#"}, transposed, HfExperts::none, HfJoin::heads}};
  std::vector<NamedShape> ours{{"norm", {7}}};
  for (const std::string n : {".0", ".11"}) {
    for (const auto& [name, shape] : std::vector<NamedShape>{{"wq", {3 * kHead, 5}},
                                                             {"wk", {2 * kHead, 3}},
                                                             {"w1", {4, 5}},
                                                             {"w2", {1, 5}},
                                                             {"w3", {6, 5}},
                                                             {"r1", {2, 3}},
                                                             {"r2", {4, 3}},
                                                             {"down", {kExperts, 4, 5}},
                                                             {"gate", {kExperts, 3, 4}},
                                                             {"up", {kExperts, 3, 4}},
                                                             {"f1", {kExperts, 2, 5}},
                                                             {"f2", {kExperts, 3, 5}},
                                                             {"t1", {kExperts, 4, 3}},
                                                             {"t2", {kExperts, 4, 3}},
                                                             {"b1", {kExperts, 4}},
                                                             {"b2", {kExperts, 4}},
                                                             {"hq", {3 * kHead, 4}},
                                                             {"hk", {3 * kHead, 4}},
                                                             {"hv", {3 * kHead, 4}},
                                                             {"hqb", {3 * kHead}},
                                                             {"hkb", {3 * kHead}},
                                                             {"hvb", {3 * kHead}},
                                                             {"ha", {2 * kHead, 3}},
                                                             {"hb", {2 * kHead, 3}}})
      ours.push_back({name + n, shape});
  }
  const HfTensors tensors(rows, ours, kHead);
  std::map<std::string, Tensor> own, theirs;
  for (const auto& [name, shape] : ours) own[name] = randn(shape);
  for (const HfTensor& t : tensors.all()) {
    std::vector<Tensor> parts;
    for (const NamedShape& part : t.ours) {
      parts.push_back(t.expert < 0 ? own.at(part.name)
                                   : contiguous(select(own.at(part.name), 0, t.expert)));
      EXPECT_EQ(parts.back().shape(), part.shape);
    }
    theirs[t.name] = t.join(parts);
    EXPECT_EQ(theirs[t.name].shape(), t.shape) << t.name;
  }
  EXPECT_EQ(theirs.size(), 1 + 2 * (10 + 2 * kExperts));

  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 dice(seed);
  const auto range = [&](Tensor x, const Shape& begin, const Shape& size) {
    for (int d = 0; d < x.shape().rank(); ++d) x = narrow(x, d, begin[d], size[d]);
    return contiguous(x);
  };
  for (int trial = 0; trial < 800; ++trial) {
    const auto& [name, shape] = ours[dice() % ours.size()];
    Shape begin = shape, size = shape;
    for (int d = 0; d < shape.rank(); ++d) {
      begin[d] = static_cast<int64_t>(dice()) % shape[d];
      size[d] = 1 + static_cast<int64_t>(dice()) % (shape[d] - begin[d]);
    }
    int64_t read = 0;
    const Tensor part = tensors.read(name, begin, size, [&](const auto& t, const auto& b, auto& s) {
      read += s.numel();
      return range(theirs.at(t), b, s);
    });
    EXPECT_EQ(part.values(), range(own.at(name), begin, size).values()) << name << begin << size;
    const bool heads =
        name.starts_with("wq") || name.starts_with("wk") || name[0] == 'h';  // whole ones are read
    const int64_t turns = name[0] == 'h'                                   ? 3
                          : std::string("tbgu").find(name[0]) != name.npos ? 2
                                                                           : 1;
    const int64_t around = heads ? 2 * kHead * size.numel() / size[0] : 0;
    EXPECT_LE(read, turns * (size.numel() + around));
  }
}

// What config.json says of a size is that size again.
TEST(HuggingFaceNames, EverySizeComesBackFromItsConfiguration) {
  const std::vector<Family> all = families();
  for (const Family& family : all) {
    for (const ModelConfig& flavor : family.flavors) {
      const ModelConfig size = family.flavor(flavor.flavor());
      const std::string text = hf_config(*size.hugging_face(), size, DType::bf16, {.begin = "1"});
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
  // As of Llama 2: num_key_value_heads is null; rope_theta and tie_word_embeddings are missing.
  const std::string llama2 =
      R"({"model_type": "llama", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": null, "max_position_embeddings": 64,
    "hidden_act": "silu", "rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4,
    "original_max_position_embeddings": 32}, "attention_dropout": 0.1, "window": 5, "nothing": [],
    "layer_types": ["full_attention"], "logits_scaling": 1.0, "use_qk_norm": false,
    "sliding_window": 5, "use_sliding_window": false,
    "max_window_layers": 1, "id2label": {"0": "a"}, "top_k": 50, "output_router_logits": true})";
  const std::vector<std::string> ignored{"window", "vocab_size"};
  const HfModel model = parse_hf_config(llama2, "config.json", all, ignored);
  EXPECT_FALSE(model.dtype);
  EXPECT_EQ(model.passed_over, (std::vector<std::string>{"attention_dropout 0.1", "window 5"}));
  ModelConfig config = model.config;
  config::Fields fields;
  fields.section("model", config);
  const std::map<std::string, std::string> expected{
      {"n_kv_heads", "2"},       {"rope_theta", "10000"},
      {"rope_scaling", "llama"}, {"rope_scaling_factor", "2"},
      {"norm_eps", "1e-06"},     {"enable_weight_tying", "false"},
      {"vocab_size", "32"},      {"rope_original_max_position_embeddings", "32"}};
  for (const auto& [field, value] : expected)
    EXPECT_EQ(fields.find("model." + field)->text(), value) << field;
  EXPECT_EQ(config.flavor(), "");
}

// Llama 4 as it was published: the text of a model that sees images too.
TEST(HuggingFaceNames, AModelIsReadOutOfTheWholeThatItIsAPartOf) {
  const std::vector<Family> all = families();
  const std::string scout =
      R"({"model_type": "llama4", "image_token_index": 5, "vision_config": {"hidden_size": 7},
    "torch_dtype": "bfloat16", "text_config": {"model_type": "llama4_text", "vocab_size": 32, "hidden_size": 8,
    "intermediate_size": 12, "intermediate_size_mlp": 14, "num_hidden_layers": 5, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "no_rope_layers": [], "num_local_experts": 4,
    "interleave_moe_layer_step": 2, "moe_layers": [1, 3], "rope_scaling": {"rope_type": "llama3", "factor": 16.0,
    "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 8}}})";
  const HfModel model = parse_hf_config(scout, "config.json", all);
  EXPECT_TRUE(model.within);
  EXPECT_EQ(model.dtype, DType::bf16);
  EXPECT_EQ(model.passed_over,
            (std::vector<std::string>{"image_token_index 5", R"(vision_config {"hidden_size":7})",
                                      "the tensors vision_model.*",
                                      "the tensors multi_modal_projector.*"}));
  ModelConfig config = model.config;
  config::Fields fields;
  fields.section("model", config);
  EXPECT_EQ(fields.find("model.rope_theta")->text(), "500000");
  EXPECT_EQ(fields.find("model.moe_inter_dim")->text(), "12");

  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string text = scout;
    text.replace(text.find(from), from.size(), to);
    return test::error_of([&] { (void)parse_hf_config(text, "config.json", all); });
  };
  EXPECT_NE(error_with("[1, 3]", "[1, 2]")
                .find("moe_layers is [1,2], but the one that follows from "
                      "interleave_moe_layer_step 2 is [1,3]"),
            std::string::npos);
  EXPECT_NE(error_with("\"no_rope_layers\": []", "\"no_rope_layers\": [1, 0]")
                .find("no_rope_layer_interval 4 is [1,1,1,0,1]"),
            std::string::npos);
  EXPECT_NE(error_with("\"text_config\": {\"model_type\"", "\"text\": {\"model_type\"")
                .find("text_config is null, expected the fields of a llama4_text"),
            std::string::npos);
}

// A field of another family's computation is never passed over.
TEST(HuggingFaceNames, WhatAFamilyDoesNotComputeIsNamed) {
  const std::vector<Family> all = families();
  std::string text =
      hf_config(*all[0].hugging_face[0], all[0].flavor("debugmodel"), DType::f32, {});
  text.insert(
      text.find('{') + 1,
      R"("sliding_window": 5, "final_logit_softcapping": 30.0, "mystery": true, "layer_types":
    ["full_attention", "sliding_attention"], "quantization_config": {"quant_method": "mxfp4"},)");
  try {
    (void)parse_hf_config(text, "config.json", all);
    FAIL() << text;
  } catch (const DataError& error) {
    const std::string what = error.what();
    for (const char* part :
         {"sliding_window is 5, which this family does not compute: if that changes nothing, give "
          "--model.ignore_hf_fields sliding_window; ",
          "mystery is true, which this family does not compute",
          "final_logit_softcapping is 30.0, which", "layer_types is [\"full_attention\"",
          "quantization_config is {\"quant_method\":\"mxfp4\"}: such weights cannot be read"})
      EXPECT_NE(what.find(part), what.npos) << what;
  }
}

TEST(HuggingFaceNames, MarksThatAreNoIdsAreNamed) {
  EXPECT_EQ(parse_hf_marks(R"({"eos_token_id": [1, 2], "pad_token_id": null})", "config.json").end,
            "[1,2]");
  EXPECT_EQ(test::error_of<DataError>(
                [] { (void)parse_hf_marks(R"({"eos_token_id": [1, "</s>"]})", "config.json"); }),
            R"([config.json] eos_token_id is [1,"</s>"], expected an id or a list of ids)");
}

TEST(HuggingFaceNames, HalvesOfHeadsThatTakeTurnsAreNoRow) {
  const std::vector<HfTensorNames> rows{
      {"qk", {"q", "k"}, HfChange::halves, HfExperts::none, HfJoin::heads}};
  const std::vector<NamedShape> ours{{"q", {4, 2}}, {"k", {4, 2}}};
  EXPECT_EQ(test::error_of<UsageError>([&] { (void)HfTensors(rows, ours, 2); }),
            "[hugging_face] qk has halves of heads that take turns");
}

TEST(HuggingFaceNames, AFamilyWithoutATableSaysWhichRowIsMissing) {
  const Session session;
  const HuggingFace none{.model_type = "toy", .architecture = "Toy", .tensors = {}, .fields = {}};
  EXPECT_THROW((void)HfTensors(none, test::toy_family().flavor("small")), UsageError);
}

}  // namespace
}  // namespace tessera::models

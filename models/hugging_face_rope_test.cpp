// SPDX-License-Identifier: Apache-2.0
// RoPE in config.json: each kind of scaling comes back from what is written, older and newer
// spellings say the same, and what is missing or contradicts itself is named.
#include "tessera/kernels/rope/rope.h"
#include "tessera/models/hugging_face.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/toy_family.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>

namespace tessera::models {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RopeScaling::Kind;

// Sizes and all that RoPE has, in a model that has none.
class Turning final : public test::Toy {
 public:
  struct Config {
    int64_t vocab_size = 11, max_seq_len = 64;
    double theta = 1, local = 0, part = 1, beta = 0;
    RopeScaling s = {};
    std::string short_factors = {}, long_factors = {};  // JSON
    DType dtype = DType::f32;
    void fields(config::Fields& f) {
      f.add("vocab_size", vocab_size, "");
      f.add("max_seq_len", max_seq_len, "");
      f.add("rope_theta", theta, "", {.min = 1});
      f.add("rope_local_theta", local, "", {.min = 0});
      f.add("partial_rotary_factor", part, "", {.min = 0, .max = 1});
      f.add("beta", beta, "");
      f.add_choice<Kind>("rope_scaling", s.kind, "",
                         {{"none", Kind::none},
                          {"llama", Kind::llama3},
                          {"yarn", Kind::yarn},
                          {"linear", Kind::linear},
                          {"longrope", Kind::longrope}});
      f.add("rope_scaling_factor", s.factor, "", {.min = 1});
      f.add("rope_low_freq_factor", s.low_freq_factor, "");
      f.add("rope_high_freq_factor", s.high_freq_factor, "");
      f.add("rope_original_max_position_embeddings", s.original_max_position, "");
      f.add("rope_beta_fast", s.beta_fast, "");
      f.add("rope_beta_slow", s.beta_slow, "");
      f.add("rope_truncate", s.truncate, "");
      f.add("rope_attention_factor", s.attention_factor, "");
      f.add("rope_mscale", s.mscale, "");
      f.add("rope_mscale_all_dim", s.mscale_all_dim, "");
      f.add("rope_short_factors", short_factors, "");
      f.add("rope_long_factors", long_factors, "");
    }
    [[nodiscard]] static std::vector<std::string> conflicts() { return {}; }
  };
  explicit Turning(const Config& c) : Toy({.vocab_size = c.vocab_size}) {}
};

HuggingFace plain_names() {
  return {.model_type = "turning",
          .architecture = "Turning",
          .tensors = {},
          .fields = {{"vocab_size", "vocab_size"}, {"max_position_embeddings", "max_seq_len"}},
          .rope = true};
}
HuggingFace two_kinds(double theta, double local) {
  HuggingFace names = plain_names();
  names.rope_theta = theta;
  names.rope_local_theta = local;
  return names;
}

ModelConfig model(const Turning::Config& c = {}) { return ModelConfig::of<Turning>("t", "", c); }

HfModel read(const std::string& more, const HuggingFace& names = plain_names()) {
  return parse_hf_config(
      R"({"model_type": "turning", "vocab_size": 11, "max_position_embeddings": 64)" +
          (more.empty() ? "" : ", " + more) + "}",
      "config.json", names, model());
}
Turning::Config config_of(const std::string& more, const HuggingFace& names = plain_names()) {
  return read(more, names).config.as<Turning::Config>();
}
std::string error(const std::string& more, const HuggingFace& names = plain_names()) {
  return test::error_of<DataError>([&] { (void)read(more, names); });
}
std::string dump(ModelConfig c) {
  config::Fields fields;
  fields.section("model", c);
  return fields.dump();
}
std::string written(const Turning::Config& c, const HuggingFace& names = plain_names()) {
  return hf_config(names, model(c), DType::f32, {});
}
// What is written, which says the same when it is read.
Json written_twice(const Turning::Config& c, const HuggingFace& names = plain_names()) {
  const std::string text = written(c, names);
  EXPECT_EQ(dump(parse_hf_config(text, "config.json", names, model()).config), dump(model(c)))
      << text;
  return Json::parse(text);
}

TEST(HuggingFaceRope, EveryKindOfScalingComesBack) {
  const std::map<std::string, std::pair<std::string, Turning::Config>> all{
      {"llama3",
       {R"("factor": 8, "low_freq_factor": 1, "high_freq_factor": 2,
           "original_max_position_embeddings": 32)",
        {.s = {.kind = Kind::llama3,
               .factor = 8,
               .original_max_position = 32,
               .high_freq_factor = 2}}}},
      {"linear", {R"("factor": 3)", {.s = {.kind = Kind::linear, .factor = 3}}}},
      {"yarn",
       {R"("factor": 4, "original_max_position_embeddings": 16, "beta_fast": 20, "beta_slow": 2,
           "truncate": false, "mscale": 1.5, "mscale_all_dim": 0.5)",
        {.s = {.kind = Kind::yarn,
               .factor = 4,
               .original_max_position = 16,
               .beta_fast = 20,
               .beta_slow = 2,
               .truncate = false,
               .mscale = 1.5,
               .mscale_all_dim = 0.5}}}},
      {"longrope",
       {R"("short_factor": [1.0,1.25], "long_factor": [2.0,4.5], "factor": 5, "attention_factor":
           1.5, "original_max_position_embeddings": 16)",
        {.s = {.kind = Kind::longrope,
               .factor = 5,
               .original_max_position = 16,
               .attention_factor = 1.5},
         .short_factors = "[1.0,1.25]",
         .long_factors = "[2.0,4.5]"}}}};
  for (const auto& [kind, value] : all) {
    auto [text, config] = value;
    config.theta = 500;
    if (kind != "longrope") config.short_factors = config.long_factors = "[]";
    for (const char* object : {"rope_scaling", "rope_parameters"}) {
      const std::string json = "\"" + std::string(object) + R"(": {"rope_type": ")" + kind +
                               "\", " + text + R"(, "rope_theta": 500})";
      EXPECT_EQ(dump(read(json).config), dump(model(config))) << json;
    }
    const Json scaling = written_twice(config).at("rope_scaling");
    EXPECT_EQ(scaling.value("rope_type", scaling.value("type", "")), kind);
  }
  // Without a scaling its parameters are those of none.
  EXPECT_EQ(dump(read(R"("original_max_position_embeddings": 7)").config),
            dump(model({.theta = 10000, .short_factors = "[]", .long_factors = "[]"})));
}

TEST(HuggingFaceRope, WhatAScalingLeavesOutIsAsInTransformers) {
  // As of Phi 3: the original context lies outside, the factor follows from it.
  const std::string phi = R"("original_max_position_embeddings": 16, "rope_scaling": {"type": "su",
      "short_factor": [1], "long_factor": [2]})";
  const Turning::Config longrope = config_of(phi);
  EXPECT_EQ(longrope.s.kind, Kind::longrope);
  EXPECT_EQ(longrope.s.factor, 4);
  EXPECT_EQ(longrope.s.original_max_position, 16);
  EXPECT_EQ(longrope.s.attention_factor, 0);
  const Json json = written_twice(longrope);
  EXPECT_EQ(json.at("rope_scaling"), Json({{"type", "longrope"},
                                           {"factor", 4.0},
                                           {"original_max_position_embeddings", 16},
                                           {"short_factor", {1}},
                                           {"long_factor", {2}}}));
  EXPECT_EQ(json.at("original_max_position_embeddings"), 16);
  // A context that is not longer.
  EXPECT_EQ(config_of(R"("original_max_position_embeddings": 64, "rope_scaling": {"type":
      "longrope", "short_factor": [1], "long_factor": [2]})")
                .s.factor,
            1);

  const Turning::Config yarn =
      config_of(R"("rope_scaling": {"type": "yarn", "factor": null, "mscale": null})");
  EXPECT_EQ(yarn.s.kind, Kind::yarn);
  EXPECT_EQ(yarn.s.factor, 1);
  EXPECT_EQ(yarn.s.original_max_position, 64);
  EXPECT_EQ(yarn.s.beta_fast, 32);
  EXPECT_EQ(yarn.s.beta_slow, 1);
  EXPECT_TRUE(yarn.s.truncate);
  EXPECT_EQ(config_of(R"("rope_scaling": {"type": "yarn",
      "original_max_position_embeddings": 16})")
                .s.factor,
            4);
}

TEST(HuggingFaceRope, WhatItsObjectCannotSayIsNamed) {
  EXPECT_EQ(
      error(R"("rope_scaling": {"type": "dynamic", "factor": 2})"),
      "[config.json] rope_scaling is of type \"dynamic\", which cannot be expressed: expected "
      "\"default\", \"llama3\", \"linear\", \"yarn\", or \"longrope\"");
  EXPECT_EQ(error(R"("rope_scaling": {"type": "longrope", "factor": 2})"),
            "[config.json] rope_scaling has no original_max_position_embeddings; rope_scaling has "
            "no short_factor; rope_scaling has no long_factor");
  EXPECT_EQ(error(R"("rope_scaling": {"type": "linear"})"),
            "[config.json] rope_scaling has no factor");
  EXPECT_EQ(error(R"("rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3})"),
            "[config.json] rope_scaling.beta_fast is 3, which cannot be expressed");
  EXPECT_EQ(error(R"("rope_theta": 5, "rope_parameters": {"rope_theta": 6})"),
            "[config.json] rope_theta is 5, but rope_parameters.rope_theta is 6: they must agree");
  EXPECT_EQ(error(R"("rope_parameters": {"full_attention": {"rope_theta": 6}})"),
            "[config.json] rope_parameters.full_attention is {\"rope_theta\":6}, which cannot be "
            "expressed");
  EXPECT_EQ(error(R"("original_max_position_embeddings": 8, "rope_scaling": {"type": "yarn",
          "factor": 2, "original_max_position_embeddings": 16})"),
            "[config.json] rope_scaling.original_max_position_embeddings is 16, but "
            "original_max_position_embeddings is 8: they must agree");
}

TEST(HuggingFaceRope, APartOfAHeadTurnsUnderAnyName) {
  HuggingFace names = plain_names();
  names.partial_rotary = 0.25;
  names.partial_rotary_name = "rotary_pct";
  names.rope_theta_name = "rotary_emb_base";
  EXPECT_EQ(config_of("", names).part, 0.25);
  for (const char* text : {R"("rotary_pct": 0.5)", R"("partial_rotary_factor": 0.5)",
                           R"("rope_parameters": {"partial_rotary_factor": 0.5})"})
    EXPECT_EQ(config_of(text, names).part, 0.5) << text;
  EXPECT_EQ(config_of(R"("rotary_emb_base": 77)", names).theta, 77);
  EXPECT_EQ(error(R"("rotary_pct": 1, "partial_rotary_factor": 0.5)", names),
            "[config.json] partial_rotary_factor is 0.5, but rotary_pct is 1: they must agree");
  const Json json =
      written_twice({.theta = 77, .part = 0.5, .short_factors = "[]", .long_factors = "[]"}, names);
  EXPECT_EQ(json.at("rotary_pct"), 0.5);
  EXPECT_EQ(json.at("rotary_emb_base"), 77);
  EXPECT_FALSE(json.contains("rope_theta"));
}

// As of Gemma 3, whose layers with a window have a base of their own.
TEST(HuggingFaceRope, LayersWithAWindowMayHaveTheirOwnBase) {
  const HuggingFace gemma = two_kinds(1e6, 1e4);
  const std::string old = R"("rope_theta": 1000, "rope_local_base_freq": 100,
      "rope_scaling": {"rope_type": "linear", "factor": 8})";
  const std::string newer = R"("rope_parameters": {"full_attention": {"rope_theta": 1000,
      "rope_type": "linear", "factor": 8}, "sliding_attention": {"rope_theta": 100,
      "rope_type": "default"}})";
  const Turning::Config expected{.theta = 1000,
                                 .local = 100,
                                 .s = {.kind = Kind::linear, .factor = 8},
                                 .short_factors = "[]",
                                 .long_factors = "[]"};
  for (const std::string& text : {old, newer, old + ", " + newer})
    EXPECT_EQ(dump(read(text, gemma).config), dump(model(expected))) << text;
  EXPECT_EQ(config_of("", gemma).theta, 1e6);
  EXPECT_EQ(config_of("", gemma).local, 1e4);
  const Json json = written_twice(expected, gemma);
  EXPECT_EQ(json.at("rope_local_base_freq"), 100);
  EXPECT_FALSE(json.contains("rope_parameters"));

  EXPECT_EQ(error(R"("rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type":
      "yarn", "factor": 2}})",
                  gemma),
            "[config.json] rope_parameters.sliding_attention is of type \"yarn\", which cannot be "
            "expressed: expected \"default\"");
  EXPECT_EQ(error(R"("rope_parameters": {"sliding_attention": {"factor": 2}})", gemma),
            "[config.json] rope_parameters.sliding_attention.factor is 2, which cannot be "
            "expressed");
  EXPECT_EQ(error(R"("rope_parameters": {"rope_theta": 5})", gemma),
            "[config.json] rope_parameters.rope_theta is 5, expected an object for full_attention "
            "and one for sliding_attention");
  EXPECT_EQ(error(R"("rope_local_base_freq": 7, "rope_parameters": {"sliding_attention":
      {"rope_theta": 6}})",
                  gemma),
            "[config.json] rope_parameters.sliding_attention.rope_theta is 6, but "
            "rope_local_base_freq is 7: they must agree");
}

// As of OLMo 3, whose layers with a window have the same base without its scaling.
TEST(HuggingFaceRope, LayersWithAWindowMayLackTheScaling) {
  const HuggingFace olmo = two_kinds(5e5, 0);
  const std::string scaling = R"("rope_scaling": {"rope_type": "yarn", "factor": 8,
      "original_max_position_embeddings": 8})";
  Turning::Config c = config_of(scaling, olmo);
  EXPECT_EQ(c.theta, 5e5);
  EXPECT_EQ(c.local, 5e5);
  EXPECT_FALSE(written_twice(c, olmo).contains("rope_parameters"));
  // Transformers 5 takes rope_theta for one kind alone.
  c = config_of(R"("rope_theta": 700, )" + scaling, olmo);
  EXPECT_EQ(c.local, 700);
  EXPECT_EQ(written_twice(c, olmo).at("rope_parameters"),
            Json::parse(R"({"full_attention": {"rope_type": "yarn", "rope_theta": 700.0,
                "factor": 8.0, "original_max_position_embeddings": 8},
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}})"));

  c.local = 0;
  EXPECT_EQ(test::error_of<ValueError>([&] { (void)written(c, olmo); }),
            "[hugging_face] rope_local_theta 0 with a scaling, which layers with a window lack "
            "there, cannot be expressed in config.json of turning");
  c.local = 900;
  EXPECT_EQ(test::error_of<ValueError>([&] { (void)written(c, olmo); }),
            "[hugging_face] rope_local_theta 900.0 beside rope_theta 700.0 cannot be expressed in "
            "config.json of turning");
  EXPECT_EQ(test::error_of<ValueError>([&] { (void)written(c); }),
            "[hugging_face] rope_local_theta 900.0 cannot be expressed in config.json of turning");
}

// As of Ministral 3.
TEST(HuggingFaceRope, ATableMayHaveAFieldOfItsObject) {
  HuggingFace names = plain_names();
  names.fields.push_back({"rope_scaling.beta", "beta", "0", "", {"rope_parameters.beta"}});
  EXPECT_EQ(config_of(R"("rope_parameters": {"beta": 0.5, "rope_type": "default"})", names).beta,
            0.5);
  const Json json =
      written_twice({.theta = 7, .beta = 0.25, .short_factors = "[]", .long_factors = "[]"}, names);
  EXPECT_EQ(json.at("rope_scaling"), Json({{"rope_type", "default"}, {"beta", 0.25}}));
}

}  // namespace
}  // namespace tessera::models

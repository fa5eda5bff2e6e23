// SPDX-License-Identifier: Apache-2.0
// Types of models as data: published sizes, what follows from fields, and fields that contradict
// each other. What the models compute is compared in tests/goldens/model_types_test.cpp.
#include "tessera/models/type.h"

#include "tessera/models/models.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

namespace tessera::models {
namespace {

ModelConfig sized(std::string_view type, std::string_view size) {
  return find_family(families(), type).flavor(size);
}

// Counts of transformers 5.24 on the meta device; tied weights count once.
TEST(ModelTypeSizes, HaveThePublishedParameters) {
  struct Expected {
    std::string_view type, size;
    int64_t parameters;
  };
  const std::vector<Expected> all{
      {"cohere2", "R7B", 8028033024},      {"gemma", "2B", 2506172416},
      {"gemma", "7B", 8537680896},         {"gemma2", "2B", 2614341888},
      {"gemma2", "9B", 9241705984},        {"gemma2", "27B", 27227128320},
      {"gemma3_text", "1B", 999885952},    {"glm4", "9B", 9400279040},
      {"gpt_neox", "1.4B", 1414647808},    {"gpt_neox", "20B", 20554567680},
      {"granite", "2B", 2533531648},       {"granitemoe", "1B-A400M", 1334628352},
      {"ministral", "8B", 8019808256},     {"mistral", "7B", 7241732096},
      {"mixtral", "8x7B", 46702792704},    {"olmo2", "7B", 7298617344},
      {"olmo3", "7B", 7298011136},         {"olmoe", "1B-7B", 6919161856},
      {"phi3", "mini", 3821079552},        {"qwen2", "0.5B", 494032768},
      {"qwen2", "1.5B", 1543714304},       {"qwen2", "7B", 7615616512},
      {"qwen2_moe", "A2.7B", 14315784192}, {"smollm3", "3B", 3075098624},
      {"stablelm", "3B", 2795443200},      {"starcoder2", "3B", 3030371328}};
  for (const Expected& e : all) {
    const auto model = sized(e.type, e.size).make();
    int64_t count = 0;
    for (const Tensor& p : nn::parameters(*model)) count += p.numel();
    EXPECT_EQ(count, e.parameters) << e.type << ' ' << e.size;
  }
}

TEST(ModelTypeFields, AreThoseOfTheTypeAlone) {
  const auto shows = [](std::string_view type, std::string_view size, std::string_view name) {
    ModelConfig c = sized(type, size);
    config::Fields fields;
    fields.section("model", c);
    return fields.find(concat("model.", name)) != nullptr;
  };
  for (const std::string_view name : {"attn_logit_softcapping", "layer_types", "sliding_window"}) {
    EXPECT_TRUE(shows("gemma2", "2B", name)) << name;
    EXPECT_FALSE(shows("gemma", "2B", name)) << name;
  }
  EXPECT_TRUE(shows("mixtral", "8x7B", "balance_loss_coeff"));
  EXPECT_FALSE(shows("mistral", "7B", "num_experts"));
  EXPECT_FALSE(shows("starcoder2", "3B", "rope_local_theta"));
}

// All of them are told at once.
TEST(ModelTypeFields, ThatContradictEachOther) {
  ModelConfig c = sized("gemma2", "2B");
  auto& a = c.as<TypeConfig>();
  a.attention.n_kv_heads = 3;
  a.attention.head_dim = 7;
  a.spans.sliding_window = 0;
  a.spans.layer_types.assign(26, "sliding_attention");
  EXPECT_EQ(c.conflicts(),
            (std::vector<std::string>{
                "[--model.n_heads] 8 is not a multiple of --model.n_kv_heads 3",
                "[--model.head_dim] RoPE turns 7 values of a head of 7: expected an even number",
                "[--model.layer_types] has sliding_attention, but --model.sliding_window is 0"}));
  a.spans.layer_types = {"full_attention"};
  EXPECT_EQ(c.conflicts().back(),
            "[--model.layer_types] has 1 element, but --model.n_layers is 26");
  a.spans.layer_types.assign(26, "linear_attention");
  EXPECT_EQ(c.conflicts().back(),
            "[--model.layer_types] has \"linear_attention\": expected full_attention or "
            "sliding_attention");
  EXPECT_THROW(static_cast<void>(c.make()), ValueError);
}

TEST(Architecture, SpansFollowFromThePattern) {
  Architecture a;
  a.n_layers = 5;
  const std::string full = "full_attention", window = "sliding_attention";
  const auto all = [](const std::string& type) { return std::vector<std::string>(5, type); };
  EXPECT_EQ(a.layer_types(), all(full));
  a.spans.sliding_window = 4;
  EXPECT_EQ(a.layer_types(), all(window));
  a.spans.pattern = 2;
  EXPECT_EQ(a.layer_types(), (std::vector<std::string>{window, full, window, full, window}));
  a.spans.max_window_layers = 2;
  EXPECT_EQ(a.layer_types(), (std::vector<std::string>{full, full, window, full, window}));
  a.spans.before_max = true;
  EXPECT_EQ(a.layer_types(), (std::vector<std::string>{window, full, full, full, full}));
  a.spans.use_sliding_window = false;
  EXPECT_EQ(a.layer_types(), all(full));
  // What a pattern says too is said by it.
  a.spans = {.layer_types = {window, window, full, window, window}, .sliding_window = 4};
  Architecture same = a;
  same.simplify(true);
  EXPECT_EQ(same.spans.pattern, 3);
  EXPECT_TRUE(same.spans.layer_types.empty());
  EXPECT_EQ(same.layer_types(), a.layer_types());
  a.spans.layer_types[0] = full;
  same = a;
  same.simplify(true);
  EXPECT_EQ(same.spans.layer_types, a.spans.layer_types);
}

// A window of w: a token sees itself and the w - 1 before it.
TEST(Architecture, FlopsCountPairsWithinAWindow) {
  ModelConfig c = sized("mistral", "7B");
  auto& a = c.as<TypeConfig>();
  a.n_layers = 1;
  const std::vector<int64_t> document{10};
  const auto flops = [&](int64_t window) {
    a.spans.sliding_window = window;
    return c.make()->flops(document);
  };
  const double pair = 12.0 * static_cast<double>(a.attention.n_heads * a.head_dim());
  EXPECT_DOUBLE_EQ(flops(0) - flops(4), pair * (55 - 34));
  EXPECT_DOUBLE_EQ(flops(10), flops(0));
}

}  // namespace
}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Llama 4 against transformers, in f32 and with a model that is f64 throughout: as Scout, and as
// Maverick, whose experts are interleaved and whose queries and keys have no norms.
#include "tessera/models/llama4/llama4.h"
#include "tessera/tests/support/tiny_decoder.h"

namespace tessera {
namespace {

llama4::Config config_of(const nlohmann::json& m) {
  llama4::Config c{.dim = m["dim"],
                   .n_layers = m["n_layers"],
                   .n_heads = m["n_heads"],
                   .n_kv_heads = m["n_kv_heads"],
                   .head_dim = m["head_dim"],
                   .ffn_dim = m["ffn_dim"],
                   .moe = {.num_experts = m["n_experts"],
                           .top_k = m["top_k"],
                           .moe_inter_dim = m["moe_ffn_dim"]},
                   .interleave_moe_layer_step = m["interleave_moe_layer_step"],
                   .vocab_size = m["vocab_size"],
                   .max_seq_len = 64,
                   .rope_theta = m["rope_theta"],
                   .norm_eps = m["norm_eps"],
                   .nope_layer_interval = m["nope_layer_interval"],
                   .attention_chunk_size = m["attention_chunk_size"],
                   .use_qk_norm = m["use_qk_norm"],
                   .floor_scale = m["floor_scale"],
                   .attn_scale = m["attn_scale"]};
  if (const auto& scaling = m["scaling"]; !scaling.is_null()) {
    c.rope_scaling = {.kind = RopeScaling::Kind::llama3,
                      .factor = scaling["factor"],
                      .original_max_position = scaling["original_max_position"],
                      .low_freq_factor = scaling["low_freq_factor"],
                      .high_freq_factor = scaling["high_freq_factor"]};
  }
  return c;
}

struct TinyLlama4 : test::TinyDecoder<llama4::Model> {
  TinyLlama4(const std::string& name, DType dtype) : TinyDecoder(name, dtype, config_of) {}
};

class Llama4Golden : public testing::TestWithParam<const char*> {};

TEST_P(Llama4Golden, TwentyStepsEqualTransformers) {
  for (const bool logits_made : {true, false}) {
    TinyLlama4 tiny(GetParam(), DType::f32);
    test::expect_twenty_steps(tiny, logits_made, 2e-5, 1e-4);
  }
}

TEST_P(Llama4Golden, InF64TwentyStepsEqualTransformers) {
  TinyLlama4 tiny(GetParam(), DType::f64);
  test::expect_twenty_steps(tiny, false, 1e-9, 1e-6);
}

TEST_P(Llama4Golden, CachedLogitsEqualTransformersAtEachPosition) {
  test::expect_cached_logits(TinyLlama4(GetParam(), DType::f32));
}

INSTANTIATE_TEST_SUITE_P(Tiny, Llama4Golden,
                         testing::Values("tiny_llama4", "tiny_llama4_interleaved"));

}  // namespace
}  // namespace tessera

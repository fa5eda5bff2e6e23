// SPDX-License-Identifier: Apache-2.0
// Qwen 3, dense and with experts, against transformers, in f32 and with a model that is f64
// throughout.
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/tests/support/tiny_decoder.h"

namespace tessera {
namespace {

class TinyQwen3 : public testing::TestWithParam<const char*> {};

struct TinyModel : test::TinyDecoder<qwen3::Model> {
  TinyModel(const std::string& name, DType dtype)
      : TinyDecoder(name, dtype, [](const nlohmann::json& m) {
          qwen3::Config c{.dim = m["dim"],
                          .n_layers = m["n_layers"],
                          .n_heads = m["n_heads"],
                          .n_kv_heads = m["n_kv_heads"],
                          .head_dim = m["head_dim"],
                          .ffn_dim = m["ffn_dim"],
                          .vocab_size = m["vocab_size"],
                          .max_seq_len = 64,
                          .rope_theta = m["rope_theta"],
                          .norm_eps = m["norm_eps"]};
          if (m.contains("num_experts"))
            c.moe = {.num_experts = m["num_experts"],
                     .top_k = m["top_k"],
                     .moe_inter_dim = m["moe_inter_dim"],
                     .route_norm = true};
          return c;
        }) {}
};

INSTANTIATE_TEST_SUITE_P(Goldens, TinyQwen3, testing::Values("tiny_qwen3", "tiny_qwen3_moe"),
                         [](const auto& of) { return std::string(of.param); });

TEST_P(TinyQwen3, TwentyStepsEqualTransformers) {
  for (const bool logits_made : {true, false}) {
    TinyModel tiny(GetParam(), DType::f32);
    test::expect_twenty_steps(tiny, logits_made, 2e-5, 1e-4);
  }
}

TEST_P(TinyQwen3, InF64TwentyStepsEqualTransformers) {
  TinyModel tiny(GetParam(), DType::f64);
  test::expect_twenty_steps(tiny, false, 1e-9, 1e-6);
}

TEST_P(TinyQwen3, CachedLogitsEqualTransformersAtEachPosition) {
  test::expect_cached_logits(TinyModel(GetParam(), DType::f32));
}

}  // namespace
}  // namespace tessera

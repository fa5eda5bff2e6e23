// SPDX-License-Identifier: Apache-2.0
// Dense Qwen 3 against transformers, in f32 and with a model that is f64 throughout.
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/tests/support/tiny_decoder.h"

namespace tessera {
namespace {

struct TinyQwen3 : test::TinyDecoder<qwen3::Model> {
  explicit TinyQwen3(DType dtype)
      : TinyDecoder("tiny_qwen3", dtype, [](const nlohmann::json& m) {
          return qwen3::Config{.dim = m["dim"],
                               .n_layers = m["n_layers"],
                               .n_heads = m["n_heads"],
                               .n_kv_heads = m["n_kv_heads"],
                               .head_dim = m["head_dim"],
                               .ffn_dim = m["ffn_dim"],
                               .vocab_size = m["vocab_size"],
                               .max_seq_len = 64,
                               .rope_theta = m["rope_theta"],
                               .norm_eps = m["norm_eps"]};
        }) {}
};

TEST(TinyQwen3, TwentyStepsEqualTransformers) {
  for (const bool logits_made : {true, false}) {
    TinyQwen3 tiny(DType::f32);
    test::expect_twenty_steps(tiny, logits_made, 2e-5, 1e-4);
  }
}

TEST(TinyQwen3, InF64TwentyStepsEqualTransformers) {
  TinyQwen3 tiny(DType::f64);
  test::expect_twenty_steps(tiny, false, 1e-9, 1e-6);
}

TEST(TinyQwen3, CachedLogitsEqualTransformersAtEachPosition) {
  test::expect_cached_logits(TinyQwen3(DType::f32));
}

}  // namespace
}  // namespace tessera

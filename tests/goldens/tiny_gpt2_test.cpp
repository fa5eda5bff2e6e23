// SPDX-License-Identifier: Apache-2.0
// GPT-2 against transformers, in f32 and with a model that is f64 throughout.
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/tests/support/tiny_decoder.h"

namespace tessera {
namespace {

struct TinyGpt2 : test::TinyDecoder<gpt2::Model> {
  explicit TinyGpt2(DType dtype)
      : TinyDecoder("tiny_gpt2", dtype, [](const nlohmann::json& m) {
          return gpt2::Config{.dim = m["dim"],
                              .n_layers = m["n_layers"],
                              .n_heads = m["n_heads"],
                              .vocab_size = m["vocab_size"],
                              .max_seq_len = m["max_seq_len"],
                              .norm_eps = m["norm_eps"]};
        }) {}
};

TEST(TinyGpt2, TwentyStepsEqualTransformers) {
  for (const bool logits_made : {true, false}) {
    TinyGpt2 tiny(DType::f32);
    test::expect_twenty_steps(tiny, logits_made, 2e-5, 1e-4);
  }
}
// The norm that gradients are clipped by is rounded to f32.
TEST(TinyGpt2, InF64TwentyStepsEqualTransformers) {
  TinyGpt2 tiny(DType::f64);
  test::expect_twenty_steps(tiny, false, 1e-9, 1e-6);
}

TEST(TinyGpt2, CachedLogitsEqualTransformersAtEachPosition) {
  test::expect_cached_logits(TinyGpt2(DType::f32));
}

TEST(TinyGpt2, TheTableIsCountedOnce) {
  TinyGpt2 tiny(DType::f32);
  int64_t stored = 0, tables = 0;
  for (const auto& [name, entry] : tiny.file.entries()) {
    if (name.starts_with("initial/")) stored += tiny.file.read(name).numel();
  }
  for (const auto& p : nn::named_parameters(tiny.model)) tables += p.tensor.size(0) == 97;
  EXPECT_EQ(nn::parameter_count(tiny.model), stored);
  EXPECT_EQ(tables, 1);
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Llama 3 (Meta, 2024): pre-norm transformer, RoPE with Llama 3.1's scaling, grouped-query
// attention, SwiGLU; tied embeddings in 1B and 3B. Names of members and the initialisation are
// torchtitan's; initial weights of linears are truncated at three standard deviations.
#pragma once

#include "tessera/models/family.h"
#include "tessera/models/llama3/config.h"
#include "tessera/models/rotary_decoder.h"

namespace tessera::models {
struct Gguf;
}

namespace tessera::llama3 {

class TESSERA_API Model final : public models::RotaryDecoder {
 public:
  using Config = llama3::Config;
  /// Parameters are on the meta device until nn::initialize or nn::load. ValueError: fields that
  /// are out of range or conflict.
  explicit Model(const Config& config);
  [[nodiscard]] const Config& config() const { return config_; }

 private:
  Config config_;
};

/// Its names in transformers, and in llama.cpp.
const models::HuggingFace& hugging_face();
const models::Gguf& gguf();

TESSERA_API models::Family family();

}  // namespace tessera::llama3

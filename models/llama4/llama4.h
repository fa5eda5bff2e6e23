// SPDX-License-Identifier: Apache-2.0
// Llama 4 (Meta, 2025), its text model: pre-norm transformer with grouped-query attention and
// SwiGLU, in which some layers have experts and one shared expert. iRoPE: most layers turn adjacent
// pairs by RoPE and attend within chunks; every fourth has no positions, attends to the whole
// context, and scales queries by their position. Names of members and the initialisation are
// torchtitan's.
#pragma once

#include "tessera/models/family.h"
#include "tessera/models/llama4/config.h"
#include "tessera/models/rotary_decoder.h"

namespace tessera::llama4 {

class TESSERA_API Model final : public models::RotaryDecoder {
 public:
  using Config = llama4::Config;
  /// Parameters are on the meta device until nn::initialize or nn::load. ValueError: fields that
  /// are out of range or conflict.
  explicit Model(const Config& config);
  [[nodiscard]] const Config& config() const { return config_; }

 private:
  /// Of layers with RoPE, and of those without. Chunks and the scale of queries count the tokens of
  /// a row, also where it is packed with documents, as transformers and torchtitan do.
  [[nodiscard]] models::Metadata plain_metadata(int64_t length, int64_t start) const override;
  [[nodiscard]] size_t kind(size_t i) const override;
  [[nodiscard]] double pairs(int64_t length) override;
  Config config_;
};

/// Its names in transformers.
const models::HuggingFace& hugging_face();

TESSERA_API models::Family family();

}  // namespace tessera::llama4

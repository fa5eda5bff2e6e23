// SPDX-License-Identifier: Apache-2.0
// Llama 3 (Meta, 2024): pre-norm transformer, RoPE with Llama 3.1's scaling, grouped-query
// attention, SwiGLU; tied embeddings in 1B and 3B. Names of members and the initialisation are
// torchtitan's; initial weights of linears are truncated at three standard deviations.
#pragma once

#include "tessera/models/family.h"
#include "tessera/models/llama3/config.h"
#include "tessera/models/transformer.h"

namespace tessera::models {
struct Gguf;
}

namespace tessera::llama3 {

using Model = models::Model<Config>;

/// Its names in transformers, and in llama.cpp.
const models::HuggingFace& hugging_face();
const models::Gguf& gguf();

TESSERA_API models::Family family();

}  // namespace tessera::llama3

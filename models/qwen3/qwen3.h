// SPDX-License-Identifier: Apache-2.0
// Qwen 3 (Alibaba, 2025): pre-norm transformer, RoPE over the halves of a head, RMS norms of each
// head's queries and keys, grouped-query attention; SwiGLU, or experts that a softmax over all of
// them chooses; tied embeddings up to 4B. Names of members and the initialisation are torchtitan's.
#pragma once

#include "tessera/models/family.h"
#include "tessera/models/qwen3/config.h"
#include "tessera/models/transformer.h"

namespace tessera::models {
struct Gguf;
}

namespace tessera::qwen3 {

using Model = models::Model<Config>;

/// Its names in transformers: without and with experts.
const models::HuggingFace& hugging_face();
const models::HuggingFace& hugging_face_moe();
/// Its names in llama.cpp: the same.
const models::Gguf& gguf();
const models::Gguf& gguf_moe();

TESSERA_API models::Family family();

}  // namespace tessera::qwen3

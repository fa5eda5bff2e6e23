// SPDX-License-Identifier: Apache-2.0
// Llama 4 (Meta, 2025), its text model: pre-norm transformer with grouped-query attention and
// SwiGLU, in which some layers have experts and one shared expert. iRoPE: most layers turn adjacent
// pairs by RoPE and attend within chunks; every fourth has no positions, attends to the whole
// context, and scales queries by their position. Names of members and the initialisation are
// torchtitan's.
#pragma once

#include "tessera/models/family.h"
#include "tessera/models/llama4/config.h"
#include "tessera/models/transformer.h"

namespace tessera::llama4 {

using Model = models::Model<Config>;

/// Its names in transformers.
const models::HuggingFace& hugging_face();

TESSERA_API models::Family family();

}  // namespace tessera::llama4

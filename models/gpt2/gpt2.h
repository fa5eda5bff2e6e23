// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al., OpenAI, 2019): pre-norm transformer with LayerNorm, learned positions,
// biases, GELU by its tanh approximation, and tied embeddings. Names of members are those of our
// other decoders. Initialisation is that of transformers: normal with standard deviation 0.02, also
// for positions (OpenAI's first code used 0.01); 0.02 / sqrt(2 n_layers) for the output projections
// of attention and feed-forward; biases zero. Dropout is 0 by default; OpenAI trained with 0.1.
#pragma once

#include "tessera/models/family.h"
#include "tessera/models/gpt2/config.h"
#include "tessera/models/transformer.h"

namespace tessera::models {
struct Gguf;
}

namespace tessera::gpt2 {

using Model = models::Model<Config>;

/// Its names in transformers, and in llama.cpp.
const models::HuggingFace& hugging_face();
const models::Gguf& gguf();

TESSERA_API models::Family family();

}  // namespace tessera::gpt2

// SPDX-License-Identifier: Apache-2.0
// The types of models of transformers that are described by data, a file each.
#pragma once

#include "tessera/models/type.h"

#include <vector>

namespace tessera::models::types {

const Type& mistral();
const Type& ministral();
const Type& ministral3();
const Type& mixtral();
const Type& qwen2();
const Type& qwen2_moe();
const Type& gemma();
const Type& gemma2();
const Type& gemma3_text();
const Type& phi3();
const Type& olmo2();
const Type& olmo3();
const Type& olmoe();
const Type& granite();
const Type& granitemoe();
const Type& smollm3();
const Type& glm4();
const Type& cohere2();
const Type& gpt_neox();
const Type& stablelm();
const Type& starcoder2();

/// A family for each of them.
[[nodiscard]] std::vector<Family> families();

}  // namespace tessera::models::types

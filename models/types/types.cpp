// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/types/types.h"

namespace tessera::models::types {

std::vector<Family> families() {
  std::vector<Family> all;
  for (const Type& (*const type)() :
       {mistral,    ministral,   ministral3, mixtral, qwen2,    qwen2_moe, gemma,
        gemma2,     gemma3_text, phi3,       olmo2,   olmo3,    olmoe,     granite,
        granitemoe, smollm3,     glm4,       cohere2, gpt_neox, stablelm,  starcoder2})
    all.push_back(family_of(type()));
  return all;
}

}  // namespace tessera::models::types

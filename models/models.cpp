// SPDX-License-Identifier: Apache-2.0
// The list of families; a new family is a folder and a line here.
#include "tessera/models/models.h"

#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/models/llama4/llama4.h"
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/models/types/types.h"

namespace tessera::models {

std::vector<Family> families() {
  std::vector<Family> all{llama3::family(), gpt2::family(), qwen3::family(), llama4::family()};
  for (Family& type : types::families()) all.push_back(std::move(type));
  return all;
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Llama under the names of llama.cpp, which turns adjacent pairs of a head, as we do.
#include "tessera/models/gguf.h"

#include "tessera/models/llama3/llama3.h"

namespace tessera::llama3 {

const models::Gguf& gguf() {
  using Has = models::GgufArchitecture::Has;
  static const models::Gguf names =
      models::gguf_of({.name = "llama",
                       .qkv_bias = Has::may,
                       .output_bias = Has::may,
                       .ffn_bias = Has::may,
                       .rope_divisors = true},
                      [](const models::ModelConfig& c) { return c.as<Config>().architecture(); });
  return names;
}

}  // namespace tessera::llama3

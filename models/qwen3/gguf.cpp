// SPDX-License-Identifier: Apache-2.0
// Qwen 3 under the names of llama.cpp, which turns the halves of a head, as we do.
#include "tessera/models/gguf.h"

#include "tessera/models/qwen3/qwen3.h"

namespace tessera::qwen3 {
namespace {

models::Architecture architecture(const models::ModelConfig& config) {
  return config.as<Config>().architecture();
}

}  // namespace

const models::Gguf& gguf() {
  static const models::Gguf names = models::gguf_of({.name = "qwen3"}, architecture);
  return names;
}

const models::Gguf& gguf_moe() {
  static const models::Gguf names = models::gguf_of(
      {.name = "qwen3moe", .expert_length = true, .route_norm = true}, architecture);
  return names;
}

}  // namespace tessera::qwen3

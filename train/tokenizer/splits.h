// SPDX-License-Identifier: Apache-2.0
// How tokenizers of the field split text into words: their published patterns, as data.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::train {

struct NamedSplit {
  const char* name;                   ///< the family that splits so
  const char* gguf;                   ///< llama.cpp's name of it, `tokenizer.ggml.pre`
  std::vector<const char*> patterns;  ///< applied one after another, each to the parts of the last
};
/// llama.cpp's name of byte-level BPE, `tokenizer.ggml.model`.
inline constexpr const char* kGgufByteLevel = "gpt2";
/// The first is the default.
const std::vector<NamedSplit>& named_splits();
/// Null if there is none of this name; the default for an empty one.
const NamedSplit* find_split(std::string_view name);
/// The pattern that a ByteLevel part of tokenizer.json means.
const char* byte_level_pattern();

}  // namespace tessera::train

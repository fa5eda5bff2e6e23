// SPDX-License-Identifier: Apache-2.0
// A model under the names of llama.cpp's GGUF files. A family gives one table as data, beside that
// of Hugging Face (hugging_face.h), whose rows it shares.
#pragma once

#include "tessera/models/hugging_face.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::models {

/// A value of the file's head.
struct GgufValue {
  std::string key;  ///< after the architecture's name and a point
  std::variant<uint32_t, float> value;
};

/// A tensor that follows from the configuration.
struct GgufTable {
  std::string name;
  std::vector<float> values;
};

struct Gguf {
  std::string_view architecture;
  std::vector<HfTensorNames> tensors;
  /// Matrices that stay in f32, as vectors do, because they are added and not multiplied.
  std::vector<std::string_view> in_f32 = {};
  std::vector<GgufValue> (*values)(const ModelConfig& config);
  /// Empty: none. ValueError: llama.cpp cannot express the configuration.
  std::vector<GgufTable> (*tables)(const ModelConfig& config) = nullptr;
};

}  // namespace tessera::models

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

/// A value of the file's head: a size, or a number, which is stored in f32.
struct GgufValue {
  std::string key;  ///< after the architecture's name and a point
  std::variant<int64_t, double> value;
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
  /// ValueError, as of `tables`: llama.cpp cannot express the configuration.
  std::vector<GgufValue> (*values)(const ModelConfig& config);
  /// Empty: none.
  std::vector<GgufTable> (*tables)(const ModelConfig& config) = nullptr;
};

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// A model under the names of llama.cpp's GGUF files. A family gives one table as data, beside that
// of Hugging Face (hugging_face.h), whose rows it shares. Where the model is an Architecture, the
// table follows from what llama.cpp has for it.
#pragma once

#include "tessera/models/architecture.h"
#include "tessera/models/hugging_face.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::models {

/// A value of the file's head: a size, a number, which is stored in f32, a switch or a word.
struct GgufValue {
  std::string key;  ///< after the architecture's name and a point
  std::variant<int64_t, double, bool, std::string> value;
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
  /// Added to the weights of norms, which llama.cpp multiplies by as they are.
  double plus_in_norms = 0;
  /// ValueError, as of `tables`: llama.cpp cannot express the configuration.
  std::function<std::vector<GgufValue>(const ModelConfig& config)> values;
  /// Empty: none.
  std::function<std::vector<GgufTable>(const ModelConfig& config)> tables = nullptr;
  /// Size of a head, where rows of heads change places.
  std::function<int64_t(const ModelConfig& config)> head_dim = nullptr;
};

/// The tensors of a model in such a file, without its tables.
[[nodiscard]] TESSERA_API HfTensors gguf_tensors(const Gguf& gguf, const ModelConfig& config);
/// As what a tensor of this shape is stored: a matrix of one row as a vector.
[[nodiscard]] TESSERA_API Shape gguf_shape(const Shape& shape);
/// What is added to a tensor's values.
[[nodiscard]] TESSERA_API double gguf_plus(const Gguf& gguf, std::string_view tensor);

/// What llama.cpp reads under a key of this architecture alone.
struct GgufOwn {
  std::string_view key;
  std::function<decltype(GgufValue::value)(const Architecture& a)> value;
};

/// What an architecture of llama.cpp's computes with and no key can change.
struct GgufLimit {
  std::string_view expected;
  bool (*holds)(const Architecture& a);
};

/// What llama.cpp has for a type of model.
struct GgufArchitecture {
  enum class Has : uint8_t { no, may, must };
  enum class Windows : uint8_t {
    none,      ///< it has none: a file says that the context is as long as the shortest window
    alike,     ///< RoPE is the same in all layers
    own_theta  ///< layers with a window have a base of RoPE of their own, and no scaling
  };

  std::string_view name;
  HfChange heads = HfChange::none;  ///< of the rows of queries and keys
  Has qkv_bias = Has::no, output_bias = Has::no, ffn_bias = Has::no;
  Has head = Has::may;       ///< a weight of its own; else that of the embedding
  bool fused_qkv = false;    ///< queries, keys and values are one tensor, attn_qkv
  bool gated = true;         ///< the feed-forward is
  bool fused_gated = false;  ///< its two halves are one tensor, ffn_up
  /// The hidden size of experts has its own key; else it is feed_forward_length.
  bool expert_length = false;
  bool route_norm = false;     ///< the routing weights of a token are divided by their sum
  bool rope_divisors = false;  ///< it reads rope_freqs, by which Llama 3.1 divides frequencies
  bool longrope = false;       ///< it reads rope_factors_long and rope_factors_short
  Windows windows = Windows::none;
  int64_t window_pattern = 0;  ///< where the file does not say it
  double plus_in_norms = 0;
  std::vector<GgufOwn> own = {};
  std::vector<GgufLimit> limits = {};
};

/// Its table. `of` gives the architecture of a configuration.
[[nodiscard]] TESSERA_API Gguf gguf_of(const GgufArchitecture& parts,
                                       Architecture (*of)(const ModelConfig& config));

}  // namespace tessera::models

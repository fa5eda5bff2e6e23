// SPDX-License-Identifier: Apache-2.0
// GGUF, version 3: typed keys, then tensors, whose dims are written innermost first. Only written,
// a tensor at a time.
#pragma once

#include "tessera/core/dtype.h"
#include "tessera/core/shape.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::train {

/// How elements are stored.
enum class GgufType : uint32_t {
  f32 = 0,
  q8_0 = 8,  ///< 32 elements: a factor in f16, then 32 integers of 8 bits
  bf16 = 30
};
inline constexpr int64_t kQ8Block = 32;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  Shape shape = {};  ///< row-major; with q8_0 the last dim is a multiple of kQ8Block
};
[[nodiscard]] TESSERA_API uint64_t bytes_of(const GgufTensor& tensor);

struct GgufKey {
  std::string name;
  std::variant<uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<int32_t>,
               std::vector<float>>
      value;
};

/// Elements in blocks of q8_0, whose number is a multiple of kQ8Block: rounded half away from zero,
/// as llama.cpp does.
[[nodiscard]] TESSERA_API std::string q8_0(std::span<const float> values);

/// Writes the file, which appears complete or not at all. `data_of(i)` gives the bytes of tensor i,
/// once, in order. IoError: it cannot be written.
TESSERA_API void write_gguf(const std::string& path, const std::vector<GgufKey>& keys,
                            const std::vector<GgufTensor>& tensors,
                            const std::function<std::string(size_t)>& data_of);

}  // namespace tessera::train

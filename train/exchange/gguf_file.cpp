// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/exchange/gguf_file.h"

#include "tessera/core/error.h"
#include "tessera/core/float_types.h"
#include "tessera/core/message.h"
#include "tessera/nn/io/files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace tessera::train {
namespace {

constexpr uint64_t kAlignment = 32;

enum class KeyType : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, text = 8, list = 9 };
template <class T> constexpr KeyType type_of() {
  if constexpr (std::is_same_v<T, bool>) return KeyType::boolean;
  if constexpr (std::is_same_v<T, float>) return KeyType::f32;
  if constexpr (std::is_same_v<T, int32_t>) return KeyType::i32;
  if constexpr (std::is_same_v<T, uint32_t>) return KeyType::u32;
}

template <class T> void put(std::string& to, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& to, std::string_view text) {
  put(to, static_cast<uint64_t>(text.size()));
  to += text;
}

template <class T> void put_value(std::string& to, T value) {
  put(to, type_of<T>());
  put(to, value);
}
void put_value(std::string& to, const std::string& value) {
  put(to, KeyType::text);
  put_text(to, value);
}
void put_value(std::string& to, const std::vector<std::string>& list) {
  put(to, KeyType::list);
  put(to, KeyType::text);
  put(to, static_cast<uint64_t>(list.size()));
  for (const std::string& text : list) put_text(to, text);
}
template <class T> void put_value(std::string& to, const std::vector<T>& list) {
  put(to, KeyType::list);
  put(to, type_of<T>());
  put(to, static_cast<uint64_t>(list.size()));
  for (const T value : list) put(to, value);
}

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

uint64_t bytes_of(const GgufTensor& t) {
  const auto elements = static_cast<uint64_t>(t.shape.numel());
  if (t.type == GgufType::q8_0) return elements / kQ8Block * (kQ8Block + sizeof(f16));
  return elements * (t.type == GgufType::f32 ? sizeof(float) : sizeof(bf16));
}

std::string q8_0(std::span<const float> values) {
  std::string blocks;
  blocks.reserve(values.size() / kQ8Block * (kQ8Block + sizeof(f16)));
  for (size_t at = 0; at < values.size(); at += kQ8Block) {
    const auto block = values.subspan(at, kQ8Block);
    float largest = 0;
    for (const float x : block) {
      if (!std::isfinite(x)) fail<DataError>("gguf", "a weight is ", x, ", which q8_0 cannot hold");
      largest = std::max(largest, std::abs(x));
    }
    const float step = largest / 127;
    if (step > 65504.F)
      fail<DataError>("gguf", "a weight of ", largest, " is beyond the range of q8_0");
    // A step below the normal numbers is 0 in f16.
    const float steps_in_one = step < std::numeric_limits<float>::min() ? 0 : 1 / step;
    put(blocks, f16(step));
    for (const float x : block) put(blocks, static_cast<int8_t>(std::round(x * steps_in_one)));
  }
  return blocks;
}

void write_gguf(const std::string& path, const std::vector<GgufKey>& keys,
                const std::vector<GgufTensor>& tensors,
                const std::function<std::string(size_t)>& data_of) {
  std::string head = "GGUF";
  put(head, uint32_t{3});
  put(head, static_cast<uint64_t>(tensors.size()));
  put(head, static_cast<uint64_t>(keys.size()));
  for (const GgufKey& key : keys) {
    put_text(head, key.name);
    std::visit([&](const auto& value) { put_value(head, value); }, key.value);
  }
  uint64_t offset = 0;
  for (const GgufTensor& t : tensors) {
    put_text(head, t.name);
    put(head, static_cast<uint32_t>(t.shape.rank()));
    for (int d = t.shape.rank() - 1; d >= 0; --d) put(head, static_cast<uint64_t>(t.shape[d]));
    put(head, t.type);
    put(head, offset);
    offset += aligned(bytes_of(t));
  }
  head.resize(aligned(head.size()), '\0');
  io::write_file_atomically(path, [&](const std::function<void(std::string_view)>& write) {
    write(head);
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::string bytes = data_of(i);
      const uint64_t expected = bytes_of(tensors[i]);
      if (bytes.size() != expected)
        fail<UsageError>("gguf", tensors[i].name, " has ", counted(bytes.size(), "byte"),
                         ", expected ", expected);
      bytes.resize(aligned(expected), '\0');
      write(bytes);
    }
  });
}

}  // namespace tessera::train

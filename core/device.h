// SPDX-License-Identifier: Apache-2.0
// Devices of tensors. `meta` tensors have a shape and a dtype but no bytes.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <iosfwd>

namespace tessera {

struct Device {
  enum class Kind : uint8_t { cpu, cuda, meta };
  Kind kind = Kind::cpu;
  int8_t index = 0;
  constexpr bool operator==(const Device&) const = default;
  [[nodiscard]] constexpr bool is_cpu() const { return kind == Kind::cpu; }
  [[nodiscard]] constexpr bool is_cuda() const { return kind == Kind::cuda; }
  [[nodiscard]] constexpr bool is_meta() const { return kind == Kind::meta; }
};
inline constexpr Device kCpu{};
inline constexpr Device kMeta{Device::Kind::meta, 0};
constexpr Device cuda(int index = 0) { return {Device::Kind::cuda, static_cast<int8_t>(index)}; }
TESSERA_API std::ostream& operator<<(std::ostream&, Device);

/// An opaque device stream (cudaStream_t on CUDA), so that no public header needs CUDA's.
struct Stream {
  void* handle = nullptr;
  Device device = kCpu;
};

}  // namespace tessera

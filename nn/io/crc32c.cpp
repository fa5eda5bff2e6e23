// SPDX-License-Identifier: Apache-2.0
// Eight bytes per instruction if the processor has SSE 4.2, checked at run time, so the build needs
// no flag; otherwise one byte at a time with a table. Both give the same sum.
#include "tessera/nn/io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tessera::io {
namespace {

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
    table[i] = c;
  }
  return table;
}();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t with_instruction(std::string_view bytes, uint32_t c) {
  uint64_t state = c;
  for (; bytes.size() >= sizeof(uint64_t); bytes.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    state = _mm_crc32_u64(state, word);
  }
  for (char byte : bytes)
    state = _mm_crc32_u8(static_cast<uint32_t>(state), static_cast<unsigned char>(byte));
  return static_cast<uint32_t>(state);
}
#endif

}  // namespace

uint32_t crc32c_portable(std::string_view bytes, uint32_t before) {
  uint32_t c = ~before;
  for (char byte : bytes) c = c >> 8 ^ kTable[(c ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~c;
}

uint32_t crc32c(std::string_view bytes, uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~with_instruction(bytes, ~before);
#endif
  return crc32c_portable(bytes, before);
}

}  // namespace tessera::io

// SPDX-License-Identifier: Apache-2.0
// A target of libFuzzer: `./dev fuzz` builds it with clang.
#include "tessera/tests/fuzz/entries.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)tessera::fuzz::chat_input({reinterpret_cast<const char*>(data), size});
  return 0;
}

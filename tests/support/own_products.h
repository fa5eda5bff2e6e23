// SPDX-License-Identifier: Apache-2.0
// Which products tests may compare by bits.
#pragma once

#include "tessera/kernels/matmul/matmul.h"

#include <string>

namespace tessera::test {

/// Whether products of this dtype run on the library's own kernels here, which give equal bits with
/// any number of threads.
inline bool own_products(DType dtype) {
  return product_route().find(concat(dtype, " by own")) != std::string::npos;
}

}  // namespace tessera::test

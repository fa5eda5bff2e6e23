// SPDX-License-Identifier: Apache-2.0
// The ops of dist/, for the laws.
#pragma once

#include "tessera/core/op_row.h"

#include <span>

namespace tessera {

/// All ops that dist/ adds to those of kernels/.
[[nodiscard]] TESSERA_API std::span<const OpRow* const> dist_rows();

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The dtype that rooms keep statistics and tables in: f32, or f64 for f64.
#pragma once

#include "tessera/core/dtype.h"

namespace tessera {

constexpr DType statistics(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace tessera

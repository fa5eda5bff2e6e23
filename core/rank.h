// SPDX-License-Identifier: Apache-2.0
// Access to the Distributor of the calling rank, for code that runs no op.
#pragma once

#include "tessera/core/api.h"
#include "tessera/core/hooks.h"

#include <string_view>

namespace tessera::detail {

/// The Distributor of the calling thread, for the distributed `x`. UsageError, named `who`: this
/// thread is not a rank.
TESSERA_API Distributor& distributor_of(std::string_view who, const Tensor& x);

}  // namespace tessera::detail

// SPDX-License-Identifier: Apache-2.0
// How code that runs no op reaches the Distributor of its rank.
#pragma once

#include "tessera/core/api.h"
#include "tessera/core/hooks.h"

#include <string_view>

namespace tessera::detail {

/// The Distributor of the calling thread, for the distributed `x`. UsageError, in the name of
/// `who`: this thread is no rank.
TESSERA_API Distributor& distributor_of(std::string_view who, const Tensor& x);

}  // namespace tessera::detail

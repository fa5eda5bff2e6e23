// SPDX-License-Identifier: Apache-2.0
// The `tessera` program as a function, so that tests can run it.
#pragma once

#include "tessera/core/api.h"

#include <iosfwd>
#include <span>
#include <string>

namespace tessera::train {

/// Runs `tessera <arguments>`. Gives the exit status: 0, 1 for a failure at run time, 2 for wrong
/// usage.
TESSERA_API int run_cli(std::span<const std::string> arguments, std::ostream& out,
                        std::ostream& err);

}  // namespace tessera::train

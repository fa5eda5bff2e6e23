// SPDX-License-Identifier: Apache-2.0
// The `tessera` program as a function, so that tests can run it.
#pragma once

#include "tessera/train/run/config.h"

#include <iosfwd>
#include <span>
#include <string>

namespace tessera::train {

/// Runs `tessera <arguments>`. Gives the exit status: 0, 1 for a failure at run time, 2 for wrong
/// usage. A program with model families or recipes of its own adds them to `catalogue`.
TESSERA_API int run_cli(std::span<const std::string> arguments, std::ostream& out,
                        std::ostream& err, const Catalogue& catalogue = {});

}  // namespace tessera::train

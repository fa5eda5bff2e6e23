// SPDX-License-Identifier: Apache-2.0
// The `tessera` program as a function, so that tests can run it.
#pragma once

#include "tessera/train/config/config.h"

#include <iosfwd>
#include <span>
#include <string>

namespace tessera::train {

/// Runs `tessera <arguments>`. Returns the exit status: 0, 2 for a ConfigError, 1 for what fails
/// later. A program adds its own model families and recipes to `catalogue`.
TESSERA_API int run_cli(std::span<const std::string> arguments, std::ostream& out,
                        std::ostream& err, const Catalogue& catalogue = {});

/// The same as the whole of a `main`, on the standard streams. A write that fails, as on a full
/// disk, gives the status 1. A pipe that its reader closes ends a command with the status 0, but
/// training goes on, and it never waits for a slow reader.
TESSERA_API int run_program(std::span<const std::string> arguments,
                            const Catalogue& catalogue = {});

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Commands of the program beside training: each takes the words after its name, writes to `out` and
// gives the exit status. ConfigError for wrong usage.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace tessera::train {

/// `tessera generate --checkpoint DIR --prompt TEXT [--prompt TEXT]...`: prints as tokens come.
int generate_command(std::span<const std::string> arguments, std::ostream& out);
std::string generate_help();

/// `tessera plot RUN_FOLDER`: a curve of its metrics.jsonl on the terminal, or as an SVG file.
int plot_command(std::span<const std::string> arguments, std::ostream& out);
std::string plot_help();

/// `tessera trace FOLDER`: joins the ranks' traces of one iteration into FOLDER/trace.json.
int trace_command(std::span<const std::string> arguments, std::ostream& out);
std::string trace_help();

}  // namespace tessera::train

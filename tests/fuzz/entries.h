// SPDX-License-Identifier: Apache-2.0
// What bytes from strangers go through: as configuration (a JSON file and a command line) and as a
// checkpoint (a manifest or a safetensors file). Fuzzers and tests call these; a tessera Error is
// an answer, anything else that leaves them is a fault.
#pragma once

#include <string_view>

namespace tessera::fuzz {

/// A JSON file (where the input begins with '{'), a NUL, and command-line words, a line each; or
/// one of both. Whether one was accepted. std::logic_error: it does not come back from its own
/// dump.
bool config_input(std::string_view bytes);

/// A manifest (where the input begins with '{'), as it is and under a checksum that fits, or else a
/// safetensors file, of which all tensors are read. Otherwise as config_input.
bool checkpoint_input(std::string_view bytes);

}  // namespace tessera::fuzz

// SPDX-License-Identifier: Apache-2.0
// The families of this repository. A program with its own family passes `run_cli` a longer list.
#pragma once

#include "tessera/models/family.h"

namespace tessera::models {

TESSERA_API std::vector<Family> families();

}  // namespace tessera::models

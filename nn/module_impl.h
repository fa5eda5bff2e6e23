// SPDX-License-Identifier: Apache-2.0
// What errors and printing ask of a module.
#pragma once

#include "tessera/nn/module.h"

#include <string>

namespace tessera::nn::detail {

/// Visiting lists members and changes none, and modules are never made const.
Module& visitable(const Module& module);
/// The module's class, with its namespaces.
std::string type_name(const Module& module);

}  // namespace tessera::nn::detail

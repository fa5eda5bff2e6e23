// SPDX-License-Identifier: Apache-2.0
// The fields of rotary positions, which the families that have them share.
#pragma once

#include "tessera/kernels/rope/rope.h"
#include "tessera/models/config/fields.h"

namespace tessera::config {

/// rope_theta, rope_scaling and its parameters.
TESSERA_API void rope_fields(Fields& f, double& theta, RopeScaling& scaling);
/// What no single one of them shows, as texts that begin with `[--model.<field>]`.
TESSERA_API std::vector<std::string> rope_conflicts(const RopeScaling& scaling);

}  // namespace tessera::config

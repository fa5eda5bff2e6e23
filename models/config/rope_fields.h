// SPDX-License-Identifier: Apache-2.0
// The RoPE fields, shared by the families that use RoPE.
#pragma once

#include "tessera/kernels/rope/rope.h"
#include "tessera/models/config/fields.h"

namespace tessera::config {

/// rope_theta, rope_scaling and its parameters.
TESSERA_API void rope_fields(Fields& f, double& theta, RopeScaling& scaling);
/// Conflicts between these fields, as messages that begin with `[--model.<field>]`.
TESSERA_API std::vector<std::string> rope_conflicts(const RopeScaling& scaling);

}  // namespace tessera::config

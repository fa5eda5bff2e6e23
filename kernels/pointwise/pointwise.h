// SPDX-License-Identifier: Apache-2.0
// The pointwise family: out[i] = f(a[i], b[i], ...) over broadcast inputs. To add an op: a struct,
// its public function and its name in the list, in the header of its kind.
#pragma once

#include "tessera/kernels/pointwise/pointwise_activations.h"
#include "tessera/kernels/pointwise/pointwise_arithmetic.h"
#include "tessera/kernels/pointwise/pointwise_elementary.h"
#include "tessera/kernels/pointwise/pointwise_logic.h"
#include "tessera/kernels/pointwise/pointwise_losses.h"
#include "tessera/kernels/pointwise/pointwise_operators.h"
#include "tessera/kernels/pointwise/pointwise_rounding.h"

namespace tessera::op {

using pointwise_ops =
    ConcatOps<pointwise_arithmetic_ops, pointwise_rounding_ops, pointwise_logic_ops,
              pointwise_elementary_ops, pointwise_activations_ops, pointwise_losses_ops>;

}  // namespace tessera::op

// SPDX-License-Identifier: Apache-2.0
// Gradients that grad() does not show yet: what a bucket keeps of micro-batches until the last one.
// The passes say here which bucket may keep something for a parameter, so that clearing a gradient
// clears that too.
#pragma once

#include "tessera/dist/buckets/bucket.h"

#include <memory>
#include <unordered_map>

namespace tessera::nn::detail {

/// Of a rank.
struct KeptGradients {
  struct Place {
    std::weak_ptr<Bucket> bucket;
    int number = 0;  // of the parameter in it
  };
  std::unordered_map<const TensorImpl*, Place> of;  // by parameter
};

/// Afterwards the parameter has no gradient, in grad() or kept.
void clear_gradient(Tensor& parameter);

}  // namespace tessera::nn::detail

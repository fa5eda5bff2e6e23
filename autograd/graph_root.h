// SPDX-License-Identifier: Apache-2.0
// GraphRoot: backward from results whose bytes are gone.
#pragma once

#include "tessera/autograd/node.h"

#include <span>

namespace tessera {

/// A result without its bytes: what backward from it needs, for results that were sent elsewhere.
class TESSERA_API GraphRoot {
 public:
  /// AutogradError: `result` does not depend on anything that requires grad.
  explicit GraphRoot(const Tensor& result);

 private:
  friend class BackwardPass;
  Edge edge_;
  TensorMeta meta_;
  bool distributed_;
};
/// Backward from several results in one pass, with the gradient of each. Errors as of
/// backward (autograd.h).
TESSERA_API void backward(std::span<const GraphRoot> results, Tensors gradients);

}  // namespace tessera

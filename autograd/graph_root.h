// SPDX-License-Identifier: Apache-2.0
// GraphRoot: backward from results whose bytes are gone, whole or in two parts.
#pragma once

#include "tessera/autograd/node.h"

#include <memory>
#include <span>

namespace tessera {

class BackwardPass;

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

/// Backward in two parts: gradients of `inputs` first, so that whoever waits for them can go on,
/// then those of all other leaves, later. Together the parts have the bits of backward(), with each
/// hook, region and recompute once; what the second part needs is kept between them. Passes that
/// wait for their second part may share leaves. Used on the thread that made it.
class TESSERA_API SplitBackward {
 public:
  /// Runs the first part, which adds to the gradients of `inputs`, leaves. Errors as of backward;
  /// UsageError inside another pass.
  SplitBackward(std::span<const GraphRoot> results, Tensors gradients, Tensors inputs);
  /// Without the second part its gradients are never made.
  ~SplitBackward();
  SplitBackward(const SplitBackward&) = delete;
  SplitBackward& operator=(const SplitBackward&) = delete;
  /// Runs the second part, once. Errors as of backward.
  void finish();

 private:
  std::unique_ptr<BackwardPass> pass_;
};

}  // namespace tessera

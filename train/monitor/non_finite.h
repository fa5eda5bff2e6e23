// SPDX-License-Identifier: Apache-2.0
// Finding where a value stopped being finite: a look at every op while a step runs again.
#pragma once

#include "tessera/core/context.h"

#include <functional>
#include <string>

namespace tessera::train {

/// Whether this rank's part holds no NaN and no infinity; true for integers and undefined tensors.
[[nodiscard]] TESSERA_API bool all_finite(const Tensor& t);

/// While it lives, notes the first op whose output is not finite though its inputs are.
class TESSERA_API FirstNonFinite {
 public:
  FirstNonFinite();
  ~FirstNonFinite();
  FirstNonFinite(const FirstNonFinite&) = delete;
  FirstNonFinite& operator=(const FirstNonFinite&) = delete;
  /// Whether what follows is backward, where ops have no module.
  void in_backward(bool on) { backward_ = on; }
  /// "op swiglu in module layers.1.feed_forward"; empty while there is none.
  [[nodiscard]] const std::string& found() const { return found_; }

 private:
  Context& context_;
  std::function<void(const OpRow&, const void*, Tensors, Tensors)> before_;
  std::string found_;
  bool backward_ = false;
};

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Finds the op that first made a non-finite value, by checking every op while a step is repeated.
#pragma once

#include "tessera/core/context.h"

#include <functional>
#include <string>

namespace tessera::train {

/// Whether this rank's shard has no NaN and no infinity; true for integers and undefined tensors.
[[nodiscard]] TESSERA_API bool all_finite(const Tensor& t);

/// During its lifetime, records the first op with finite inputs and a non-finite output.
class TESSERA_API FirstNonFinite {
 public:
  FirstNonFinite();
  ~FirstNonFinite();
  FirstNonFinite(const FirstNonFinite&) = delete;
  FirstNonFinite& operator=(const FirstNonFinite&) = delete;
  /// "op swiglu in module layers.1.feed_forward", "op mul in backward of module norm"; empty if
  /// there is none.
  [[nodiscard]] const std::string& found() const { return found_; }
  /// Ops before it, which tells which rank was the first of several.
  [[nodiscard]] int64_t ops_before() const { return ops_; }

 private:
  Context& context_;
  std::function<void(const OpRow&, const void*, Tensors, Tensors)> before_;
  std::string found_;
  int64_t ops_ = 0;
};

}  // namespace tessera::train

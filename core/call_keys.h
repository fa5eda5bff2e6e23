// SPDX-License-Identifier: Apache-2.0
// The keys of random numbers that ops draw while a model runs.
#pragma once

#include "tessera/core/rng.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera {

/// Keys of random numbers drawn while a model runs (dropout): a function of the seed, the step, the
/// module path and the number of the draw in that module, so that they are the same on any mesh. A
/// copy that is restored later draws the same keys again.
class TESSERA_API CallKeys {
 public:
  /// Restarts with `seed` at the first draw of step 0.
  void set_seed(uint64_t seed);
  /// Restarts at the first draw of `step`.
  void set_step(uint64_t step);
  [[nodiscard]] RngKey next(const std::vector<std::string>& module_path);

 private:
  uint64_t seed_ = 0, step_ = 0;
  std::map<uint64_t, uint64_t> draws_;  // by the hash of the module path
};

}  // namespace tessera

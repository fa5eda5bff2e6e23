// SPDX-License-Identifier: Apache-2.0
// A key is the hash of step, draw and module path, so that no module's draws depend on another's.
#include "tessera/core/call_keys.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"

namespace tessera {

void CallKeys::set_seed(uint64_t seed) {
  seed_ = seed;
  set_step(0);
}

void CallKeys::set_step(uint64_t step) {
  step_ = step;
  draws_.clear();
}

RngKey CallKeys::next(const std::vector<std::string>& module_path) {
  const std::string path = joined_path(module_path);
  const uint64_t draw = draws_[stream_of(path)]++;
  return {seed_, stream_of(concat("call ", step_, ' ', draw, ' ', path))};
}

}  // namespace tessera

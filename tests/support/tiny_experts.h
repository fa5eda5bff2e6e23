// SPDX-License-Identifier: Apache-2.0
// Words of a run from text, and those of a model with experts of some thousand parameters.
#pragma once

#include "tessera/tests/support/tiny_run.h"

#include <iterator>
#include <sstream>
#include <string>

namespace tessera::train {

inline Words split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

inline Words tiny_experts() {
  return split(
      "--recipe qwen3_debugmodel_moe_small --model.dim 16 --model.n_layers 2 --model.n_heads 2 "
      "--model.n_kv_heads 1 --model.head_dim 8 --model.vocab_size 260 --model.num_experts 8 "
      "--model.top_k 2 --model.moe_inter_dim 12");
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Text from a model, a token at a time: the likeliest, or drawn from the k likeliest. Keys and
// values of the tokens seen are cached.
#pragma once

#include "tessera/models/llama3/llama3.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct GenerateOptions {
  int64_t tokens = 200;    ///< at most; the end mark ends the text earlier
  double temperature = 0;  ///< 0: always the likeliest token
  int64_t top_k = 40;
  int64_t context = 256;  ///< tokens that the model sees, the last ones of what there is
  uint64_t seed = 0;
};

/// What follows `prompt`, as bytes. A distributed model must be replicated: any rank may call this
/// alone.
TESSERA_API std::string generate(const llama3::Model& model, std::string_view prompt,
                                 const GenerateOptions& options);

}  // namespace tessera::train

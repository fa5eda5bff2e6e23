// SPDX-License-Identifier: Apache-2.0
// Sampling of the next token by temperature, top-k and top-p over one row of logits. On the host in
// f64, so that the distribution is the same on any device.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

struct SamplingOptions {
  double temperature = 0;  ///< 0: always the most likely token
  int64_t top_k = 40;      ///< only the k most likely tokens; ties: the first
  double top_p = 1;        ///< only the fewest most likely tokens whose probabilities sum to this
};
/// ValueError if one is out of its range: temperature >= 0 and finite, top_k >= 1, 0 < top_p <= 1.
TESSERA_API void check(const SamplingOptions& options);

struct Candidate {
  int64_t token = 0;
  double probability = 0;
};
/// The candidates for the next token, most likely first, with probabilities that sum to 1: softmax
/// of logits / temperature, reduced to the k most likely, then to the fewest that sum to top_p,
/// each time normalised. At temperature 0: one token with probability 1. NumericError if a logit is
/// NaN or +infinity, or all are -infinity; ValueError if there are none.
TESSERA_API std::vector<Candidate> candidates(std::span<const double> logits,
                                              const SamplingOptions& options);
/// The candidate at `u` in [0, 1) of the cumulative distribution.
TESSERA_API int64_t draw(std::span<const Candidate> candidates, double u);

}  // namespace tessera::train

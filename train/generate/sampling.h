// SPDX-License-Identifier: Apache-2.0
// Sampling: which token comes next, by temperature, top-k and top-p over one row of logits. On the
// host in f64, so that the distribution is exact and the same on any device.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

struct SamplingOptions {
  double temperature = 0;  ///< 0: always the likeliest token
  int64_t top_k = 40;      ///< only the k likeliest; of equal ones the first
  double top_p = 1;        ///< only the likeliest that reach this probability together
};
/// ValueError if one is out of its range: temperature >= 0 and finite, top_k >= 1, 0 < top_p <= 1.
TESSERA_API void check(const SamplingOptions& options);

struct Candidate {
  int64_t token = 0;
  double probability = 0;
};
/// What the next token is drawn from, likeliest first, with probabilities that sum to 1: softmax of
/// logits / temperature, cut to the k likeliest, of these to the fewest that hold top_p, each time
/// normalised. One token, certain, at temperature 0. NumericError if a logit is NaN or +infinity,
/// or all are -infinity; ValueError if there are none.
TESSERA_API std::vector<Candidate> candidates(std::span<const double> logits,
                                              const SamplingOptions& options);
/// The candidate that `u` in [0, 1) falls on.
TESSERA_API int64_t draw(std::span<const Candidate> candidates, double u);

}  // namespace tessera::train

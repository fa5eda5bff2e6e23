// SPDX-License-Identifier: Apache-2.0
// Only the k most likely tokens are sorted, ties by id, so that the order is unique. Exponents are
// relative to the largest logit and never overflow.
#include "tessera/train/generate/sampling.h"

#include "tessera/core/error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::train {
namespace {

void check_logits(std::span<const double> logits) {
  if (logits.empty()) fail<ValueError>("generate", "there are no logits to draw from");
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<double>::infinity())
      fail<NumericError>("generate", "the logit of token ", i, " is ", logits[i],
                         ": the model's parameters or activations are not finite");
    any |= std::isfinite(logits[i]);
  }
  if (!any) fail<NumericError>("generate", "every logit is -infinity: no token can follow");
}

void normalise(std::vector<Candidate>& all) {
  double total = 0;
  for (const Candidate& c : all) total += c.probability;
  for (Candidate& c : all) c.probability /= total;
}

}  // namespace

void check(const SamplingOptions& o) {
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature))
    fail<ValueError>("generate", "temperature is ", o.temperature,
                     ", expected 0 (the likeliest token) or more");
  if (o.top_k < 1)
    fail<ValueError>("generate", "top_k is ", o.top_k,
                     ", expected at least 1; as many as there are tokens leaves all");
  if (!(o.top_p > 0 && o.top_p <= 1))
    fail<ValueError>("generate", "top_p is ", o.top_p,
                     ", expected above 0 and at most 1, which leaves all");
}

std::vector<Candidate> candidates(std::span<const double> logits, const SamplingOptions& o) {
  check(o);
  check_logits(logits);
  const auto likelier = [&](int64_t a, int64_t b) {
    const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const int64_t k = o.temperature == 0 ? 1 : std::min(o.top_k, static_cast<int64_t>(logits.size()));
  std::partial_sort(order.begin(), order.begin() + k, order.end(), likelier);

  std::vector<Candidate> all;
  const double top = logits[static_cast<size_t>(order[0])];
  for (int64_t i = 0; i < k; ++i) {
    const double below = logits[static_cast<size_t>(order[static_cast<size_t>(i)])] - top;
    // Temperature 0 takes only the top token, and avoids 0 / 0.
    all.push_back(
        {order[static_cast<size_t>(i)], below == 0 ? 1 : std::exp(below / o.temperature)});
  }
  normalise(all);
  if (o.top_p < 1) {
    double held = 0;
    size_t kept = 0;
    while (kept < all.size() && held < o.top_p) held += all[kept++].probability;
    all.resize(kept);
    normalise(all);
  }
  return all;
}

int64_t draw(std::span<const Candidate> all, double u) {
  for (const Candidate& c : all) {
    u -= c.probability;
    if (u < 0) return c.token;
  }
  // If rounding leaves a remainder of u, the last possible token is drawn.
  const auto last =
      std::find_if(all.rbegin(), all.rend(), [](const Candidate& c) { return c.probability > 0; });
  return last->token;
}

}  // namespace tessera::train

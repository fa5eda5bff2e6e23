// SPDX-License-Identifier: Apache-2.0
// Tables of rotary positions, computed in f64 and rounded once.
#include "tessera/core/message.h"
#include "tessera/kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {
namespace {

constexpr std::string_view kName = "rope_frequencies";

void check_factors(const RopeScaling& s, int64_t dim) {
  for (const std::vector<double>* factors : {&s.short_factors, &s.long_factors}) {
    const std::string_view which = factors == &s.short_factors ? "short_factors" : "long_factors";
    if (std::ssize(*factors) != dim / 2) {
      fail<ValueError>(kName, which, " has ", counted(factors->size(), "factor"), ": expected ",
                       dim / 2, ", one for each pair of a head");
    }
    for (const double factor : *factors) {
      if (!(factor > 0) || !std::isfinite(factor))
        fail<ValueError>(kName, which, " has a factor of ", factor, ": expected positive numbers");
    }
  }
  if (!(s.attention_factor >= 0)) {
    fail<ValueError>(kName, "attention_factor is ", s.attention_factor,
                     ": expected a positive number, or 0 for the default");
  }
  if (s.attention_factor == 0 && s.factor > 1 && s.original_max_position < 2) {
    fail<ValueError>(kName, "original_max_position is ", s.original_max_position,
                     ": longrope's attention factor needs 2 or more");
  }
}

void check_scaling(const RopeScaling& s, int64_t dim, double theta) {
  using enum RopeScaling::Kind;
  if (s.kind == none) return;
  if (!(s.factor >= 1) || s.original_max_position < 1) {
    fail<ValueError>(kName, "factor is ", s.factor, " and original_max_position is ",
                     s.original_max_position, ": expected both to be 1 or more");
  }
  if (s.kind == llama3 && !(s.low_freq_factor > 0 && s.low_freq_factor <= s.high_freq_factor)) {
    fail<ValueError>(kName, "low_freq_factor is ", s.low_freq_factor, ", high_freq_factor is ",
                     s.high_freq_factor, ": expected 0 < low_freq_factor <= high_freq_factor");
  }
  if (s.kind == longrope) check_factors(s, dim);
  if (s.kind != yarn) return;
  if (!(s.beta_slow > 0 && s.beta_slow <= s.beta_fast)) {
    fail<ValueError>(kName, "beta_slow is ", s.beta_slow, ", beta_fast is ", s.beta_fast,
                     ": expected 0 < beta_slow <= beta_fast");
  }
  if (!(theta > 1))
    fail<ValueError>(kName, "theta is ", theta, ": yarn counts turns and needs more than 1");
  if (!(s.attention_factor >= 0 && s.mscale >= 0 && s.mscale_all_dim >= 0)) {
    fail<ValueError>(kName, "attention_factor is ", s.attention_factor, ", mscale is ", s.mscale,
                     ", mscale_all_dim is ", s.mscale_all_dim,
                     ": expected positive numbers, or 0 for the default");
  }
}

double llama3_frequency(double frequency, const RopeScaling& s) {
  const double turns =
      static_cast<double>(s.original_max_position) * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns >= s.high_freq_factor) return frequency;
  const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - kept) * frequency / s.factor + kept * frequency;
}

// Scales the frequencies of pairs that turn slowly.
void scale_by_yarn(std::vector<double>& frequencies, double dim, double theta,
                   const RopeScaling& s) {
  // The pair, as a real number, that turns this often in the original context.
  const auto pair_of = [&](double turns) {
    return dim *
           std::log(static_cast<double>(s.original_max_position) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // a step instead of a ramp
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1 - slow) + slow / s.factor;
  }
}

}  // namespace

std::vector<double> rope_frequencies(int64_t dim, double theta, const RopeScaling& scaling) {
  if (dim % 2 != 0 || dim < 0 || !(theta > 0)) {
    fail<ValueError>(kName, "expected an even dim of 0 or more and a positive theta: given dim ",
                     dim, ", theta ", theta);
  }
  check_scaling(scaling, dim, theta);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dim / 2; ++i) {
    frequencies.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  }
  using enum RopeScaling::Kind;
  switch (scaling.kind) {
    case none: break;
    case linear:
      for (double& f : frequencies) f /= scaling.factor;
      break;
    case llama3:
      for (double& f : frequencies) f = llama3_frequency(f, scaling);
      break;
    case yarn: scale_by_yarn(frequencies, static_cast<double>(dim), theta, scaling); break;
    case longrope: {
      const auto& factors = scaling.is_long ? scaling.long_factors : scaling.short_factors;
      for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
      break;
    }
  }
  return frequencies;
}

double rope_attention_factor(const RopeScaling& s) {
  using enum RopeScaling::Kind;
  if (s.kind != yarn && s.kind != longrope) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.kind == longrope) {
    return s.factor > 1 ? std::sqrt(1 + std::log(s.factor) /
                                            std::log(static_cast<double>(s.original_max_position)))
                        : 1;
  }
  const auto of = [&](double mscale) { return 1 + 0.1 * mscale * std::log(s.factor); };
  return s.mscale > 0 && s.mscale_all_dim > 0 ? of(s.mscale) / of(s.mscale_all_dim) : of(1);
}

std::array<Tensor, 2> rope_tables(int64_t length, int64_t dim, double theta, int64_t start,
                                  DType dtype, const RopeScaling& scaling) {
  if (length < 0) fail<ValueError>("rope_tables", "length is ", length, ": expected 0 or more");
  const std::vector<double> frequencies = rope_frequencies(dim, theta, scaling);
  const double size = rope_attention_factor(scaling);
  std::vector<double> c, s;
  c.reserve(static_cast<size_t>(length) * frequencies.size());
  s.reserve(c.capacity());
  for (int64_t t = 0; t < length; ++t) {
    for (double frequency : frequencies) {
      const double angle = static_cast<double>(start + t) * frequency;
      c.push_back(size * std::cos(angle));
      s.push_back(size * std::sin(angle));
    }
  }
  return {from_values(c, {length, dim / 2}, dtype), from_values(s, {length, dim / 2}, dtype)};
}

}  // namespace tessera

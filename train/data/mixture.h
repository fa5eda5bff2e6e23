// SPDX-License-Identifier: Apache-2.0
// Mixtures: the rows of several data sets in given proportions. Which data set gives a row is a
// function of the weights and the number of the row alone, in integers: after any number of rows,
// each data set has given its share but for less than one row.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// A data set of a run.
struct MixturePart {
  std::string path;
  int64_t weight = 1;  ///< its rows in a period of the mixture
  std::string field;   ///< that names it, for errors
  bool operator==(const MixturePart&) const = default;
};
/// Parts, each `PATH weight=W`, with weights in lowest terms. W has at most six decimals; without
/// it the weight is 1. ConfigError, which names `field`, lists every fault: no path, a weight that
/// is no positive number, more than 64 parts, or weights that come out even only after more than
/// 1,000,000 rows.
[[nodiscard]] TESSERA_API std::vector<MixturePart> parse_mixture(
    const std::vector<std::string>& parts, const std::string& field);

class TESSERA_API Mixture {
 public:
  /// Weights are positive; their sum is at most 1,000,000.
  explicit Mixture(std::span<const int64_t> weights);

  struct Row {
    size_t source;
    int64_t index;  ///< rows that the source gave before
    bool operator==(const Row&) const = default;
  };
  /// Of row `row` of the run, from 0.
  [[nodiscard]] Row at(int64_t row) const;
  /// Rows after which all begins again.
  [[nodiscard]] int64_t period() const { return static_cast<int64_t>(sources_.size()); }

 private:
  std::vector<int64_t> weights_;
  // For each row of a period.
  std::vector<uint8_t> sources_;
  std::vector<int32_t> before_;  // rows that its source gave before in the period
};

}  // namespace tessera::train

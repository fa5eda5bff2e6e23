// SPDX-License-Identifier: Apache-2.0
// For tests of models on meshes: whole gradients against those of one rank.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace tessera::test {

/// Values of tensors by their names.
using Values = std::map<std::string, std::vector<double>>;

/// Each error relative to the gradient's own norm is at most `limit`; the largest. Without RoPE,
/// biases of keys have no gradient but for rounding: a shift of all scores of a query changes
/// nothing.
inline double expect_same_gradients(const Values& got, const Values& want, double limit,
                                    const std::string& what) {
  double worst = 0;
  for (const auto& [name, values] : want) {
    const std::vector<double>& mine = got.at(name);
    EXPECT_EQ(mine.size(), values.size()) << what << ": " << name;
    double off = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      off += (mine.at(i) - values[i]) * (mine.at(i) - values[i]);
      norm += values[i] * values[i];
    }
    if (name.ends_with("wk.bias") && std::sqrt(norm) < limit) {
      EXPECT_LT(std::sqrt(off), limit) << what << ": " << name;
      continue;
    }
    EXPECT_LE(std::sqrt(off), limit * std::sqrt(norm)) << what << ": " << name;
    if (norm > 0) worst = std::max(worst, std::sqrt(off / norm));
  }
  return worst;
}

}  // namespace tessera::test

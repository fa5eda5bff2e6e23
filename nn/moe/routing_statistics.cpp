// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/moe/routing_statistics.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::nn {

Tensor routing_statistics(const Tensor& load) {
  const Tensor counts = cast(load, DType::f64);
  const Tensor chosen = select(counts, 1, 0), computed = select(counts, 1, 1);  // (layers, experts)
  const auto experts = static_cast<double>(load.shape()[2]);
  const Tensor total = clamp(sum(chosen, {-1}, true), {.min = 1});
  const Tensor share = chosen / total;
  // 0 log 0 is 0. One expert has no entropy to divide.
  const Tensor log_share = log(clamp(share, {.min = std::numeric_limits<double>::min()}));
  const Tensor entropy = sum(share * log_share, {-1}) / -std::log(std::max(experts, 2.0));
  return stack({amax(share, {-1}) * experts, entropy, sum((chosen - computed) / total, {-1})}, -1);
}

std::string routing_statistic_name(int64_t layer, size_t column) {
  return concat("moe/layer_", layer, "/", kRoutingStatistics.at(column));
}

std::string routing_fault(const Tensor& not_finite, std::span<const int64_t> layers) {
  const std::vector<double> tokens = not_finite.values();
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == 0) continue;
    text += concat(text.empty() ? "scores of routers are not finite: " : ", ", "layers.", layers[i],
                   " (", counted(tokens[i], "token"), ")");
  }
  return text;
}

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// What a log says about routers: how evenly tokens were spread over experts, and which router has
// failed. Functions of the loads and sums that routers give, so they may be of any number of
// micro-batches and ranks.
#pragma once

#include "tessera/core/tensor.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::nn {

/// The columns of routing_statistics:
/// - the largest number of tokens that chose an expert, divided by the mean: 1 is even;
/// - the entropy of the tokens' distribution over experts, divided by the logarithm of their
///   number: 1 is even, 0 where one expert has all;
/// - the share of choices that a capacity dropped.
inline constexpr std::array<std::string_view, 3> kRoutingStatistics{"load_max_over_mean",
                                                                    "load_entropy", "dropped"};

/// load (layers, 2, experts) i64, a row of `Routing::load` per layer, summed over the tokens of a
/// step and whole on each rank -> (layers, 3) f64. Zeros where there were no tokens.
[[nodiscard]] TESSERA_API Tensor routing_statistics(const Tensor& load);

/// `moe/layer_3/load_entropy`, for layer 3 of the model and column 1.
[[nodiscard]] TESSERA_API std::string routing_statistic_name(int64_t layer, size_t column);

/// `scores of routers are not finite: layers.3 (17 tokens), layers.5 (40 tokens)`, or nothing where
/// all are finite. not_finite (routers): the last of each router's `Routing::sums`; layers: the
/// number of each one's layer in the model.
[[nodiscard]] TESSERA_API std::string routing_fault(const Tensor& not_finite,
                                                    std::span<const int64_t> layers);

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// Model summary on this rank: total parameters, gradients and optimizer states, and the parameters
// of each layer. Equal layers share one line.
#pragma once

#include "tessera/nn/module.h"

#include <cstdint>
#include <span>
#include <string>

namespace tessera::train {

/// Bytes of this rank's shards of the tensors; undefined ones count as 0.
TESSERA_API int64_t bytes_of(std::span<const Tensor> tensors);
/// The same of the gradients that parameters have now.
TESSERA_API int64_t gradient_bytes(std::span<const Tensor> parameters);
/// Number of elements that require grad, and of all.
struct ParameterCounts {
  int64_t trained = 0, all = 0;
};
TESSERA_API ParameterCounts count_parameters(nn::Module& model);

/// `5,243,392 parameters; memory: parameters 20.0 MiB, gradients 20.0 MiB, optimizer 40.0 MiB, 80.0
/// MiB together`, with `optimizer_bytes` of optimizer states: parameters of the `whole` model,
/// memory of the part that this rank has.
TESSERA_API std::string total_summary(nn::Module& whole, nn::Module& own, int64_t optimizer_bytes);
/// A table: a line per layer with its parameters, their share and bytes, and below it the weights
/// with their shapes, and with their layouts where they are sharded. Equal neighbours of a list
/// (`layers.0` to `layers.5`) are shown once. Then the plan of tensor parallelism, if there is one.
TESSERA_API std::string layer_summary(nn::Module& model);

}  // namespace tessera::train

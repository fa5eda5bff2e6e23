// SPDX-License-Identifier: Apache-2.0
// Tensors of equal names in two models, and conversion to the layout of the other.
#pragma once

#include "tessera/nn/parameters.h"

#include <string_view>
#include <utility>
#include <vector>

namespace tessera::nn::detail {

/// Kinds of tensors that modules list.
enum Kinds : uint8_t {
  parameters = 1,
  persistent_buffers = 2,
  other_buffers = 4,
  buffers = 6,
  all = 7
};

/// The tensors of `kinds` in `to`, each with that of its name in `from`. DataError of `who` names
/// everything that is missing, unknown or of another shape (with `same_dtype`: or dtype).
std::vector<std::pair<Tensor, Tensor>> matched(std::string_view who, Module& to, int kinds,
                                               const std::vector<NamedParameter>& from,
                                               bool same_dtype = false);
/// Gives `to` the bytes and layout of `made`, for all its handles, with a new version, so that a
/// graph that saved the old value detects the change.
void become(const Tensor& to, const Tensor& made);
/// This rank's local tensor of `x` in the layout and on the device of `like`. May alias x.
Tensor part_of(const Tensor& x, const Tensor& like);

}  // namespace tessera::nn::detail

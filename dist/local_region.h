// SPDX-License-Identifier: Apache-2.0
// Runs a function on local tensors inside a graph of distributed tensors, for computations that
// sharding rules cannot express (ring attention, token dispatch). Every input and output declares,
// per mesh axis, a type, which decides the type of its gradient. A replicated value has no default,
// because replicate and invariant are both possible and the wrong one gives wrong gradients without
// an error. The types and their conversions are those of the table in meta-pytorch/spmd_types'
// design.
#pragma once

#include "tessera/dist/layout.h"

#include <functional>
#include <iosfwd>
#include <string_view>
#include <vector>

namespace tessera {

/// Type of a local value over the ranks of one mesh axis.
enum class AxisType : uint8_t {
  replicate,  ///< equal on all ranks, each rank uses it for different work: its gradient is partial
  invariant,  ///< equal on all ranks, and its gradient too
  varying,    ///< a different shard on each rank, and its gradient too
  partial,    ///< the sum over the ranks is the value; its gradient is replicate
};
TESSERA_API std::ostream& operator<<(std::ostream&, AxisType);
/// The type of the gradient.
constexpr AxisType gradient_type(AxisType t) {
  return t == AxisType::replicate ? AxisType::partial
         : t == AxisType::partial ? AxisType::replicate
                                  : t;
}

struct RegionInput {
  Tensor x;                     ///< distributed
  std::vector<AxisType> types;  ///< one per mesh axis, matching x's layout
};
struct RegionOutput {
  Layout layout;
  Shape global;
  std::vector<AxisType> types;
};

/// Runs `fn` on this rank's local tensors (plain, part of the graph) and makes distributed tensors
/// of its results. LayoutError: a type is missing or does not match the layout, or a local shape
/// differs from the chunk rule.
[[nodiscard]] TESSERA_API std::vector<Tensor> local_region(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& fn,
    const std::vector<RegionInput>& inputs, const std::vector<RegionOutput>& outputs);

struct ConvertOptions {
  int dim = 0;         ///< sharded dim of the varying input or output
  int to_dim = -1;     ///< varying to varying: the sharded dim of the output (all_to_all)
  int64_t whole = -1;  ///< global size of the sharded dim; -1: the ranks exchange their sizes
};
/// Inside a region: converts a local value from one type to another over one axis, by the necessary
/// collective, and its gradient back by the table. LayoutError for pairs outside the table
/// (invariant to partial, anything from or to itself but varying).
[[nodiscard]] TESSERA_API Tensor convert(const Tensor& x, Mesh mesh, std::string_view axis,
                                         AxisType from, AxisType to,
                                         const ConvertOptions& options = {});

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Leaving the global view: a function of local parts inside a graph of distributed tensors, for
// what rules cannot say (ring attention, token dispatch). Every value that crosses the border
// states, for each mesh axis, what it is and thereby what its gradient is; there is no default for
// a replicated value, because both answers are possible and the wrong one gives wrong gradients
// without an error. The types and their conversions are those of the closed table in
// meta-pytorch/spmd_types' design.
#pragma once

#include "tessera/dist/layout.h"

#include <functional>
#include <iosfwd>
#include <string_view>
#include <vector>

namespace tessera {

/// What a local value is over the ranks of one mesh axis.
enum class AxisType : uint8_t {
  replicate,  ///< equal on all ranks, used by each for a part of the work: its gradient is partial
  invariant,  ///< equal on all ranks, and so is its gradient
  varying,    ///< another part on each rank; so is its gradient
  partial,    ///< the ranks' values add up to it; its gradient is replicate
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
  std::vector<AxisType> types;  ///< one per mesh axis, fitting x's layout
};
struct RegionOutput {
  Layout layout;
  Shape global;
  std::vector<AxisType> types;
};

/// Runs `fn` on this rank's parts (plain, part of the graph) and makes distributed tensors of what
/// it gives. LayoutError: a type is missing or does not fit the layout, a part has another shape
/// than the chunk rule gives this rank.
[[nodiscard]] TESSERA_API std::vector<Tensor> local_region(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& fn,
    const std::vector<RegionInput>& inputs, const std::vector<RegionOutput>& outputs);

struct ConvertOptions {
  int dim = 0;         ///< of the cut that a varying value starts from, or ends in
  int to_dim = -1;     ///< varying to varying: the dim that is cut afterwards (all_to_all)
  int64_t whole = -1;  ///< size of a cut dim over all ranks; -1: the ranks tell each other
};
/// Inside a region: a local value from one type to another over one axis, with the collective that
/// it takes, and its gradient the other way by the table. LayoutError for pairs outside the table
/// (invariant to partial, anything from or to itself but varying).
[[nodiscard]] TESSERA_API Tensor convert(const Tensor& x, Mesh mesh, std::string_view axis,
                                         AxisType from, AxisType to,
                                         const ConvertOptions& options = {});

}  // namespace tessera

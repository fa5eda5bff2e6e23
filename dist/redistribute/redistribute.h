// SPDX-License-Identifier: Apache-2.0
// redistribute: the same global values under another layout. Its gradient returns to the layout of
// the input by a fixed table: shards get shards back, what was partial gets its whole gradient
// (replicated), what was replicated may keep a partial gradient for whoever reduces it.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/dist/redistribute/plan.h"

#include <initializer_list>

namespace tessera {

/// x lying as `to`, on the same mesh. x itself when it already does; else fresh bytes, never an
/// alias. LayoutError: x is plain, another mesh, a cut dim that x does not have.
[[nodiscard]] TESSERA_API Tensor redistribute(const Tensor& x, Layout to);
[[nodiscard]] TESSERA_API Tensor redistribute(const Tensor& x,
                                              std::initializer_list<Placement> placements);

namespace detail {
/// Plans of the calling rank, kept by pair of layouts.
TESSERA_API const RedistributePlan& redistribute_plan(Layout from, Layout to);
/// Runs the moves on this rank's part; the result may alias `local`. `tag` names the cause in
/// traces.
TESSERA_API Tensor run_redistribute(const RedistributePlan& plan, const Tensor& local,
                                    const Shape& global, Mesh mesh, std::string_view tag);
/// As redistribute, unrecorded; the result may alias x.
TESSERA_API Tensor redistribute_unrecorded(const Tensor& x, Layout to, std::string_view tag);
/// The whole of a distributed tensor on every rank: plain, detached, on bytes of its own.
[[nodiscard]] TESSERA_API Tensor gather_whole(const Tensor& x);
/// A gradient as a distributed tensor: a plain 0-dim constant lies replicated.
TESSERA_API Tensor lying_on(const Tensor& x, Mesh mesh);
}  // namespace detail

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// redistribute: the same global values in another layout. Its gradient returns to the layout of the
// input by a fixed table: a shard gets a shard, a partial input gets a replicated gradient, and a
// replicated input may get a partial gradient, to be reduced later.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/dist/redistribute/plan.h"

#include <initializer_list>

namespace tessera {

/// x in layout `to` on the same mesh. Returns x itself if it already has that layout; otherwise a
/// new tensor, never an alias. LayoutError: x is plain, another mesh, a sharded dim that x does not
/// have.
[[nodiscard]] TESSERA_API Tensor redistribute(const Tensor& x, Layout to);
[[nodiscard]] TESSERA_API Tensor redistribute(const Tensor& x,
                                              std::initializer_list<Placement> placements);

namespace detail {
/// Plans of the calling rank, cached by pair of layouts.
TESSERA_API const RedistributePlan& redistribute_plan(Layout from, Layout to);
/// Runs the moves on this rank's local tensor; the result may alias `local`. `tag` is the tag in
/// traces.
TESSERA_API Tensor run_redistribute(const RedistributePlan& plan, const Tensor& local,
                                    const Shape& global, Mesh mesh, std::string_view tag);
/// As redistribute, unrecorded; the result may alias x.
TESSERA_API Tensor redistribute_unrecorded(const Tensor& x, Layout to, std::string_view tag);
/// The global value of a distributed tensor on every rank: plain, detached, with its own bytes.
[[nodiscard]] TESSERA_API Tensor gather_whole(const Tensor& x);
/// A gradient as a distributed tensor: a plain 0-dim constant becomes replicated.
TESSERA_API Tensor lying_on(const Tensor& x, Mesh mesh);
}  // namespace detail

}  // namespace tessera

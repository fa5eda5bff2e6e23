// SPDX-License-Identifier: Apache-2.0
// Distributed tensors: making them, reading them, leaving the global view for a while. A
// distributed tensor is a Tensor that has a layout; ops, autograd and modules take it like any
// other. It has no dtype of its own: dtype and device are those of the part that each rank holds.
#pragma once

#include "tessera/core/rng.h"
#include "tessera/dist/layout.h"
#include "tessera/dist/redistribute/redistribute.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// The layout of a distributed tensor; LayoutError on a plain one. This and all below: UsageError
/// on a tensor or layout whose world has ended.
[[nodiscard]] TESSERA_API Layout layout_of(const Tensor& x);

/// Cuts a whole tensor that every rank holds alike; no rank sends. The result is a leaf with bytes
/// of its own. `source` >= 0: ranks take the values of that position of the mesh (broadcast), so
/// that only its copy counts. LayoutError: a partial layout, a dim that is not there.
[[nodiscard]] TESSERA_API Tensor distribute(const Tensor& whole, Layout layout, int source = -1);

/// The tensor of which this rank holds `local`; it shares the bytes. Where `global` is left out, a
/// cut dim is as long as its parts together. Collective: the parts are checked against the chunk
/// rule, layouts, shapes and dtypes against the other ranks'. LayoutError says which rank's part
/// does not fit. Nothing is recorded: inside a graph use local_region.
[[nodiscard]] TESSERA_API Tensor from_local(const Tensor& local, Layout layout);
[[nodiscard]] TESSERA_API Tensor from_local(const Tensor& local, Layout layout,
                                            const Shape& global);

/// This rank's part, a detached alias: writing it writes x. LayoutError on a plain tensor.
[[nodiscard]] TESSERA_API Tensor local(const Tensor& x);
/// The whole, plain, on every rank, detached, on bytes of its own. Collective where x is cut or
/// partial.
[[nodiscard]] TESSERA_API Tensor full_tensor(const Tensor& x);

/// Fills that lie as `layout`; each rank makes its own part, with the bits that the whole would
/// have.
[[nodiscard]] TESSERA_API Tensor full(const Shape& shape, double value, DType dtype, Layout layout);
[[nodiscard]] TESSERA_API Tensor normal(const Shape& shape, RngKey key, double mean, double std,
                                        DType dtype, Layout layout);

}  // namespace tessera

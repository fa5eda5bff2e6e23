// SPDX-License-Identifier: Apache-2.0
// Distributed tensors: creating and reading them. A distributed tensor is a Tensor with a layout;
// ops, autograd and modules accept it like any other tensor. It stores no dtype: dtype and device
// are those of the local tensor of each rank.
#pragma once

#include "tessera/core/rng.h"
#include "tessera/core/scalar.h"
#include "tessera/dist/layout.h"
#include "tessera/dist/redistribute/redistribute.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// The layout of a distributed tensor; LayoutError on a plain one. This and all below: UsageError
/// on a tensor or layout whose world has ended.
[[nodiscard]] TESSERA_API Layout layout_of(const Tensor& x);

/// Shards a tensor that is equal on all ranks, without communication. The result is a leaf with its
/// own bytes. `source` >= 0: broadcasts the values of the rank at that position of the mesh first.
/// LayoutError: a partial layout, a dim that does not exist.
[[nodiscard]] TESSERA_API Tensor distribute(const Tensor& whole, Layout layout, int source = -1);

/// The distributed tensor whose shard on this rank is `local`; it shares the bytes. Without
/// `global`, the size of a sharded dim is the sum over the ranks. Collective: shards are checked
/// against the chunk rule, and layouts, shapes and dtypes against the other ranks. LayoutError
/// names the rank whose shard is wrong. Not recorded: inside a graph use local_region.
[[nodiscard]] TESSERA_API Tensor from_local(const Tensor& local, Layout layout);
[[nodiscard]] TESSERA_API Tensor from_local(const Tensor& local, Layout layout,
                                            const Shape& global);

/// As from_local, for a part whose shape follows from the layout: checked against the layout on
/// this rank alone, without communication. LayoutError: another shape.
[[nodiscard]] TESSERA_API Tensor wrap_local(const Tensor& local, Layout layout,
                                            const Shape& global);

/// This rank's local tensor, a detached alias: writing it writes x. LayoutError on a plain tensor.
[[nodiscard]] TESSERA_API Tensor local(const Tensor& x);
/// The global tensor on every rank: plain, detached, with its own bytes. Collective if x is sharded
/// or partial.
[[nodiscard]] TESSERA_API Tensor full_tensor(const Tensor& x);

/// Fills with layout `layout`; each rank fills its own shard, with the bits of the unsharded
/// tensor.
[[nodiscard]] TESSERA_API Tensor full(const Shape& shape, Scalar value, DType dtype, Layout layout);
[[nodiscard]] TESSERA_API Tensor normal(const Shape& shape, RngKey key, double mean, double std,
                                        DType dtype, Layout layout);

}  // namespace tessera

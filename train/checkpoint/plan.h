// SPDX-License-Identifier: Apache-2.0
// Who writes what of a checkpoint: a pure function of how tensors lie on ranks, so that it can be
// computed for any world on one machine. Ranks that hold the same elements share the writing: the
// boxes that they hold alike are laid one behind the other, and each of them takes an equal run of
// the bytes. So each element has one writer, and the work is even to a row per group of ranks.
#pragma once

#include "tessera/dist/layout.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/checkpoint/box.h"

#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// The most bytes of a chunk, unless it is one element: what a reader reads and checks at once.
inline constexpr int64_t kChunkBytes = int64_t{4} << 20;

/// The tensors of one rank and how they lie on ranks, as values: independent of any World.
struct Holdings {
  struct Mesh {
    std::vector<int> sizes, ranks;  ///< of its axes; world ranks, row-major over them
    bool operator==(const Mesh&) const = default;
  };
  struct Held {
    std::string part, name;  ///< part: as in the manifest
    DType dtype = DType::f32;
    Shape shape = {};  ///< global
    size_t mesh = 0;   ///< of `meshes`
    AxisStates states = {};
  };
  std::vector<Mesh> meshes;
  std::vector<Held> tensors;

  /// Adds tensors of a part. A plain one counts as equal on all ranks of the world. LayoutError: a
  /// partial tensor, whose value no rank holds. UsageError: two tensors of one name.
  void add(const std::string& part, const std::vector<nn::NamedParameter>& tensors, int world);
  /// As one line of text, for other ranks, and back.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static Holdings parse(const std::string& text);
};

struct PlannedChunk {
  int writer = 0;
  Box box;
};
struct PlannedTensor {
  std::string part, name;
  DType dtype = DType::f32;
  Shape shape = {};
  std::vector<PlannedChunk> chunks = {};  ///< cover the tensor once
};

/// The chunks of a checkpoint of `world` ranks. `of_ranks`: the different holdings among the ranks,
/// in the order of their first ranks. Ranks that hold a tensor on different meshes share its
/// writing where their boxes are equal. DataError: ranks disagree on a tensor's dtype, shape or
/// part.
[[nodiscard]] TESSERA_API std::vector<PlannedTensor> plan_chunks(std::span<const Holdings> of_ranks,
                                                                 int world);

}  // namespace tessera::train

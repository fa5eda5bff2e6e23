// SPDX-License-Identifier: Apache-2.0
// Mesh: named axes over an array of ranks. A slice is the part that holds the calling rank; slices,
// flattens, unflattens and re-presentations of the same ranks share communicators. Meshes are
// interned per rank: equal meshes are one object, so equality is a pointer compare. Size 1 axes are
// axes like others.
#pragma once

#include "tessera/dist/process_group/process_group.h"

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr int kMaxAxes = 6;

struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

class TESSERA_API Mesh {
 public:
  /// All ranks of the world, row-major: the last axis varies fastest. Collective over the world:
  /// verified to agree on all ranks (LayoutError: sizes do not multiply to the world's; a name used
  /// twice, CollectiveMismatch: ranks disagree, with who differs).
  static const Mesh* make(std::vector<MeshAxis> axes);
  /// Any array of world ranks, each at most once; called by the ranks in it.
  static const Mesh* make(std::vector<MeshAxis> axes, std::vector<int> ranks);

  [[nodiscard]] int axes() const { return static_cast<int>(axes_.size()); }
  [[nodiscard]] const MeshAxis& axis(int i) const { return axes_[static_cast<size_t>(i)]; }
  [[nodiscard]] int size(int axis) const { return axes_[static_cast<size_t>(axis)].size; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }  ///< of all axes
  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }
  /// Index of the axis of this name; LayoutError that lists the names there are.
  [[nodiscard]] int index(std::string_view name) const;
  /// Whether there is an axis of this name.
  [[nodiscard]] bool has(std::string_view name) const;
  /// This rank's position on an axis.
  [[nodiscard]] int coordinate(int axis) const { return coordinates_[static_cast<size_t>(axis)]; }
  [[nodiscard]] std::span<const int> coordinates() const { return coordinates_; }

  /// Where the rank `ranks()[position]` stands on an axis.
  [[nodiscard]] int coordinate_at(int position, int axis) const;

  /// The ranks that differ from this one only on `axes`, ordered by their coordinates on those
  /// axes, the first listed axis slowest. Made on first use (by all its members), then kept; one
  /// group for one ordered list of ranks, whichever mesh asks. LayoutError: an axis that is not
  /// there or is listed twice.
  [[nodiscard]] ProcessGroup& group(std::span<const int> axes) const;
  [[nodiscard]] ProcessGroup& group(int axis) const {
    return group(std::span<const int>(&axis, 1));
  }

  /// The sub-mesh of the named axes, in that order, that holds this rank. A name may be one that
  /// flatten gave to several axes. LayoutError: a name that is not there, an axis used twice.
  [[nodiscard]] const Mesh* slice(std::initializer_list<std::string_view> names) const;
  /// The named axes (neighbours or not) merged into one named `name`, at the place of the first
  /// listed, which is the slowest. From then on slices of this mesh know the name too.
  /// LayoutError: a name that is an axis already or names other axes.
  [[nodiscard]] const Mesh* flatten(std::initializer_list<std::string_view> names,
                                    std::string name) const;
  /// One axis cut into several; sizes must multiply to its size.
  [[nodiscard]] const Mesh* unflatten(std::string_view name, std::vector<MeshAxis> into) const;
  /// Other axes over exactly the same ranks in the same order: dense (pp, dp, cp, tp) against
  /// sparse (pp, edp, ep). Sizes multiply to this mesh's, and an axis that keeps its name keeps its
  /// ranks.
  [[nodiscard]] const Mesh* represent(std::vector<MeshAxis> axes) const;

  /// `mesh(dp=2, tp=4)`; the ranks follow where they are not 0, 1, 2, ...
  [[nodiscard]] std::string text() const;

 private:
  friend struct MeshTable;
  Mesh() = default;
  [[nodiscard]] std::vector<int> resolve(std::initializer_list<std::string_view> names) const;
  [[nodiscard]] const Mesh* merged(const std::vector<std::vector<int>>& groups,
                                   std::vector<std::string> names) const;
  std::vector<MeshAxis> axes_;
  std::vector<int> ranks_;        // row-major over axes
  std::vector<int> coordinates_;  // of this rank
  // Names that flatten gave, and groups by listed axes; both only ever grow.
  mutable std::vector<std::pair<std::string, std::vector<int>>> flattened_;
  mutable std::vector<std::pair<uint32_t, ProcessGroup*>> groups_;
};

}  // namespace tessera

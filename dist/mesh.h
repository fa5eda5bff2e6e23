// SPDX-License-Identifier: Apache-2.0
// Mesh: named axes over an array of ranks, used by value. A slice is the sub-mesh with the calling
// rank; slices, flattened, unflattened and reshaped meshes of the same ranks share communicators.
// Meshes are interned per rank: equal meshes are one object, so equality is a pointer compare. Axes
// of size 1 are not special. Ranks are those of the mesh's World, which may be a part of another.
#pragma once

#include "tessera/dist/handle.h"
#include "tessera/dist/process_group/process_group.h"

#include <functional>
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

/// Several axes under one name, the first the slowest: `{"dp", {"dp_replicate", "dp_shard"}}`.
struct MeshProduct {
  std::string name;
  std::vector<std::string> axes;
};

namespace detail {
struct MeshGroup {
  uint32_t axes = 0;    // four bits for each listed axis, counted from 1
  std::string channel;  // of a second communicator
  ProcessGroup* group = nullptr;
};
struct MeshData {
  std::vector<MeshAxis> axes;
  std::vector<int> ranks;        // row-major over axes
  size_t position = 0;           // of this rank among them
  std::vector<int> coordinates;  // of this rank
  // Names made by flatten, and groups by listed axes; both only grow.
  mutable std::vector<std::pair<std::string, std::vector<int>>> flattened;
  mutable std::vector<MeshGroup> groups;
};
}  // namespace detail

/// A handle of a mesh, as cheap to copy as a pointer; empty by default. Using it is a UsageError if
/// it is empty or its world has ended.
class TESSERA_API Mesh {
 public:
  Mesh() = default;
  /// All ranks of the world, row-major: the last axis varies fastest. Collective over the world,
  /// which checks that all ranks agree and makes the groups of each axis of size above 1, in mesh
  /// order, then those of the products, which are named as by `flatten`. LayoutError: sizes do not
  /// multiply to the world's; a name used twice; a product of unknown axes. CollectiveMismatch:
  /// ranks disagree; it names them.
  static Mesh make(std::vector<MeshAxis> axes, const std::vector<MeshProduct>& products = {});
  /// Any array of world ranks, each at most once; called by the ranks in it.
  static Mesh make(std::vector<MeshAxis> axes, std::vector<int> ranks,
                   const std::vector<MeshProduct>& products = {});

  explicit operator bool() const { return handle_.address() != nullptr; }
  bool operator==(const Mesh&) const = default;

  [[nodiscard]] int axes() const { return static_cast<int>(data().axes.size()); }
  [[nodiscard]] const MeshAxis& axis(int i) const { return data().axes[static_cast<size_t>(i)]; }
  [[nodiscard]] int size(int axis) const { return this->axis(axis).size; }
  [[nodiscard]] int size(std::string_view axis) const { return size(index(axis)); }
  [[nodiscard]] int size() const { return static_cast<int>(ranks().size()); }  ///< of all axes
  [[nodiscard]] std::span<const int> ranks() const { return data().ranks; }    ///< of the World
  /// Index of the axis of this name; LayoutError, with the list of names, if there is none.
  [[nodiscard]] int index(std::string_view name) const;
  /// Whether there is an axis of this name.
  [[nodiscard]] bool has(std::string_view name) const;
  /// This rank's position on an axis.
  [[nodiscard]] int coordinate(int axis) const { return coordinates()[static_cast<size_t>(axis)]; }
  [[nodiscard]] std::span<const int> coordinates() const { return data().coordinates; }

  /// Coordinate of the rank `ranks()[position]` on an axis.
  [[nodiscard]] int coordinate_at(int position, int axis) const;

  /// The ranks that differ from this one only on `axes`, ordered by their coordinates on those
  /// axes, the first listed axis slowest. One that `make` has not made is created on first use (by
  /// all its members, so in the order of the program) and cached; meshes share the group of an
  /// ordered list of ranks. A `channel` names a second communicator over the same ranks, whose
  /// operations are not queued behind the first's (gathers beside reductions). LayoutError: an axis
  /// that does not exist or is listed twice.
  [[nodiscard]] ProcessGroup& group(std::span<const int> axes, std::string_view channel = {}) const;
  [[nodiscard]] ProcessGroup& group(int axis, std::string_view channel = {}) const {
    return group(std::span<const int>(&axis, 1), channel);
  }

  /// Indices of the axes that a name stands for: one, or those that flatten gave it to.
  /// LayoutError: an unknown name.
  [[nodiscard]] std::vector<int> axes_named(std::string_view name) const {
    return resolve({&name, 1});
  }
  /// The sub-mesh of the named axes, in that order, with this rank. A name may be one that flatten
  /// gave to several axes. LayoutError: an unknown name, an axis used twice.
  [[nodiscard]] Mesh slice(std::span<const std::string_view> names) const;
  [[nodiscard]] Mesh slice(std::initializer_list<std::string_view> names) const {
    return slice({names.begin(), names.size()});
  }
  /// `mesh["tp"]`: the slice of one name.
  [[nodiscard]] Mesh operator[](std::string_view name) const { return slice({name}); }
  /// Merges the named axes (adjacent or not) into one named `name`, at the position of the first
  /// listed, which is the slowest. Later slices of this mesh may use the name too. LayoutError: the
  /// name is already an axis or names other axes.
  [[nodiscard]] Mesh flatten(std::initializer_list<std::string_view> names, std::string name) const;
  /// Splits one axis into several; sizes must multiply to its size.
  [[nodiscard]] Mesh unflatten(std::string_view name, std::vector<MeshAxis> into) const;
  /// Other axes over exactly the same ranks in the same order: dense (pp, dp, cp, tp) against
  /// sparse (pp, edp, ep). Sizes multiply to this mesh's, and an axis that keeps its name keeps its
  /// ranks.
  [[nodiscard]] Mesh represent(std::vector<MeshAxis> axes) const;

  /// `mesh(dp=2, tp=4)`; followed by the ranks if they are not 0, 1, 2, ...
  [[nodiscard]] std::string text() const;

 private:
  friend struct MeshTable;
  friend struct LayoutTable;
  friend struct std::hash<Mesh>;
  Mesh(const detail::MeshData* data, uint32_t owner) : handle_(data, owner) {}
  [[nodiscard]] const detail::MeshData& data() const { return handle_.get("mesh"); }
  [[nodiscard]] std::vector<int> resolve(std::span<const std::string_view> names) const;
  [[nodiscard]] Mesh flatten_axes(std::span<const std::string_view> names, std::string name) const;
  void connect(const std::vector<MeshProduct>& products) const;
  [[nodiscard]] Mesh merged(const std::vector<std::vector<int>>& groups,
                            std::vector<std::string> names) const;
  detail::Handle<detail::MeshData> handle_;
};
/// Its text.
TESSERA_API std::ostream& operator<<(std::ostream&, Mesh);

}  // namespace tessera

template <> struct std::hash<tessera::Mesh> {
  size_t operator()(tessera::Mesh mesh) const noexcept {
    return std::hash<const void*>{}(mesh.handle_.address());
  }
};

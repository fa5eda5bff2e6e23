// SPDX-License-Identifier: Apache-2.0
// Layout: the placement of a tensor on a mesh. For each tensor dim the ordered list of mesh axes
// that shard it, and for each other axis Replicate or Partial(op). The order replaces strided
// shards: a dim sharded over (tp, dp) is split over tp first, each shard then over dp. Immutable,
// used by value and interned per rank, so equality is a pointer compare. It stores no dtype and no
// shape: the tensor does. A tensor stores its layout's number, which is never reused: a tensor that
// outlived its world finds no layout.
#pragma once

#include "tessera/core/op_types.h"
#include "tessera/dist/mesh.h"

#include <array>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The placement of a tensor on one mesh axis; users write one per axis, in mesh order:
/// `{Shard(0), Replicate()}`.
struct Placement {
  enum class Kind : uint8_t { replicate, shard, partial };
  Kind kind = Kind::replicate;
  ReduceOp op = ReduceOp::sum;  ///< of a partial
  int16_t dim = 0;              ///< of a shard
  bool operator==(const Placement&) const = default;
};
constexpr Placement Replicate() { return {}; }
constexpr Placement Shard(int dim) {
  return {Placement::Kind::shard, ReduceOp::sum, static_cast<int16_t>(dim)};
}
constexpr Placement Partial(ReduceOp op = ReduceOp::sum) {
  return {Placement::Kind::partial, op, 0};
}
TESSERA_API std::ostream& operator<<(std::ostream&, const Placement&);

/// The placement on the axis of this name.
struct NamedPlacement {
  std::string_view axis;
  Placement placement;
};

/// State of one axis in a layout: a placement, and for a shard its index in the dim's list.
struct AxisState {
  Placement placement;
  int8_t position = 0;
  bool operator==(const AxisState&) const = default;
};
using AxisStates = std::array<AxisState, kMaxAxes>;  // beyond the mesh's axes: replicate
using AxisList = SmallVector<int, kMaxAxes>;

/// The axes that shard `dim`, outermost first.
TESSERA_API AxisList axes_of(const AxisStates& states, int dim);

/// The chunk rule: chunk `index` of `parts` has ceil(size / parts) elements, the last ones fewer or
/// none. `global` of the result is that of `whole`.
constexpr Piece::Range chunk(const Piece::Range& whole, int parts, int index) {
  const int64_t step = (whole.size + parts - 1) / parts;
  const int64_t begin = step * index < whole.size ? step * index : whole.size;
  const int64_t size = whole.size - begin < step ? whole.size - begin : step;
  return {whole.begin + begin, size, whole.global};
}

/// The range of `dim` that the member at `coordinates` holds under `states`.
TESSERA_API Piece::Range range_of(Mesh mesh, const AxisStates& states,
                                  std::span<const int> coordinates, const Shape& global, int dim);
/// Whether the pending reductions may run in any order: only sums and averages, or only one of max
/// and min.
TESSERA_API bool reductions_commute(const AxisStates& states);

namespace detail {
struct LayoutData {
  Mesh mesh;
  AxisStates states;
  LayoutId id = LayoutId::none;
  bool has_partial = false, replicated = true;
  int last_dim = -1;
};
}  // namespace detail

/// A handle of a layout, as cheap to copy as a pointer; empty by default. Using it is a UsageError
/// if it is empty or its world has ended.
class TESSERA_API Layout {
 public:
  Layout() = default;
  /// One placement per axis of the mesh; axes that shard the same dim do so in mesh order.
  /// LayoutError: another number of placements, a negative dim, more axes than the mesh has.
  static Layout of(Mesh mesh, std::span<const Placement> placements);
  static Layout of(Mesh mesh, std::initializer_list<Placement> placements) {
    return of(mesh, std::span<const Placement>(placements.begin(), placements.size()));
  }
  /// The placements on the named axes, `{{"dp_shard", Shard(0)}}`; the others replicate.
  /// LayoutError: an unknown name, an axis named twice.
  static Layout of(Mesh mesh, std::initializer_list<NamedPlacement> placements);
  /// As `of`, with the order in which axes shard a dim: each list names axes of one dim, outermost
  /// first (`{{"tp", "dp"}}`); dims without a list use mesh order.
  static Layout ordered(Mesh mesh, std::span<const Placement> placements,
                        const std::vector<std::vector<std::string>>& orders);
  static Layout replicated(Mesh mesh);
  /// For engines: the interned layout of these states.
  static Layout intern(Mesh mesh, const AxisStates& states);

  explicit operator bool() const { return handle_.address() != nullptr; }
  bool operator==(const Layout&) const = default;

  [[nodiscard]] Mesh mesh() const { return data().mesh; }
  [[nodiscard]] const AxisStates& states() const { return data().states; }
  /// The number that a tensor of this layout stores.
  [[nodiscard]] LayoutId id() const { return data().id; }
  [[nodiscard]] const Placement& placement(int axis) const {
    return states()[static_cast<size_t>(axis)].placement;
  }
  [[nodiscard]] const Placement& placement(std::string_view axis) const {
    return placement(mesh().index(axis));
  }
  [[nodiscard]] std::vector<Placement> placements() const;
  /// The same layout with partial axes replicated.
  [[nodiscard]] Layout without_partials() const;
  /// The same layout with another placement on one axis; a shard goes last in its dim's list.
  [[nodiscard]] Layout with(std::string_view axis, Placement placement) const;
  [[nodiscard]] AxisList axes_of(int dim) const { return tessera::axes_of(states(), dim); }
  [[nodiscard]] bool has_partial() const { return data().has_partial; }
  [[nodiscard]] bool is_replicated() const { return data().replicated; }
  /// Highest sharded dim, -1 for none.
  [[nodiscard]] int last_sharded_dim() const { return data().last_dim; }

  /// The range of `dim` that this rank holds, of a tensor of this global shape.
  [[nodiscard]] Piece::Range range(const Shape& global, int dim) const;
  [[nodiscard]] Shape local_shape(const Shape& global) const;
  /// The same for any member, by its coordinates on the mesh.
  [[nodiscard]] Piece::Range range_at(std::span<const int> coordinates, const Shape& global,
                                      int dim) const;

  /// `mesh(dp=2, tp=4) {Shard(0), Replicate()}`, with the order if it is not the mesh's.
  [[nodiscard]] std::string text() const;
  /// Only the placements.
  [[nodiscard]] std::string placements_text() const;

 private:
  friend struct LayoutTable;
  friend struct std::hash<Layout>;
  Layout(const detail::LayoutData* data, uint32_t owner) : handle_(data, owner) {}
  [[nodiscard]] const detail::LayoutData& data() const { return handle_.get("layout"); }
  detail::Handle<detail::LayoutData> handle_;
};
/// Its text.
TESSERA_API std::ostream& operator<<(std::ostream&, Layout);

/// LayoutError unless a tensor of this global shape can have this layout: each sharded dim exists.
TESSERA_API void check_fits(Layout layout, const Shape& global, std::string_view where);

/// As core's, for a tensor of layout `layout`.
inline Tensor make_distributed(const Tensor& local, const Shape& global, Layout layout) {
  return make_distributed(local, global, layout.id());
}

namespace detail {
/// The layout of x, empty if x is plain. UsageError that names x if its world has ended.
TESSERA_API Layout layout_of(const Tensor& x, std::string_view who);
/// The same, empty too if its world has ended.
TESSERA_API Layout living_layout_of(const Tensor& x);
/// That error alone.
TESSERA_API void check_lives(const Tensor& x, std::string_view who);
}  // namespace detail

}  // namespace tessera

template <> struct std::hash<tessera::Layout> {
  size_t operator()(tessera::Layout layout) const noexcept {
    return std::hash<const void*>{}(layout.handle_.address());
  }
};

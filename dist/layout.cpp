// SPDX-License-Identifier: Apache-2.0
// Building and interning of layouts, and the offset of a rank's shard.
#include "tessera/dist/layout.h"

#include "tessera/core/context.h"
#include "tessera/core/message.h"

#include <algorithm>
#include <cstring>
#include <ostream>
#include <unordered_map>

namespace tessera {

std::ostream& operator<<(std::ostream& os, const Placement& p) {
  switch (p.kind) {
    case Placement::Kind::replicate: return os << "Replicate()";
    case Placement::Kind::shard: return os << "Shard(" << int{p.dim} << ')';
    case Placement::Kind::partial:
      os << "Partial(";
      if (p.op != ReduceOp::sum) os << p.op;
      return os << ')';
  }
  return os;
}

AxisList axes_of(const AxisStates& states, int dim) {
  AxisList list;
  for (int position = 0; position < kMaxAxes; ++position) {
    bool found = false;
    for (int a = 0; a < kMaxAxes; ++a) {
      const AxisState& s = states[static_cast<size_t>(a)];
      if (s.placement.kind != Placement::Kind::shard || s.placement.dim != dim ||
          s.position != position)
        continue;
      list.push_back(a);
      found = true;
    }
    if (!found) break;
  }
  return list;
}

namespace {

struct Key {
  Mesh mesh;
  AxisStates states;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    size_t h = std::hash<Mesh>{}(key.mesh);
    for (const AxisState& s : key.states) {
      const auto bits =
          static_cast<size_t>(s.placement.kind) | static_cast<size_t>(s.placement.op) << 4 |
          static_cast<size_t>(s.placement.dim) << 8 | static_cast<size_t>(s.position) << 16;
      h = (h ^ bits) * 0x9E3779B97F4A7C15ull;
      h ^= h >> 29;
    }
    return h;
  }
};

}  // namespace

/// A rank's layouts. They live as long as its Context; a layout's id is that Context's number and
/// its place here.
struct LayoutTable {
  std::unordered_map<Key, std::unique_ptr<detail::LayoutData>, KeyHash> layouts;
  std::vector<const detail::LayoutData*> made;

  static Layout intern(Mesh mesh, const AxisStates& states) {
    (void)mesh.data();  // it lives
    const uint32_t owner = mesh.handle_.owner();
    auto& table = Context::find(owner)->state<LayoutTable>();
    auto& slot = table.layouts[Key{mesh, states}];
    if (!slot) {
      table.made.push_back((slot = std::make_unique<detail::LayoutData>()).get());
      slot->mesh = mesh;
      slot->states = states;
      slot->id = static_cast<LayoutId>(uint64_t{owner} << 32 | (table.made.size() - 1));
      for (const AxisState& s : states) {
        slot->has_partial |= s.placement.kind == Placement::Kind::partial;
        slot->replicated &= s.placement.kind == Placement::Kind::replicate;
        if (s.placement.kind == Placement::Kind::shard)
          slot->last_dim = std::max(slot->last_dim, int{s.placement.dim});
      }
    }
    return {slot.get(), owner};
  }

  static Layout find(const Tensor& x, std::string_view who) {
    if (!x.is_distributed()) return {};
    Context& owner = owner_of(x, who);
    const auto place = static_cast<uint32_t>(x.impl().layout);
    return {owner.state<LayoutTable>().made[place], owner.number};
  }
  static Context* owner_or_null(const Tensor& x) {
    return Context::find(static_cast<uint64_t>(x.impl().layout) >> 32);
  }
  static Context& owner_of(const Tensor& x, std::string_view who) {
    Context* owner = owner_or_null(x);
    if (!owner) detail::fail_ended(who, x.meta());
    return *owner;
  }
};

Layout detail::layout_of(const Tensor& x, std::string_view who) {
  return LayoutTable::find(x, who);
}

Layout detail::living_layout_of(const Tensor& x) {
  const bool lives = x.is_distributed() && LayoutTable::owner_or_null(x);
  return lives ? LayoutTable::find(x, {}) : Layout();
}

void detail::check_lives(const Tensor& x, std::string_view who) {
  if (x.is_distributed()) (void)LayoutTable::owner_of(x, who);
}

Layout Layout::intern(Mesh mesh, const AxisStates& states) {
  return LayoutTable::intern(mesh, states);
}

bool reductions_commute(const AxisStates& states) {
  const auto family = [](ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; };
  const Placement* pending = nullptr;
  for (const AxisState& s : states) {
    if (s.placement.kind != Placement::Kind::partial) continue;
    if (pending && family(pending->op) != family(s.placement.op)) return false;
    pending = &s.placement;
  }
  return true;
}

Layout Layout::of(Mesh mesh, std::span<const Placement> placements) {
  return ordered(mesh, placements, {});
}

Layout Layout::of(Mesh mesh, std::initializer_list<NamedPlacement> placements) {
  std::vector<Placement> all(static_cast<size_t>(mesh.axes()));
  std::vector<bool> named(all.size());
  for (const NamedPlacement& p : placements) {
    const auto axis = static_cast<size_t>(mesh.index(p.axis));
    if (named[axis])
      fail<LayoutError>("layout", "axis \"", p.axis, "\" is named twice; give it one placement");
    named[axis] = true;
    all[axis] = p.placement;
  }
  return of(mesh, all);
}

Layout Layout::ordered(Mesh mesh, std::span<const Placement> placements,
                       const std::vector<std::vector<std::string>>& orders) {
  if (static_cast<int>(placements.size()) != mesh.axes()) {
    fail<LayoutError>("layout", "given ", placements.size(), " placements for ", mesh.text(),
                      ", expected one per axis, ", mesh.axes());
  }
  AxisStates states{};
  std::array<int8_t, kMaxRank> used{};
  const auto place = [&](int axis) {
    const Placement& p = placements[static_cast<size_t>(axis)];
    AxisState& s = states[static_cast<size_t>(axis)];
    s.placement = p;
    if (p.kind == Placement::Kind::replicate) s.placement = Replicate();
    if (p.kind == Placement::Kind::partial) s.placement.dim = 0;
    if (p.kind != Placement::Kind::shard) return;
    if (p.dim < 0 || p.dim >= kMaxRank) {
      fail<LayoutError>("layout", "axis \"", mesh.axis(axis).name, "\" cuts dim ", int{p.dim},
                        ": dims count from 0 and are below ", kMaxRank);
    }
    s.placement.op = ReduceOp::sum;
    s.position = used[static_cast<size_t>(p.dim)]++;
  };
  std::array<bool, kMaxAxes> placed{};
  for (const auto& order : orders) {
    for (const std::string& name : order) {
      const int axis = mesh.index(name);
      const Placement& p = placements[static_cast<size_t>(axis)];
      const Placement& first = placements[static_cast<size_t>(mesh.index(order[0]))];
      if (placed[static_cast<size_t>(axis)])
        fail<LayoutError>("layout", "axis \"", name, "\" occurs twice in the order of axes");
      if (p.kind != Placement::Kind::shard || !(p == first)) {
        fail<LayoutError>("layout", "axis \"", name, "\" is ", p,
                          ", but is listed for a dim sharded by ", first, " on \"", order[0],
                          "\": list axes that shard the same dim");
      }
      placed[static_cast<size_t>(axis)] = true;
      place(axis);
    }
  }
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    if (!placed[static_cast<size_t>(axis)]) place(axis);
  }
  if (!reductions_commute(states)) {
    fail<LayoutError>("layout", "two reductions are pending that do not commute: ",
                      intern(mesh, states).placements_text(), "; reduce one first");
  }
  return intern(mesh, states);
}

Layout Layout::replicated(Mesh mesh) { return intern(mesh, AxisStates{}); }

std::vector<Placement> Layout::placements() const {
  std::vector<Placement> all;
  for (int a = 0; a < mesh().axes(); ++a) all.push_back(placement(a));
  return all;
}

Layout Layout::with(std::string_view axis, Placement placement) const {
  const auto at = static_cast<size_t>(mesh().index(axis));
  if (placement == this->placement(static_cast<int>(at))) return *this;
  // The other axes keep their order; this one becomes the last of its dim.
  std::vector<Placement> all = placements();
  all[at] = placement;
  std::vector<std::vector<std::string>> orders;
  for (int d = 0; d <= last_sharded_dim(); ++d) {
    std::vector<std::string> order;
    for (int a : axes_of(d)) {
      if (a != static_cast<int>(at)) order.push_back(mesh().axis(a).name);
    }
    if (!order.empty()) orders.push_back(std::move(order));
  }
  return ordered(mesh(), all, orders);
}

Layout Layout::without_partials() const {
  AxisStates states = this->states();
  for (AxisState& s : states) {
    if (s.placement.kind == Placement::Kind::partial) s = {};
  }
  return intern(mesh(), states);
}

Piece::Range range_of(Mesh mesh, const AxisStates& states, std::span<const int> coordinates,
                      const Shape& global, int dim) {
  Piece::Range r{0, global[dim], global[dim]};
  for (int a : axes_of(states, dim))
    r = chunk(r, mesh.size(a), coordinates[static_cast<size_t>(a)]);
  return r;
}

Piece::Range Layout::range(const Shape& global, int dim) const {
  return range_at(mesh().coordinates(), global, dim);
}

Piece::Range Layout::range_at(std::span<const int> coordinates, const Shape& global,
                              int dim) const {
  return range_of(mesh(), states(), coordinates, global, dim);
}

Shape Layout::local_shape(const Shape& global) const {
  Shape local = global;
  for (int d = 0; d <= last_sharded_dim() && d < local.rank(); ++d)
    local[d] = range(global, d).size;
  return local;
}

std::string Layout::placements_text() const {
  std::string text = "{";
  for (int a = 0; a < mesh().axes(); ++a)
    text += concat(a ? ", " : "", mesh().axis(a).name, ": ", placement(a));
  text += "}";
  for (int d = 0; d <= last_sharded_dim(); ++d) {
    const AxisList axes = axes_of(d);
    if (std::is_sorted(axes.begin(), axes.end())) continue;
    text += concat(" dim ", d, " by ");
    for (size_t i = 0; i < axes.size(); ++i)
      text += (i ? ", then " : "") + mesh().axis(axes[i]).name;
  }
  return text;
}

std::string Layout::text() const { return mesh().text() + " " + placements_text(); }

std::ostream& operator<<(std::ostream& os, Layout layout) { return os << layout.text(); }

void check_fits(Layout layout, const Shape& global, std::string_view where) {
  if (layout.last_sharded_dim() < global.rank()) return;
  const int dim = layout.last_sharded_dim();
  fail<LayoutError>(where, layout.placements_text(), " cuts dim ", dim, ", but the tensor ", global,
                    " has ", counted(global.rank(), "dim"));
}

}  // namespace tessera

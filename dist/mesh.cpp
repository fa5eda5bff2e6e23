// SPDX-License-Identifier: Apache-2.0
// Meshes store explicit lists of ranks, so slices, flattened non-adjacent axes and arbitrary rank
// arrays are one case, and axes of size 1 are never ambiguous. The table of a rank owns its meshes
// and groups; a group is found by its exact list of ranks.
#include "tessera/dist/mesh.h"

#include "tessera/core/context.h"
#include "tessera/core/message.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

namespace tessera {
namespace {

// As ranks of the world itself: its group's own list has those of an enclosing world.
std::vector<int> all_ranks(const ProcessGroup& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

/// All meshes and groups of one rank.
struct MeshTable {
  uint32_t owner = 0;             // the number of the rank's Context
  ProcessGroup* world = nullptr;  // its group
  std::vector<std::unique_ptr<detail::MeshData>> meshes;
  std::map<std::pair<std::vector<int>, std::string>, Ref<ProcessGroup>> groups;  // and channel

  // The table of the calling rank.
  static MeshTable& current() {
    auto& table = Context::current().state<MeshTable>();
    table.world = &current_group();
    table.owner = Context::current().number;
    return table;
  }
  // The table of the mesh's world, which may be an enclosing world.
  static MeshTable& of(const Mesh& mesh) {
    (void)mesh.data();  // it lives
    return Context::find(mesh.handle_.owner())->state<MeshTable>();
  }

  // `self` is the calling rank.
  Mesh intern(std::vector<MeshAxis> axes, std::vector<int> ranks, int self) {
    for (const auto& m : meshes) {
      if (m->axes == axes && m->ranks == ranks) return {m.get(), owner};
    }
    auto& data = *meshes.emplace_back(std::make_unique<detail::MeshData>());
    data.axes = std::move(axes);
    data.ranks = std::move(ranks);
    const Mesh mesh(&data, owner);
    data.position = static_cast<size_t>(std::ranges::find(data.ranks, self) - data.ranks.begin());
    for (int a = 0; a < mesh.axes(); ++a)
      data.coordinates.push_back(mesh.coordinate_at(static_cast<int>(data.position), a));
    return mesh;
  }

  ProcessGroup& group(const std::vector<int>& ranks, const std::string& name,
                      const std::string& channel = {}) {
    if (channel.empty() && ranks == all_ranks(*world)) return *world;
    auto& group = groups[{ranks, channel}];
    if (!group)
      group = world->subgroup(ranks, channel.empty() ? name : concat(name, " (", channel, ')'));
    return *group;
  }
};

namespace {

std::string list(std::span<const int> values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += concat(i ? ", " : "", values[i]);
  return text + "]";
}

std::string names_of(std::span<const MeshAxis> axes) {
  std::string text;
  for (const MeshAxis& a : axes) text += concat(text.empty() ? "" : ", ", a.name, "=", a.size);
  return text;
}

int64_t product(std::span<const MeshAxis> axes) {
  int64_t n = 1;
  // Sizes are at least 1 and at most a number of ranks each, so six of them fit when clamped.
  for (const MeshAxis& a : axes) n = std::min<int64_t>(n * a.size, int64_t{1} << 31);
  return n;
}

void check_axes(std::string_view where, std::span<const MeshAxis> axes, int64_t ranks) {
  if (axes.empty() || axes.size() > kMaxAxes) {
    fail<LayoutError>(where, "a mesh has 1 to ", kMaxAxes, " axes: given ", axes.size(), " (",
                      names_of(axes), "); merge some, or leave out those of size 1");
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name.empty())
      fail<LayoutError>(where, "axis ", i, " of (", names_of(axes), ") has no name; give it one");
    if (axes[i].size < 1) {
      fail<LayoutError>(where, "axis ", axes[i].name, " has size ", axes[i].size,
                        ": expected 1 or more");
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[i].name == axes[j].name)
        fail<LayoutError>(where, "the name ", axes[i].name, " is used twice in (", names_of(axes),
                          "); rename one");
    }
  }
  if (product(axes) != ranks) {
    fail<LayoutError>(where, "the sizes of (", names_of(axes), ") multiply to ", product(axes),
                      ", but there are ", counted(ranks, "rank"),
                      "; change a size so that they multiply to ", ranks);
  }
}

uint64_t hash_of(std::string_view text) {  // FNV-1a: equal on every machine
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

// Checks that all ranks of the group have the same arguments; CollectiveMismatch on all otherwise.
void check_agreement(ProcessGroup& group, const std::string& asked) {
  // The fake back end has no other ranks that could disagree.
  if (group.size() == 1 || group.backend() == "fake") return;
  const auto n = static_cast<size_t>(group.size());
  const Tensor mine = empty({2}, DType::i64), all = empty({2 * group.size()}, DType::i64);
  mine.data<int64_t>()[0] = static_cast<int64_t>(hash_of(asked));
  mine.data<int64_t>()[1] = static_cast<int64_t>(asked.size());
  group.all_gather(mine, all)->wait();
  const int64_t* pairs = all.data<int64_t>();
  bool equal = true;
  Counts lengths;
  for (size_t i = 0; i < n; ++i) {
    equal = equal && pairs[2 * i] == pairs[0] && pairs[2 * i + 1] == pairs[1];
    lengths.push_back(pairs[2 * i + 1]);
  }
  if (equal) return;
  const Tensor text = empty({static_cast<int64_t>(asked.size())}, DType::u8);
  const Tensor texts =
      empty({std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}, DType::u8);
  std::ranges::copy(asked, text.data<uint8_t>());
  group.all_gather(text, texts, lengths)->wait();
  std::vector<std::pair<std::string, std::vector<int>>> sides;
  const uint8_t* at = texts.data<uint8_t>();
  for (size_t i = 0; i < n; ++i) {
    const std::string said(at, at + lengths[i]);
    at += lengths[i];
    auto side = std::ranges::find(sides, said, [](const auto& s) { return s.first; });
    if (side == sides.end()) side = sides.insert(side, {said, {}});
    side->second.push_back(group.ranks()[i]);
  }
  std::string message;
  for (const auto& [said, ranks] : sides) {
    message += concat(message.empty() ? "" : "; ", ranks.size() == 1 ? "rank " : "ranks ",
                      list(ranks), " ask", ranks.size() == 1 ? "s" : "", " for ", said);
  }
  fail<CollectiveMismatch>("mesh", "the ranks disagree on the mesh: ", message,
                           "; give the same axes and ranks everywhere");
}

int group_size(const Mesh& mesh, std::span<const int> axes) {
  int n = 1;
  for (const int a : axes) n *= mesh.size(a);
  return n;
}

std::string wish(std::span<const MeshAxis> axes, std::span<const int> ranks,
                 const std::vector<MeshProduct>& products) {
  std::string text = concat("(", names_of(axes), ") over ", list(ranks));
  for (const MeshProduct& p : products) {
    text += concat(", ", p.name, " =");
    for (const std::string& axis : p.axes) text += ' ' + axis;
  }
  return text;
}

}  // namespace

Mesh Mesh::make(std::vector<MeshAxis> axes, const std::vector<MeshProduct>& products) {
  ProcessGroup& world = current_group();
  const std::vector<int> ranks = all_ranks(world);
  // Agreement comes first: one odd rank is then named on all ranks, not left to fail alone.
  check_agreement(world, wish(axes, ranks, products));
  check_axes("mesh", axes, world.size());
  const Mesh mesh = MeshTable::current().intern(std::move(axes), ranks, world.rank());
  mesh.connect(products);
  return mesh;
}

Mesh Mesh::make(std::vector<MeshAxis> axes, std::vector<int> ranks,
                const std::vector<MeshProduct>& products) {
  const ProcessGroup& world = current_group();
  std::vector<int> members = ranks;
  std::ranges::sort(members);
  if (!members.empty() && (members.front() < 0 || members.back() >= world.size())) {
    fail<LayoutError>("mesh", "the ranks ", list(ranks),
                      " are not all in the world: expected 0 to ", world.size() - 1);
  }
  const auto twice = std::ranges::adjacent_find(members);
  if (twice != members.end())
    fail<LayoutError>("mesh", "rank ", *twice, " occurs twice in ", list(ranks),
                      "; name each once");
  if (!std::ranges::binary_search(members, world.rank())) {
    fail<LayoutError>("mesh", "this rank, ", world.rank(), ", is not among the mesh's ranks ",
                      list(ranks), "; create a mesh only on its members");
  }
  // Members in ascending order, so that ranks that disagree on the order still get one group.
  MeshTable& table = MeshTable::current();
  check_agreement(table.group(members, "mesh"), wish(axes, ranks, products));
  check_axes("mesh", axes, static_cast<int64_t>(ranks.size()));
  const Mesh mesh = table.intern(std::move(axes), std::move(ranks), world.rank());
  mesh.connect(products);
  return mesh;
}

// All ranks make these groups here, in one order; none is then first made where some ranks wait for
// others.
void Mesh::connect(const std::vector<MeshProduct>& products) const {
  for (int a = 0; a < axes(); ++a) {
    if (size(a) > 1) (void)group(a);
  }
  for (const MeshProduct& p : products) {
    const std::vector<std::string_view> names(p.axes.begin(), p.axes.end());
    (void)flatten_axes(names, p.name);
    const std::vector<int> parts = resolve(names);
    if (group_size(*this, parts) > 1) (void)group(parts);
  }
}

bool Mesh::has(std::string_view name) const {
  return std::ranges::any_of(data().axes, [&](const MeshAxis& a) { return a.name == name; });
}

int Mesh::index(std::string_view name) const {
  for (int i = 0; i < axes(); ++i) {
    if (axis(i).name == name) return i;
  }
  for (const auto& [flat, parts] : data().flattened) {
    if (flat == name) {
      fail<LayoutError>("mesh", name, " names ", counted(parts.size(), "axis"), " of ", text(),
                        " together, not one; slice by it first");
    }
  }
  fail<LayoutError>("mesh", "there is no axis ", name, " in ", text());
}

int Mesh::coordinate_at(int position, int axis) const {
  for (int a = axes() - 1; a > axis; --a) position /= size(a);
  return position % size(axis);
}

ProcessGroup& Mesh::group(std::span<const int> axes, std::string_view channel) const {
  uint32_t key = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int a = axes[i];
    if (a < 0 || a >= this->axes()) {
      fail<LayoutError>("mesh", "axis ", a, " is not in ", text(), ": expected 0 to ",
                        this->axes() - 1);
    }
    if (std::ranges::count(axes.first(i), a))
      fail<LayoutError>("mesh", "axis ", axis(a).name, " is used twice; list each axis once");
    key = key << 4 | static_cast<uint32_t>(a + 1);
  }
  const detail::MeshData& mesh = data();
  for (const detail::MeshGroup& g : mesh.groups) {
    if (g.axes == key && g.channel == channel) return *g.group;
  }
  std::vector<int> members;
  std::string name;
  for (const int a : axes) name += concat(name.empty() ? "" : ",", axis(a).name);
  const int count = group_size(*this, axes);
  std::vector<int> strides(mesh.axes.size(), 1);
  for (size_t a = mesh.axes.size() - 1; a-- > 0;)
    strides[a] = strides[a + 1] * mesh.axes[a + 1].size;
  for (int i = 0; i < count; ++i) {
    auto position = static_cast<int>(mesh.position);
    int rest = i;
    for (size_t k = axes.size(); k-- > 0;) {
      const auto a = static_cast<size_t>(axes[k]);
      const int at = rest % mesh.axes[a].size;
      position += (at - mesh.coordinates[a]) * strides[a];
      rest /= mesh.axes[a].size;
    }
    members.push_back(mesh.ranks[static_cast<size_t>(position)]);
  }
  ProcessGroup& group = MeshTable::of(*this).group(members, name, std::string(channel));
  mesh.groups.push_back({key, std::string(channel), &group});
  return group;
}

std::vector<int> Mesh::resolve(std::span<const std::string_view> names) const {
  const auto& flattened = data().flattened;
  std::vector<int> all;
  for (const std::string_view name : names) {
    const auto flat = std::ranges::find(flattened, name, [](const auto& f) { return f.first; });
    if (flat != flattened.end()) all.insert(all.end(), flat->second.begin(), flat->second.end());
    else all.push_back(index(name));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::count(all, all[i]) > 1) {
      fail<LayoutError>("mesh", "axis ", axis(all[i]).name, " of ", text(),
                        " is used twice; name each axis once, alone or flattened");
    }
  }
  return all;
}

// Axis i of the result: this mesh's axes groups[i], the first slowest; others stay at this rank's
// coordinate.
Mesh Mesh::merged(const std::vector<std::vector<int>>& groups,
                  std::vector<std::string> names) const {
  std::vector<MeshAxis> axes;
  std::vector<int> order;
  for (size_t i = 0; i < groups.size(); ++i) {
    MeshAxis& merged = axes.emplace_back(MeshAxis{std::move(names[i]), 1});
    for (const int a : groups[i]) {
      merged.size *= size(a);
      order.push_back(a);
    }
  }
  const detail::MeshData& mesh = data();
  std::vector<int> at = mesh.coordinates;
  for (const int a : order) at[static_cast<size_t>(a)] = 0;
  std::vector<int> ranks;
  for (bool more = true; more;) {
    int position = 0;
    for (int a = 0; a < this->axes(); ++a)
      position = position * size(a) + at[static_cast<size_t>(a)];
    ranks.push_back(mesh.ranks[static_cast<size_t>(position)]);
    more = false;
    for (size_t k = order.size(); k-- > 0 && !more;) {
      int& digit = at[static_cast<size_t>(order[k])];
      more = ++digit < size(order[k]);
      if (!more) digit = 0;
    }
  }
  check_axes("mesh", axes, static_cast<int64_t>(ranks.size()));
  return MeshTable::of(*this).intern(std::move(axes), std::move(ranks), mesh.ranks[mesh.position]);
}

Mesh Mesh::slice(std::span<const std::string_view> names) const {
  (void)resolve(names);
  std::vector<std::vector<int>> groups;
  std::vector<int> kept(static_cast<size_t>(axes()),
                        -1);  // new index of an axis, if it is not merged
  for (const std::string_view name : names) {
    groups.push_back(resolve({&name, 1}));
    if (has(name)) kept[static_cast<size_t>(index(name))] = static_cast<int>(groups.size()) - 1;
  }
  const Mesh mesh = merged(groups, {names.begin(), names.end()});
  auto& flattened = mesh.data().flattened;
  // A flattened name remains valid in meshes with all its axes.
  for (const auto& [flat, parts] : data().flattened) {
    std::vector<int> there;
    for (const int a : parts) there.push_back(kept[static_cast<size_t>(a)]);
    if (std::ranges::count(there, -1) || mesh.has(flat)) continue;
    if (std::ranges::find(flattened, flat, [](const auto& f) { return f.first; }) ==
        flattened.end())
      flattened.emplace_back(flat, there);
  }
  return mesh;
}

Mesh Mesh::flatten(std::initializer_list<std::string_view> names, std::string name) const {
  return flatten_axes({names.begin(), names.size()}, std::move(name));
}

Mesh Mesh::flatten_axes(std::span<const std::string_view> names, std::string name) const {
  const std::vector<int> parts = resolve(names);
  if (parts.empty()) fail<LayoutError>("mesh", "flatten of no axes; name those that become ", name);
  if (has(name)) {
    fail<LayoutError>("mesh", "flatten cannot call its axis ", name, ": ", text(),
                      " has one of that name; choose another");
  }
  auto& flattened = data().flattened;
  const auto before = std::ranges::find(flattened, name, [](const auto& f) { return f.first; });
  if (before != flattened.end() && before->second != parts) {
    std::string axes;
    for (const int a : before->second) axes += concat(axes.empty() ? "" : ", ", axis(a).name);
    fail<LayoutError>("mesh", name, " already names the axes ", axes, " of ", text(),
                      "; choose another name");
  }
  std::vector<std::vector<int>> groups;
  std::vector<std::string> new_names;
  for (int a = 0; a < axes(); ++a) {
    if (a == parts.front()) {
      groups.push_back(parts);
      new_names.push_back(name);
    } else if (!std::ranges::count(parts, a)) {
      groups.push_back({a});
      new_names.push_back(axis(a).name);
    }
  }
  const Mesh mesh = merged(groups, std::move(new_names));
  if (before == flattened.end()) flattened.emplace_back(std::move(name), parts);
  return mesh;
}

Mesh Mesh::unflatten(std::string_view name, std::vector<MeshAxis> into) const {
  const int cut = index(name);
  check_axes("mesh", into, size(cut));
  const detail::MeshData& mesh = data();
  std::vector<MeshAxis> axes = mesh.axes;
  axes.erase(axes.begin() + cut);
  axes.insert(axes.begin() + cut, into.begin(), into.end());
  check_axes("mesh", axes, size());
  return MeshTable::of(*this).intern(std::move(axes), mesh.ranks, mesh.ranks[mesh.position]);
}

Mesh Mesh::represent(std::vector<MeshAxis> axes) const {
  check_axes("mesh", axes, size());
  const detail::MeshData& mesh = data();
  const auto stride = [](std::span<const MeshAxis> all, size_t at) {
    return product(all.subspan(at + 1));
  };
  for (size_t i = 0; i < axes.size(); ++i) {
    if (!has(axes[i].name)) continue;
    const auto j = static_cast<size_t>(index(axes[i].name));
    const bool same = axes[i].size == mesh.axes[j].size &&
                      (axes[i].size == 1 || stride(axes, i) == stride(mesh.axes, j));
    if (!same) {
      fail<LayoutError>("mesh", "axis ", axes[i].name, " of (", names_of(axes),
                        ") does not run over the same ranks as in ", text(),
                        "; give it another name, or the same size with axes to its right of the "
                        "same product");
    }
  }
  return MeshTable::of(*this).intern(std::move(axes), mesh.ranks, mesh.ranks[mesh.position]);
}

std::string Mesh::text() const {
  const detail::MeshData& mesh = data();
  std::string text = concat("mesh(", names_of(mesh.axes), ")");
  for (size_t i = 0; i < mesh.ranks.size(); ++i) {
    if (mesh.ranks[i] != static_cast<int>(i)) return concat(text, " of ranks ", list(mesh.ranks));
  }
  return text;
}

std::ostream& operator<<(std::ostream& os, Mesh mesh) { return os << mesh.text(); }

}  // namespace tessera

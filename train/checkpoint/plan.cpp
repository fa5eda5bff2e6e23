// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/plan.h"

#include "tessera/dist/dtensor.h"
#include "tessera/nn/io/json_impl.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

// Rows up to this size are not cut: the work is even to a unit, and a manifest stays short.
constexpr int64_t kUnitBytes = int64_t{64} << 10;

// A box of a tensor that these ranks hold alike.
struct Replicas {
  Box box;
  std::vector<int> ranks;
};

std::vector<int> coordinates_of(const Holdings::Mesh& mesh, size_t position) {
  std::vector<int> coordinates(mesh.sizes.size());
  for (size_t a = mesh.sizes.size(); a-- > 0;) {
    coordinates[a] = static_cast<int>(position) % mesh.sizes[a];
    position /= static_cast<size_t>(mesh.sizes[a]);
  }
  return coordinates;
}

Box box_at(const Holdings::Held& held, const Holdings::Mesh& mesh, size_t position) {
  const std::vector<int> coordinates = coordinates_of(mesh, position);
  Box box;
  for (int d = 0; d < held.shape.rank(); ++d) {
    Piece::Range range{0, held.shape[d], held.shape[d]};
    for (const int axis : axes_of(held.states, d)) {
      const auto a = static_cast<size_t>(axis);
      range = chunk(range, mesh.sizes[a], coordinates[a]);
    }
    box.begin.push_back(range.begin);
    box.size.push_back(range.size);
  }
  return box;
}

bool comes_before(const Box& a, const Box& b) {
  return std::ranges::lexicographical_compare(a.begin, b.begin);
}

// The boxes of a layout, which cover the tensor once, in row-major order.
std::vector<Replicas> boxes_of(const Holdings::Held& held, const Holdings::Mesh& mesh) {
  std::vector<Replicas> all;
  for (size_t p = 0; p < mesh.ranks.size(); ++p) {
    Box box = box_at(held, mesh, p);
    if (box.numel() > 0) all.push_back({std::move(box), {mesh.ranks[p]}});
  }
  std::ranges::stable_sort(all, comes_before, &Replicas::box);
  std::vector<Replicas> distinct;
  for (Replicas& r : all) {
    if (!distinct.empty() && distinct.back().box == r.box)
      distinct.back().ranks.push_back(r.ranks[0]);
    else distinct.push_back(std::move(r));
  }
  return distinct;
}

// Adds ranks that hold the same boxes on another mesh.
void join(std::vector<Replicas>& boxes, const std::vector<Replicas>& others) {
  for (const Replicas& other : others) {
    const auto at = std::ranges::lower_bound(boxes, other.box, comes_before, &Replicas::box);
    if (at != boxes.end() && at->box == other.box)
      at->ranks.insert(at->ranks.end(), other.ranks.begin(), other.ranks.end());
  }
}

// Boxes that the same ranks hold, one behind the other.
struct Group {
  struct Part {
    size_t tensor;
    Box box;
  };
  std::vector<Part> parts;
  int64_t bytes = 0;
};

// Rank i of n takes the units that begin in the i-th of n equal runs of the group's bytes.
void share_out(const std::vector<int>& ranks, const Group& group,
               std::vector<PlannedTensor>& tensors) {
  using Wide = __int128;  // bytes times ranks
  const Wide n = static_cast<Wide>(ranks.size());
  Wide at = 0;  // of the part, in the group's bytes
  std::vector<Box> boxes;
  for (const auto& [index, box] : group.parts) {
    PlannedTensor& tensor = tensors[index];
    const Units units = units_of(box, tensor.dtype, kUnitBytes);
    for (int64_t first = 0; first < units.count;) {
      const Wide i = (at + Wide{first} * units.bytes) * n / group.bytes;
      const Wide end = ((i + 1) * group.bytes + n - 1) / n - at;  // where the next run begins
      const auto last =
          static_cast<int64_t>(std::min<Wide>(units.count, (end + units.bytes - 1) / units.bytes));
      boxes.clear();
      append_boxes(box, units.dim, first, last, boxes);
      for (const Box& run : boxes) {
        for (Box& piece : pieces_of(run, tensor.dtype, kChunkBytes))
          tensor.chunks.push_back({ranks[static_cast<size_t>(i)], std::move(piece)});
      }
      first = last;
    }
    at += Wide{units.count} * units.bytes;
  }
}

[[noreturn]] void disagree(const std::string& name, const std::string& a, const std::string& b) {
  fail<DataError>("checkpoint", "ranks hold ", name, " as ", a, " and as ", b,
                  ": a tensor has one part, dtype and shape in a checkpoint");
}

std::string text_of(std::string_view part, DType dtype, const Shape& shape) {
  return concat(name(dtype), shape, " of the ", part);
}

}  // namespace

void Holdings::add(const std::string& part, const std::vector<nn::NamedParameter>& added,
                   int world) {
  std::set<std::string> names;
  for (const Held& held : tensors) names.insert(held.name);
  const auto mesh_index = [&](Mesh mesh) {
    const auto at = std::ranges::find(meshes, mesh);
    if (at != meshes.end()) return static_cast<size_t>(at - meshes.begin());
    meshes.push_back(std::move(mesh));
    return meshes.size() - 1;
  };
  for (const auto& [name, tensor] : added) {
    if (!names.insert(name).second)
      fail<UsageError>("checkpoint", "two tensors are named ", name, ": give each its own name");
    Held held{part, name, tensor.dtype(), tensor.shape()};
    if (tensor.is_distributed()) {
      const Layout layout = layout_of(tensor);
      if (layout.has_partial()) {
        fail<LayoutError>("checkpoint", name, " is ", layout.placements_text(),
                          ": no rank holds its values; redistribute it before saving");
      }
      Mesh mesh;
      for (int a = 0; a < layout.mesh().axes(); ++a) mesh.sizes.push_back(layout.mesh().size(a));
      mesh.ranks.assign(layout.mesh().ranks().begin(), layout.mesh().ranks().end());
      held.mesh = mesh_index(std::move(mesh));
      held.states = layout.states();
    } else {
      Mesh all{{world}, std::vector<int>(static_cast<size_t>(world))};
      std::iota(all.ranks.begin(), all.ranks.end(), 0);
      held.mesh = mesh_index(std::move(all));
    }
    tensors.push_back(std::move(held));
  }
}

std::string Holdings::text() const {
  Json json = Json::array({Json::array(), Json::array()});
  for (const Mesh& mesh : meshes) json[0].push_back({mesh.sizes, mesh.ranks});
  for (const Held& held : tensors) {
    Json states = Json::array();
    for (const AxisState& s : held.states)
      states.push_back({static_cast<int>(s.placement.kind), s.placement.dim, s.position});
    json[1].push_back({held.part, held.name, static_cast<int>(held.dtype),
                       std::vector<int64_t>(held.shape.begin(), held.shape.end()), held.mesh,
                       std::move(states)});
  }
  return json.dump();
}

Holdings Holdings::parse(const std::string& text) {
  const Json json = Json::parse(text);
  Holdings holdings;
  for (const Json& mesh : json[0])
    holdings.meshes.push_back({mesh[0].get<std::vector<int>>(), mesh[1].get<std::vector<int>>()});
  for (const Json& t : json[1]) {
    const auto shape = t[3].get<std::vector<int64_t>>();
    Held held{t[0], t[1], static_cast<DType>(t[2].get<int>()), Shape(std::span(shape)), t[4]};
    for (size_t a = 0; a < held.states.size(); ++a) {
      AxisState& s = held.states[a];
      s.placement = {static_cast<Placement::Kind>(t[5][a][0].get<int>()), ReduceOp::sum,
                     t[5][a][1].get<int16_t>()};
      s.position = t[5][a][2].get<int8_t>();
    }
    holdings.tensors.push_back(std::move(held));
  }
  return holdings;
}

std::vector<PlannedTensor> plan_chunks(std::span<const Holdings> of_ranks, int world) {
  std::vector<PlannedTensor> tensors;
  std::vector<std::vector<Replicas>> boxes;  // by tensor
  std::map<std::string_view, size_t> known;
  for (const Holdings& holdings : of_ranks) {
    for (const Holdings::Held& held : holdings.tensors) {
      const Holdings::Mesh& mesh = holdings.meshes[held.mesh];
      const auto [at, first] = known.emplace(held.name, tensors.size());
      if (first) {
        tensors.push_back({held.part, held.name, held.dtype, held.shape});
        boxes.push_back(boxes_of(held, mesh));
        continue;
      }
      const PlannedTensor& there = tensors[at->second];
      if (there.part != held.part || there.dtype != held.dtype || there.shape != held.shape) {
        disagree(held.name, text_of(there.part, there.dtype, there.shape),
                 text_of(held.part, held.dtype, held.shape));
      }
      join(boxes[at->second], boxes_of(held, mesh));
    }
  }
  std::map<std::vector<int>, Group> groups;  // by the ranks that hold their boxes
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (Replicas& replicas : boxes[i]) {
      std::vector<int>& ranks = replicas.ranks;
      std::ranges::sort(ranks);
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      if (ranks.back() >= world)
        fail<DataError>("checkpoint", tensors[i].name, " lies on rank ", ranks.back(), " of ",
                        world);
      Group& group = groups[std::move(ranks)];
      group.bytes += replicas.box.numel() * item_size(tensors[i].dtype);
      group.parts.push_back({i, std::move(replicas.box)});
    }
  }
  for (const auto& [ranks, group] : groups) share_out(ranks, group, tensors);
  for (PlannedTensor& tensor : tensors)
    std::ranges::sort(tensor.chunks, comes_before, &PlannedChunk::box);
  return tensors;
}

}  // namespace tessera::train

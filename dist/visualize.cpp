// SPDX-License-Identifier: Apache-2.0
// Dims are sharded by different axes, so the shards of a 2-D tensor always form a grid, however
// uneven they are.
#include "tessera/dist/visualize.h"

#include "tessera/core/message.h"

#include <algorithm>
#include <iomanip>
#include <map>

namespace tessera {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // [begin, end) by dim

struct Parts {
  std::map<Ranges, std::vector<int>> held;  // by place, with the ranks that hold it
  std::vector<int> empty;                   // ranks without an element
};

Parts parts_of(const Shape& shape, Layout layout) {
  const Mesh mesh = layout.mesh();
  Parts parts;
  for (int position = 0; position < mesh.size(); ++position) {
    std::vector<int> at;
    for (int a = 0; a < mesh.axes(); ++a) at.push_back(mesh.coordinate_at(position, a));
    Ranges ranges;
    bool empty = false;
    for (int d = 0; d < shape.rank(); ++d) {
      const Piece::Range r = layout.range_at(at, shape, d);
      ranges.emplace_back(r.begin, r.begin + r.size);
      empty = empty || r.size == 0;
    }
    const int rank = mesh.ranks()[static_cast<size_t>(position)];
    (empty ? parts.empty : parts.held[ranges]).push_back(rank);
  }
  return parts;
}

// `0-3, 6`
std::string ranks_text(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += concat(text.empty() ? "" : ", ", ranks[i]);
    if (j > i) text += concat(j > i + 1 ? "-" : ", ", ranks[j]);
    i = j + 1;
  }
  return text;
}

std::string range_text(std::pair<int64_t, int64_t> r) { return concat(r.first, ':', r.second); }

// Columns as wide as their widest cell, the first line and column being the ranges.
std::string grid_text(const std::vector<std::vector<std::string>>& cells) {
  std::vector<size_t> width(cells[0].size(), 0);
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::ostringstream os;
  for (const auto& row : cells) {
    std::ostringstream line;
    for (size_t i = 0; i < row.size(); ++i)
      line << (i ? " | " : "  ") << std::left << std::setw(static_cast<int>(width[i])) << row[i];
    const std::string text = line.str();
    os << text.substr(0, text.find_last_not_of(' ') + 1) << '\n';
  }
  return os.str();
}

std::string parts_text(const Shape& shape, const Parts& parts) {
  if (shape.rank() < 1 || shape.rank() > 2) {
    std::string text;
    for (const auto& [ranges, ranks] : parts.held) {
      std::string place;
      for (const auto& r : ranges) place += concat(place.empty() ? "" : ", ", range_text(r));
      text +=
          concat("  [", place, "]  rank", ranks.size() > 1 ? "s " : " ", ranks_text(ranks), '\n');
    }
    return text;
  }
  Ranges columns, rows{{0, 1}};
  const auto add = [](Ranges& to, std::pair<int64_t, int64_t> r) {
    if (!std::ranges::count(to, r)) to.push_back(r);
  };
  if (shape.rank() == 2) rows.clear();
  for (const auto& [ranges, ranks] : parts.held) {
    add(columns, ranges.back());
    if (shape.rank() == 2) add(rows, ranges[0]);
  }
  if (columns.empty()) return {};
  std::ranges::sort(columns);
  std::ranges::sort(rows);
  std::vector<std::vector<std::string>> cells(1, {"rank"});
  for (const auto& c : columns) cells[0].push_back(range_text(c));
  for (const auto& r : rows) {
    auto& line = cells.emplace_back();
    line.push_back(shape.rank() == 2 ? range_text(r) : "");
    for (const auto& c : columns) {
      const auto found = parts.held.find(shape.rank() == 2 ? Ranges{r, c} : Ranges{c});
      line.push_back(found == parts.held.end() ? "" : ranks_text(found->second));
    }
  }
  return grid_text(cells);
}

}  // namespace

std::string visualize_sharding(const Shape& shape, Layout layout) {
  check_fits(layout, shape, "visualize_sharding");
  const Parts parts = parts_of(shape, layout);
  std::string text = concat(shape, " on ", layout.text(), '\n', parts_text(shape, parts));
  if (!parts.empty.empty()) text += concat("  empty on ", ranks_text(parts.empty), '\n');
  for (int a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).kind == Placement::Kind::partial) {
      text += concat("  to be reduced (", layout.placement(a).op, ") over ",
                     layout.mesh().axis(a).name, '\n');
    }
  }
  return text;
}

std::string visualize_sharding(const Tensor& x) {
  if (x.is_distributed())
    return visualize_sharding(x.shape(), detail::layout_of(x, "visualize_sharding"));
  return concat(x.shape(), " plain: this rank holds the whole\n");
}

std::string describe(const Tensor& x) {
  if (!x.defined()) return "undefined tensor";
  const std::string grad = x.requires_grad() ? "; requires_grad" : "";
  const auto bytes = [](const Tensor& t) { return t.numel() * item_size(t.dtype()); };
  if (!x.is_distributed()) return concat(x.meta(), ", plain, ", counted(bytes(x), "byte"), grad);
  const Layout layout = detail::layout_of(x, "describe");
  const Mesh mesh = layout.mesh();
  const Tensor part(x.impl().local);
  std::string at;
  for (int a = 0; a < mesh.axes(); ++a)
    at += concat(at.empty() ? "" : ", ", mesh.axis(a).name, ' ', mesh.coordinate(a));
  return concat(x.meta(), " on ", layout.text(), "; rank ", current_group().rank(), " (", at,
                ") holds ", part.meta(), ", ", counted(bytes(part), "byte"), grad);
}

}  // namespace tessera

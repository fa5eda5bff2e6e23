// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/box.h"

#include "tessera/dist/dtensor.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

namespace tessera::train {
namespace {

// `box` without its dims before `dim`, which are at one index each, and [begin, begin + size) of
// `dim`.
Box narrowed(Box box, int dim, int64_t begin, int64_t size) {
  box.begin[dim] += begin;
  box.size[dim] = size;
  return box;
}

}  // namespace

Box whole_box(const Shape& shape) { return {Shape::filled(shape.rank(), 0), shape}; }

Box own_box(const Tensor& t) {
  Box box = whole_box(t.shape());
  if (!t.is_distributed()) return box;
  const Layout layout = layout_of(t);
  for (int d = 0; d < t.shape().rank(); ++d) {
    const Piece::Range range = layout.range(t.shape(), d);
    box.begin[d] = range.begin;
    box.size[d] = range.size;
  }
  return box;
}

std::optional<Box> overlap(const Box& a, const Box& b) {
  Box both = a;
  for (int d = 0; d < a.size.rank(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    both.size[d] = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]) - both.begin[d];
    if (both.size[d] <= 0) return std::nullopt;
  }
  return both;
}

std::string text_of(const Box& box) {
  std::string text = "[";
  for (int d = 0; d < box.size.rank(); ++d) {
    text += std::to_string(box.begin[d]) + ':' + std::to_string(box.begin[d] + box.size[d]);
    if (d + 1 < box.size.rank()) text += ',';
  }
  return text + ']';
}

Units units_of(const Box& box, DType dtype, int64_t most) {
  if (box.numel() == 0) return {};
  Units units{-1, box.numel() * item_size(dtype), 1};
  while (units.dim + 1 < box.size.rank() && units.bytes > most) {
    const int64_t size = box.size[++units.dim];
    units.bytes /= size;
    units.count *= size;
  }
  return units;
}

void append_boxes(const Box& box, int dim, int64_t first, int64_t last, std::vector<Box>& boxes) {
  // The outermost dim in which the units lie at more than one index is cut; a head and a tail that
  // do not fill an index of it are cut further inside.
  const auto run = [&](auto& self, const Box& from, int d, int64_t a, int64_t b) -> void {
    if (a >= b) return;
    int64_t inner = 1;  // units in an index of d
    for (int i = d + 1; i <= dim; ++i) inner *= box.size[i];
    const int64_t low = a / inner, high = b / inner;
    if (a % inner != 0 || low == high) {
      const int64_t end = std::min(b, (low + 1) * inner);
      self(self, narrowed(from, d, low, 1), d + 1, a - low * inner, end - low * inner);
      return self(self, from, d, end, b);
    }
    boxes.push_back(narrowed(from, d, low, high - low));
    if (high * inner < b) self(self, narrowed(from, d, high, 1), d + 1, 0, b - high * inner);
  };
  if (dim >= 0) run(run, box, 0, first, last);
  else if (first < last) boxes.push_back(box);
}

std::vector<Box> pieces_of(const Box& box, DType dtype, int64_t most) {
  std::vector<Box> pieces;
  const Units units = units_of(box, dtype, most);
  const int64_t step = std::max<int64_t>(1, most / std::max<int64_t>(1, units.bytes));
  for (int64_t at = 0; at < units.count; at += step)
    append_boxes(box, units.dim, at, std::min(at + step, units.count), pieces);
  return pieces;
}

int64_t offset_in(const Box& whole, const Box& box) {
  int64_t at = 0;
  for (int d = 0; d < whole.size.rank(); ++d)
    at = at * whole.size[d] + box.begin[d] - whole.begin[d];
  return at;
}

void copy_box(const Box& part, const Box& to, void* to_bytes, const Box& from,
              const void* from_bytes, int64_t item) {
  if (part.numel() == 0) return;
  // Dims from `inner` on are whole on both sides, so a row is what lies in one index of the dims
  // before `inner`, times its range of the dim before.
  int inner = part.size.rank();
  int64_t row = item;
  while (inner > 0 && part.size[inner - 1] == to.size[inner - 1] &&
         part.size[inner - 1] == from.size[inner - 1])
    row *= part.size[--inner];
  if (inner > 0) row *= part.size[--inner];
  Box at = part;
  for (int d = 0; d < inner; ++d) at.size[d] = 1;
  int64_t rows = 1;
  for (int d = 0; d < inner; ++d) rows *= part.size[d];
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<std::byte*>(to_bytes) + offset_in(to, at) * item,
                static_cast<const std::byte*>(from_bytes) + offset_in(from, at) * item,
                static_cast<size_t>(row));
    for (int d = inner - 1; d >= 0; --d) {
      if (++at.begin[d] < part.begin[d] + part.size[d]) break;
      at.begin[d] = part.begin[d];
    }
  }
}

// Boxes are taken in the order of their begin in dim 0; only those that still reach there are
// compared, so chunks of rows cost one comparison each.
std::optional<CoverFault> cover_fault(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<size_t> order(boxes.size()), open;
  std::iota(order.begin(), order.end(), size_t{0});
  const auto begin = [&](size_t i) { return shape.rank() > 0 ? boxes[i].begin[0] : 0; };
  std::ranges::sort(order, {}, begin);
  int64_t covered = 0;
  for (const size_t i : order) {
    covered += boxes[i].numel();
    std::erase_if(open, [&](size_t o) {
      return shape.rank() > 0 && boxes[o].begin[0] + boxes[o].size[0] <= begin(i);
    });
    for (const size_t o : open) {
      if (overlap(boxes[o], boxes[i])) return CoverFault{std::min(o, i), std::max(o, i), 0};
    }
    open.push_back(i);
  }
  if (covered == shape.numel()) return std::nullopt;
  return CoverFault{0, 0, shape.numel() - covered};
}

}  // namespace tessera::train

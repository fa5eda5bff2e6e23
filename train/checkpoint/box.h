// SPDX-License-Identifier: Apache-2.0
// Boxes: ranges of a tensor's elements, one per dim. Shards, chunks of a checkpoint and what two of
// them share are boxes.
#pragma once

#include "tessera/core/shape.h"
#include "tessera/core/tensor.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct Box {
  Shape begin, size;  ///< per dim; a 0-dim tensor has one element and an empty box of it
  bool operator==(const Box&) const = default;
  [[nodiscard]] int64_t numel() const { return size.numel(); }
};

/// All of a tensor.
[[nodiscard]] TESSERA_API Box whole_box(const Shape& shape);
/// What of a tensor this rank holds: all of a plain one.
[[nodiscard]] TESSERA_API Box own_box(const Tensor& t);
/// The elements in both; none if there is no such element.
[[nodiscard]] TESSERA_API std::optional<Box> overlap(const Box& a, const Box& b);
/// `[0:4,8:16]`; `[]` of a 0-dim tensor.
[[nodiscard]] TESSERA_API std::string text_of(const Box& box);

/// A box cut into units of at most `most` bytes, or of one element: one index of each dim up to
/// `dim`, all of the later dims. Row-major, so a run of units is a run of bytes in memory that
/// holds the box.
struct Units {
  int dim = -1;       ///< the innermost dim that is cut; -1: the box is one unit
  int64_t bytes = 0;  ///< of a unit
  int64_t count = 0;
};
[[nodiscard]] TESSERA_API Units units_of(const Box& box, DType dtype, int64_t most);
/// Appends the boxes that units [first, last) of `box` make up, in order, as few as can be.
TESSERA_API void append_boxes(const Box& box, int dim, int64_t first, int64_t last,
                              std::vector<Box>& boxes);
/// The box in pieces of at most `most` bytes, or of one element, each a run of bytes in it.
[[nodiscard]] TESSERA_API std::vector<Box> pieces_of(const Box& box, DType dtype, int64_t most);

/// Where a box of `whole` begins in memory that holds `whole`, in elements.
[[nodiscard]] TESSERA_API int64_t offset_in(const Box& whole, const Box& box);
/// Copies the elements of `part` from memory that holds `from` to memory that holds `to`.
TESSERA_API void copy_box(const Box& part, const Box& to, void* to_bytes, const Box& from,
                          const void* from_bytes, int64_t item);

/// What is wrong with boxes that should cover a tensor once: the first two that overlap, or the
/// number of elements that none covers. Empty: nothing. Every box lies in the tensor.
struct CoverFault {
  size_t first = 0, second = 0;  ///< of two boxes that overlap; equal: a gap
  int64_t missing = 0;           ///< elements in gaps
};
[[nodiscard]] TESSERA_API std::optional<CoverFault> cover_fault(const Shape& shape,
                                                                const std::vector<Box>& boxes);

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Shape checks, and how dtypes, shapes and devices print.
#include "tessera/core/shape.h"

#include "tessera/core/device.h"
#include "tessera/core/dtype.h"

#include <ostream>

namespace tessera {

std::ostream& operator<<(std::ostream& os, DType t) { return os << name(t); }

std::ostream& operator<<(std::ostream& os, DTypeSet set) {
  const char* separator = "";
  for (int i = 0; i < kDTypes; ++i) {
    if (!set.has(static_cast<DType>(i))) continue;
    os << separator << static_cast<DType>(i);
    separator = ", ";
  }
  return os;
}

std::ostream& operator<<(std::ostream& os, Device d) {
  if (d.is_meta()) return os << "meta";
  if (d.is_cpu()) return os << "cpu";
  return os << "cuda:" << static_cast<int>(d.index);
}

std::ostream& operator<<(std::ostream& os, const Shape& shape) {
  os << '[';
  for (int i = 0; i < shape.rank(); ++i) os << (i ? ", " : "") << shape[i];
  return os << ']';
}

int64_t checked_numel(const Shape& shape, int64_t item_size, std::string_view where) {
  int64_t n = 1;
  bool zero = false, overflow = false;
  for (int64_t s : shape) {
    if (s < 0) fail<ShapeError>(where, "sizes must not be negative: given ", shape);
    if (s == 0) zero = true;
    else overflow |= __builtin_mul_overflow(n, s, &n);
  }
  int64_t bytes = 0;
  overflow |= __builtin_mul_overflow(n, item_size, &bytes) || bytes > int64_t{1} << 62;
  if (overflow) fail<ShapeError>(where, "a tensor of shape ", shape, " has more bytes than 2^62");
  return zero ? 0 : n;
}

int normalize_dim(int dim, int rank, std::string_view op) {
  const int dims = rank == 0 ? 1 : rank;
  if (dim < -dims || dim >= dims) {
    fail<IndexError>(op, "dim ", dim, " is out of range for rank ", rank, ": expected ", -dims,
                     " to ", dims - 1);
  }
  return dim < 0 ? dim + dims : dim;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape out = longer;
  const int lead = longer.rank() - shorter.rank();
  for (int i = 0; i < shorter.rank(); ++i) {
    const int64_t x = longer[lead + i], y = shorter[i];
    if (x != y && x != 1 && y != 1) {
      fail<ShapeError>(op, "shapes cannot be broadcast together: a is ", a, ", b is ", b,
                       "; sizes, counted from the right, must be equal or 1");
    }
    out[lead + i] = x == 1 ? y : x;
  }
  return out;
}

}  // namespace tessera

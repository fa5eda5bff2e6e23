// SPDX-License-Identifier: Apache-2.0
// How tensors and their metas print.
#include "tessera/core/op_types.h"
#include "tessera/core/tensor.h"

#include <ostream>

namespace tessera {

std::ostream& operator<<(std::ostream& os, const TensorMeta& m) {
  os << m.dtype << m.shape;
  if (!m.device.is_cpu()) os << '@' << m.device;
  return os;
}

namespace {
constexpr int64_t kPrintedWhole = 1000;
constexpr int64_t kEdge = 3;

void print_dim(std::ostream& os, const std::vector<double>& values, const Shape& shape, int dim,
               int64_t& place, bool all) {
  if (dim == shape.rank()) {
    os << values[static_cast<size_t>(place++)];
    return;
  }
  int64_t inner = 1;
  for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  os << '[';
  for (int64_t i = 0; i < shape[dim]; ++i) {
    if (!all && shape[dim] > 2 * kEdge && i == kEdge) {
      place += (shape[dim] - 2 * kEdge) * inner;
      i = shape[dim] - kEdge;
      os << ", ...";
    }
    if (i) os << ", ";
    print_dim(os, values, shape, dim + 1, place, all);
  }
  os << ']';
}
}  // namespace

std::ostream& operator<<(std::ostream& os, const Tensor& t) {
  if (!t.defined()) return os << "undefined";
  os << t.meta();
  if (t.is_distributed() || t.device().is_meta() || (t.numel() > 0 && t.storage().released()))
    return os;
  const auto values = t.values();
  int64_t place = 0;
  os << ' ';
  print_dim(os, values, t.shape(), 0, place, t.numel() <= kPrintedWhole);
  return os;
}

void Metas::missing(size_t i) const {
  fail<UsageError>("call", "input ", i, " is needed but only ", n_,
                   " are given or it is undefined");
}

const Tensor& Saved::undeclared(const char* what, size_t i) const {
  fail<UsageError>("vjp", "reads ", what, ' ', i,
                   ", which `saves` does not declare or which was not given");
}

}  // namespace tessera

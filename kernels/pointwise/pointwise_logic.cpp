// SPDX-License-Identifier: Apache-2.0
// Comparisons and logic of the pointwise family.
#include "tessera/kernels/pointwise/pointwise_logic.h"

#include "tessera/kernels/pointwise/pointwise_family_impl.h"

#include <ostream>

namespace tessera {
namespace op {

std::ostream& operator<<(std::ostream& os, Relation r) {
  constexpr std::array<std::string_view, 6> kNames{"equal",      "not_equal", "less",
                                                   "less_equal", "greater",   "greater_equal"};
  return os << kNames[static_cast<size_t>(r)];
}

template <> struct Variants<CompareScalar> {
  static std::vector<CompareScalar> all() {
    return {{{}, Relation::equal, 1},      {{}, Relation::not_equal, 0},
            {{}, Relation::less, 0.5},     {{}, Relation::less_equal, -1},
            {{}, Relation::greater, -0.5}, {{}, Relation::greater_equal, 1}};
  }
};

template struct InstantiatePointwise<pointwise_logic_ops>;

}  // namespace op

Tensor compare(const Tensor& x, op::Relation relation, Scalar value) {
  const DType t = x.dtype();
  if (is_floating(t)) {
    dispatch<kAllDTypes>(t, [&]<class T>() {
      if constexpr (is_floating(dtype_of<T>))
        value = static_cast<double>(
            static_cast<compute_t<T>>(static_cast<T>(static_cast<compute_t<T>>(value.real()))));
    });
  }
  return call(op::CompareScalar{{}, relation, value}, {x});
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Your own room: relu(x)^2 (So et al., Primer, 2021). It has all that the library's checklist
// requires, so the op is differentiable (any number of times), has a sharding rule, and goes
// through the laws (main.cpp).
#pragma once

#include "tessera/tessera.h"

namespace own::op {

struct SquaredRelu {
  static constexpr std::string_view name = "squared_relu";
  static constexpr tessera::DTypeSet dtypes =
      tessera::dtypes_of(tessera::DType::f32, tessera::DType::f64);
  static constexpr tessera::Saves saves = tessera::Saves::input(0);
  tessera::MetaList meta(tessera::Metas in) const;
  tessera::ShardingRule sharding(tessera::Metas in) const;
  void cpu(tessera::Tensors in, tessera::Outputs y) const;
  static constexpr tessera::NotOnCuda cuda{"this example is built without nvcc"};
  tessera::Grads vjp(const tessera::Saved& s, const tessera::Grads& dy, tessera::Needs) const;
  static std::vector<tessera::Sample<SquaredRelu>> samples();
};

}  // namespace own::op

namespace own {

/// max(x, 0)^2, elementwise, for f32 and f64.
inline tessera::Tensor squared_relu(const tessera::Tensor& x) {
  return tessera::call(op::SquaredRelu{}, {x});
}

}  // namespace own

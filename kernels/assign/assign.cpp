// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and CPU kernel of assign_: a strided copy, by way of a cast where dtypes differ.
#include "tessera/kernels/assign/assign.h"

#include "tessera/core/context.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

#include <functional>
#include <type_traits>

namespace tessera::op {

MetaList Assign::meta(Metas in) const {
  if (!(in[0].shape == in[1].shape)) {
    fail<ShapeError>(name, "the shapes must be equal: to is ", in[0], ", from is ", in[1],
                     "; expand or reshape what is assigned");
  }
  return {in[0]};
}

ShardingRule Assign::sharding(Metas in) const {
  return pointwise_rule(in, in[0].shape)
      .stricter_because("a partial source would make what is written in place partial too");
}

void Assign::cpu(Tensors in, Outputs written) const {
  Tensor& to = written[0];
  if (in[1].dtype() == to.dtype()) return strided_copy(to, in[1]);
  if (to.is_contiguous()) return Cast{{}, to.dtype()}.cpu(in.subspan(1), written);
  Tensor packed = empty(to.shape(), to.dtype());
  Cast{{}, to.dtype()}.cpu(in.subspan(1), Outputs(&packed, 1));
  strided_copy(to, packed);
}

std::vector<Sample<Assign>> Assign::samples() {
  return {
      {{}, {arg({5, 7}), arg({5, 7})}},
      {{}, {arg({6, 5}), arg({6, 5}).whole(0, 2).as(DType::f32)}},
      {{}, {arg({}), arg({})}},
      known(Assign{}, {arg({3}).listed({0, 0, 0}), arg({3}).listed({1, 0, 1})}, {{1, 0, 1}}),
      known(Assign{}, {arg({2}).listed({4, 5}), arg({2}).listed({-2.5, 3})}, {{-2.5, 3}}),
      timed(Assign{}, {arg({1024, 1024}), arg({1024, 1024}).as(DType::f32)}),
      bad(Assign{}, {arg({4, 6}), arg({6})}, "ShapeError"),
      bad(Assign{}, {arg({4}), no_arg()}, "UsageError"),
  };
}

}  // namespace tessera::op

namespace tessera {
namespace {

template <class Operand, class F>
const Tensor& write(std::string_view name, const Tensor& x, const Operand& y, const F& f) {
  if constexpr (std::is_same_v<Operand, Tensor>) check_unrecorded(name, x, y);
  else check_unrecorded(name, x, x);
  assign_(x, f(x, y));
  return x;
}

}  // namespace

void check_unrecorded(std::string_view op, const Tensor& to, const Tensor& from) {
  if (!Context::current().grad_enabled || !(to.requires_grad() || from.requires_grad())) return;
  fail<InPlaceError>(op, "would write ", to.meta(), " from ", from.meta(),
                     ", of which one requires grad: in-place ops are not recorded; write "
                     "`x = x + y` to record it, or write it under NoGrad");
}

const Tensor& operator+=(const Tensor& x, const Tensor& y) {
  return write("add_", x, y, std::plus<>());
}
const Tensor& operator-=(const Tensor& x, const Tensor& y) {
  return write("sub_", x, y, std::minus<>());
}
const Tensor& operator*=(const Tensor& x, const Tensor& y) {
  return write("mul_", x, y, std::multiplies<>());
}
const Tensor& operator/=(const Tensor& x, const Tensor& y) {
  return write("div_", x, y, std::divides<>());
}
const Tensor& operator+=(const Tensor& x, Scalar y) { return write("add_", x, y, std::plus<>()); }
const Tensor& operator-=(const Tensor& x, Scalar y) { return write("sub_", x, y, std::minus<>()); }
const Tensor& operator*=(const Tensor& x, Scalar y) {
  return write("mul_", x, y, std::multiplies<>());
}
const Tensor& operator/=(const Tensor& x, Scalar y) {
  return write("div_", x, y, std::divides<>());
}

}  // namespace tessera

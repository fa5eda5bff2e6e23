// SPDX-License-Identifier: Apache-2.0
#include "squared_relu.h"

#include "tessera/core/op_row.h"

namespace own::op {

using namespace tessera;

MetaList SquaredRelu::meta(Metas in) const {
  if (!dtypes.has(in[0].dtype))
    fail<DTypeError>(name, "given ", in[0], ", expected f32 or f64; cast it");
  return {in[0]};
}

ShardingRule SquaredRelu::sharding(Metas in) const { return rule("... -> ...", in).monotone_up(); }

void SquaredRelu::cpu(Tensors in, Outputs y) const {
  const NoGrad quiet;
  const Tensor x = contiguous(in[0]);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y[0].data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0 ? from[i] * from[i] : T(0);
  });
}

Grads SquaredRelu::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Tensor& x = s.input(0);
  const Tensor zero = x * 0.0;
  return {where(greater(x, zero), x * dy[0] * 2.0, zero)};
}

std::vector<Sample<SquaredRelu>> SquaredRelu::samples() {
  // The second derivative jumps at 0: no value lies near it. Listed values repeat until the tensor
  // is full.
  const std::vector<double> smooth = {-2.7, 1.3, -0.8, 0.3, 0.6, -1.1, 1.9, -0.4, 2.2, -1.6, 0.9};
  return {Sample<SquaredRelu>{{}, {arg({5, 7}).listed(smooth)}},
          Sample<SquaredRelu>{{}, {arg({}).uniform(0.5, 2)}},
          known(SquaredRelu{}, {arg({3}).listed({-3, 1.5, 2})}, {{0, 2.25, 4}}),
          bad(SquaredRelu{}, {index_arg({3}, 0, 4)}, "DTypeError")};
}

}  // namespace own::op

TESSERA_ROOM(own::op::SquaredRelu)

// SPDX-License-Identifier: Apache-2.0
// A copy between devices is an autograd function, not an op, because operands of an op share a
// device.
#include "tessera/autograd/to.h"

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/pointwise/pointwise.h"

namespace tessera {

Tensor to(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  if (x.is_distributed())
    fail<LayoutError>("to", x.meta(), " is distributed: its mesh decides where it lies; move its ",
                      "local() or full_tensor() to ", device);
  const Function move{
      "to", [device](FunctionContext&, Tensors in) { return TensorList{to_device(in[0], device)}; },
      [home = x.device()](FunctionContext&, const Grads& dy) {
        return Grads{dy[0].defined() ? to(dy[0], home) : Tensor()};
      }};
  return apply(move, {x})[0];
}

Tensor to(const Tensor& x, DType dtype) { return cast(x, dtype); }

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// CUDA pad: the value everywhere, then the input copied into its place in the output.
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pad/pad.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {

void Pad::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  if (!(in[0].shape() == y[0].shape()))
    Fill{y[0].shape(), y[0].dtype(), y[0].device(), value}.cuda({}, y, stream);
  if (in[0].numel() > 0) copy_strided(in[0], target(y[0], in[0].shape()), stream);
}

}  // namespace tessera::op

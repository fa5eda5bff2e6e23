// SPDX-License-Identifier: Apache-2.0
// CUDA assign_: a strided copy, by way of a cast where dtypes differ.
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {

void Assign::cuda(Tensors in, Outputs written, Stream stream) const {
  Tensor& to = written[0];
  if (to.numel() == 0) return;
  if (in[1].dtype() == to.dtype()) return copy_strided(in[1], to, stream);
  if (to.is_contiguous()) return Cast{{}, to.dtype()}.cuda(in.subspan(1), written, stream);
  Tensor packed = empty(to.shape(), to.dtype(), to.device());
  Cast{{}, to.dtype()}.cuda(in.subspan(1), Outputs(&packed, 1), stream);
  copy_strided(packed, to, stream);
}

}  // namespace tessera::op

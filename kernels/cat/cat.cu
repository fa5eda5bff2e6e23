// SPDX-License-Identifier: Apache-2.0
// CUDA cat: each input is copied into its slice of the output.
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {

void Cat::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor& out = y[0];
  const int at = normalize_dim(dim, out.rank(), name);
  int64_t begin = 0;
  for (const Tensor& x : in) {
    if (x.numel() > 0)
      copy_strided(x,
                   alias(out, x.shape(), out.strides(), out.offset() + begin * out.strides()[at]),
                   stream);
    begin += x.shape()[at];
  }
}

}  // namespace tessera::op

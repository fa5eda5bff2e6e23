// SPDX-License-Identifier: Apache-2.0
// CUDA slice_pad: zeros, then the input copied into its slice of the output. Views themselves need
// no kernel.
#include "tessera/kernels/launch.cuh"
#include "tessera/kernels/views/views.h"

namespace tessera::op {

void SlicePad::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor &x = in[0], &out = y[0];
  if (out.numel() == 0) return;
  const auto bytes = static_cast<size_t>(out.numel() * item_size(out.dtype()));
  TESSERA_CUDA_CALL(cudaMemsetAsync(out.raw_data(), 0, bytes, handle(stream)));
  if (x.numel() == 0) return;
  const int at = normalize_dim(dim, out.rank(), name);
  Shape strides = out.strides();
  strides[at] *= step;
  copy_strided(x, alias(out, x.shape(), strides, out.offset() + start * out.strides()[at]), stream);
}

}  // namespace tessera::op

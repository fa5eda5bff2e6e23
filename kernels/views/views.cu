// SPDX-License-Identifier: Apache-2.0
// CUDA slice_pad and diagonal_pad: zeros, then the input copied into its place in the output. Views
// themselves need no kernel.
#include "tessera/kernels/shared/launch.cuh"
#include "tessera/kernels/views/views.h"

namespace tessera::op {
namespace {

void zero(const Tensor& y, Stream stream) {
  const auto bytes = static_cast<size_t>(y.numel() * item_size(y.dtype()));
  TESSERA_CUDA_CALL(cudaMemsetAsync(y.raw_device_data(), 0, bytes, handle(stream)));
}

}  // namespace

void SlicePad::cuda(Tensors in, Outputs y, Stream stream) const {
  const Tensor &x = in[0], &out = y[0];
  if (out.numel() == 0) return;
  zero(out, stream);
  if (x.numel() == 0) return;
  const int at = normalize_dim(dim, out.rank(), name);
  Shape strides = out.strides();
  strides[at] *= step;
  copy_strided(x, alias(out, x.shape(), strides, out.offset() + start * out.strides()[at]), stream);
}

void DiagonalPad::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  zero(y[0], stream);
  if (in[0].numel() > 0) copy_strided(in[0], target(y[0]), stream);
}

}  // namespace tessera::op

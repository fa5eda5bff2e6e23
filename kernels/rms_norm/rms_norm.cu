// SPDX-License-Identifier: Apache-2.0
// CUDA rms_norm, with and without a residual, and its gradients.
#include "tessera/kernels/rms_norm/rms_norm.cuh"

namespace tessera::op {
namespace {

using rms_norm_cuda::kTuning;

}  // namespace

void RmsNorm::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), weight = row_major_if_given(in[1], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    rms_norm_cuda::forward<T, kTuning.bytes>(x, {}, weight, y[0], {}, y[1], eps, weight_offset,
                                             stream, kTuning.threads);
  });
}

void AddRmsNorm::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[2].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), residual = row_major(in[1], stream),
               weight = row_major(in[2], stream);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    rms_norm_cuda::forward<T, kTuning.bytes>(x, residual, weight, y[0], y[1], y[2], eps,
                                             weight_offset, stream, kTuning.threads);
  });
}

void RmsNormBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[1].numel() == 0) return;
  const Tensor x = row_major(in[0], stream), weight = row_major_if_given(in[1], stream);
  const Tensor rstd = row_major(in[2], stream), dy = row_major(in[3], stream);
  const Tensor more = in.size() > 4 ? row_major_if_given(in[4], stream) : Tensor();
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    rms_norm_cuda::backward<T, kTuning.bytes>(x, weight, rstd, dy, more, y[0], y[1], weight_offset,
                                              stream, kTuning.threads);
  });
}

}  // namespace tessera::op

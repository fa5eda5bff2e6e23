// SPDX-License-Identifier: Apache-2.0
// CUDA swiglu and both of its gradients.
#include "tessera/kernels/swiglu/swiglu.cuh"

namespace tessera::op {

using swiglu_cuda::kTuning;

void Swiglu::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor rows[] = {row_major(in[0], stream), row_major(in[1], stream)};
  dispatch<dtypes>(rows[0].dtype(), [&]<class T>() {
    swiglu_cuda::forward<T, kTuning.bytes>(*this, Tensors(rows, 2), y, stream, kTuning.threads);
  });
}

void SwigluBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor rows[] = {row_major(in[0], stream), row_major(in[1], stream),
                         row_major(in[2], stream)};
  dispatch<dtypes>(rows[0].dtype(), [&]<class T>() {
    swiglu_cuda::backward<T, kTuning.bytes>(*this, Tensors(rows, 3), y, stream, kTuning.threads);
  });
}

}  // namespace tessera::op

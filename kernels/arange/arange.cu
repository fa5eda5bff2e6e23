// SPDX-License-Identifier: Apache-2.0
// CUDA arange and linspace, by the functions that the CPU calls too.
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class Op, class T> __global__ void write_elements(Op op, T* y) {
  for (int64_t i = first_item(); i < op.count; i += item_step()) y[i] = op.template element<T>(i);
}

template <class Op> void write(const Op& op, const Tensor& y, Stream stream) {
  if (op.count == 0) return;
  dispatch<Op::dtypes>(op.dtype, [&]<class T>() {
    launch(write_elements<Op, T>, blocks_for(op.count), kThreads, 0, stream, op,
           y.device_data<T>());
  });
}

}  // namespace

void Arange::cuda(Tensors, Outputs y, Stream stream) const { write(*this, y[0], stream); }
void Linspace::cuda(Tensors, Outputs y, Stream stream) const { write(*this, y[0], stream); }

}  // namespace tessera::op

// SPDX-License-Identifier: Apache-2.0
// CUDA counts by atomic additions of whole numbers, whose order does not matter. Few bins are
// counted in a block's own memory first.
#include "tessera/kernels/histogram/histogram.h"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

constexpr int64_t kSharedBins = 4096;
using Count = unsigned long long;

__device__ int64_t bin_of(const Bincount& op, int64_t x) { return x >= 0 && x < op.bins ? x : -1; }
__device__ int64_t bin_of(const Histogram& op, double x) { return op.bin_of(x); }

template <class Op, class Wide, class T>
__global__ void count_kernel(Op op, const T* x, int64_t n, Count* y, bool own) {
  auto& counts = block_shared<unsigned[kSharedBins]>();
  if (own) {
    for (int64_t b = threadIdx.x; b < op.bins; b += blockDim.x) counts[b] = 0;
    __syncthreads();
  }
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const int64_t bin = bin_of(op, static_cast<Wide>(static_cast<compute_t<T>>(x[i])));
    if (bin < 0) continue;
    if (own) atomicAdd(&counts[bin], 1u);
    else atomicAdd(&y[bin], Count{1});
  }
  if (!own) return;
  __syncthreads();
  for (int64_t b = threadIdx.x; b < op.bins; b += blockDim.x) {
    if (counts[b]) atomicAdd(&y[b], static_cast<Count>(counts[b]));
  }
}

template <class Wide, class Op>
void count(const Op& op, const Tensor& in, const Tensor& y, Stream stream) {
  static_assert(sizeof(Count) == sizeof(int64_t));
  if (op.bins == 0) return;
  auto* counts = static_cast<Count*>(y.raw_device_data());
  TESSERA_CUDA_CALL(
      cudaMemsetAsync(counts, 0, static_cast<size_t>(op.bins) * sizeof(Count), handle(stream)));
  const int64_t n = in.numel();
  if (n == 0) return;
  const Tensor x = row_major(in, stream);
  dispatch<Op::dtypes>(x.dtype(), [&]<class T>() {
    launch(count_kernel<Op, Wide, T>, blocks_for(n, 8 * kThreads), kThreads, 0, stream, op,
           x.device_data<T>(), n, counts, op.bins <= kSharedBins);
  });
}

}  // namespace

void Bincount::cuda(Tensors in, Outputs y, Stream stream) const {
  count<int64_t>(*this, in[0], y[0], stream);
}

void Histogram::cuda(Tensors in, Outputs y, Stream stream) const {
  count<double>(*this, in[0], y[0], stream);
}

}  // namespace tessera::op

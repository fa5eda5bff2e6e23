// SPDX-License-Identifier: Apache-2.0
// CUDA permutation: the same numbers, sorted by CUB (stable, so ties stay in order of place).
#include "tessera/kernels/permutation/permutation.h"
#include "tessera/kernels/shared/launch.cuh"

#include <cub/device/device_radix_sort.cuh>

namespace tessera::op {
namespace {

__global__ void make_weights(Permutation op, uint64_t* weights, int64_t* places) {
  for (int64_t i = first_item(); i < op.n; i += item_step()) {
    weights[i] = op.weight(static_cast<uint64_t>(i));
    places[i] = i;
  }
}

}  // namespace

void Permutation::cuda(Tensors, Outputs y, Stream stream) const {
  if (count == 0) return;
  const Device on = y[0].device();
  const Tensor buffer = empty({4, n}, DType::i64, on);
  auto* places = buffer.device_data<int64_t>();
  int64_t* sorted = places + n;
  auto* weights = static_cast<uint64_t*>(buffer.raw_device_data()) + 2 * n;
  uint64_t* sorted_weights = weights + n;
  launch(make_weights, blocks_for(n), kThreads, 0, stream, *this, weights, places);
  with_scratch(name, on, [&](void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(scratch, bytes, weights, sorted_weights, places, sorted,
                                           n, 0, 64, handle(stream));
  });
  TESSERA_CUDA_CALL(cudaMemcpyAsync(y[0].raw_device_data(), sorted + begin,
                                    static_cast<size_t>(count) * sizeof(int64_t),
                                    cudaMemcpyDeviceToDevice, handle(stream)));
}

}  // namespace tessera::op

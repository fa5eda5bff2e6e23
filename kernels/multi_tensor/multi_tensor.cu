// SPDX-License-Identifier: Apache-2.0
// CUDA sums of squares and scaling of lists. Squares are summed in f64 by chunk, then over the
// chunks in order.
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/tensor_list.cuh"

namespace tessera::op {
namespace {

template <class T> __global__ void chunk_squares(ListBatch<1> batch, double* partial) {
  auto& shared = block_shared<double[32]>();
  const auto [tensor, begin, end] = batch.place();
  const T* x = static_cast<const T*>(batch.pointers[tensor][0]);
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const double v = static_cast<double>(static_cast<compute_t<T>>(x[i]));
    sum += v * v;
  }
  sum = block_reduce(sum, SumOf{}, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block.
__global__ void sum_chunks(const double* partial, int64_t n, double* y) {
  auto& shared = block_shared<double[32]>();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += partial[i];
  sum = block_reduce(sum, SumOf{}, shared);
  if (threadIdx.x == 0) *y = sum;
}

template <class T> __global__ void scale_chunks(ListBatch<1> batch, const double* factor) {
  const auto [tensor, begin, end] = batch.place();
  if (*factor == 1) return;
  const auto f = static_cast<compute_t<T>>(*factor);
  T* x = static_cast<T*>(batch.pointers[tensor][0]);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) x[i] = scaled(x[i], f);
}

constexpr DType kOrder[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

}  // namespace

void SumSquares::cuda(Tensors in, Outputs y, Stream stream) const {
  std::vector<ListEntry<1>> entries;
  int64_t chunks = 0;
  for (const Tensor& x : in) {
    entries.push_back({row_major(x, stream)});
    chunks += ceil_div(x.numel(), kListChunkOnDevice);
  }
  const Tensor partial = empty({chunks}, DType::f64, y[0].device());
  double* next = partial.device_data<double>();
  for (DType t : kOrder) {
    dispatch<dtypes>(t, [&]<class T>() {
      for_each_batch<1>(entries, t, [&](const ListBatch<1>& batch, unsigned blocks) {
        launch(chunk_squares<T>, blocks, kThreads, 0, stream, batch, next);
        next += blocks;
      });
    });
  }
  launch(sum_chunks, 1, 1024, 0, stream, partial.device_data<double>(), chunks,
         y[0].device_data<double>());
}

void Scale::cuda(Tensors in, Outputs, Stream stream) const {
  const double* factor = in[0].device_data<double>();
  WrittenRows written(stream);
  std::vector<ListEntry<1>> entries;
  for (const Tensor& x : in.subspan(1)) entries.push_back({written.add(x)});
  for (DType t : kOrder) {
    dispatch<dtypes>(t, [&]<class T>() {
      for_each_batch<1>(entries, t, [&](const ListBatch<1>& batch, unsigned blocks) {
        launch(scale_chunks<T>, blocks, kThreads, 0, stream, batch, factor);
      });
    });
  }
  written.done();
}

}  // namespace tessera::op

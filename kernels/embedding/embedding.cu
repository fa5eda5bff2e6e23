// SPDX-License-Identifier: Apache-2.0
// CUDA embedding and its gradient. The gradient links the tokens of each id into a list in token
// order, then a block takes a row of the table and adds along its list: no float atomics, the same
// bits on every run.
#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/launch.cuh"

namespace tessera::op {
namespace {

template <class T>
__global__ void lookup(const T* weight, const int64_t* ids, T* y, int64_t n, int64_t d,
                       int64_t rows, int64_t begin, int64_t vocabulary) {
  for (int64_t i = first_item(); i < n; i += item_step()) {
    const int64_t id = ids[i / d], row = id - begin;
    if (row >= 0 && row < rows) y[i] = weight[row * d + i % d];
    else if (id >= 0 && id < vocabulary) y[i] = static_cast<T>(compute_t<T>(0));
    else y[i] = static_cast<T>(not_a_number<compute_t<T>>());
  }
}

__global__ void clear_lists(unsigned long long* first, int64_t rows, int64_t tokens) {
  for (int64_t i = first_item(); i < rows; i += item_step())
    first[i] = static_cast<unsigned long long>(tokens);
}

// first[row]: the first token of the row's id; next[t]: the next token of t's id; `tokens` where
// there is none.
__global__ void link_tokens(const int64_t* ids, unsigned long long* first, int64_t* next,
                            int64_t tokens, int64_t rows, int64_t begin) {
  for (int64_t t = first_item(); t < tokens; t += item_step()) {
    const int64_t id = ids[t], row = id - begin;
    if (row < 0 || row >= rows) continue;
    atomicMin(&first[row], static_cast<unsigned long long>(t));
    int64_t later = t + 1;
    while (later < tokens && ids[later] != id) ++later;
    next[t] = later;
  }
}

template <class T>
__global__ void add_rows(const T* dy, const unsigned long long* first, const int64_t* next, T* y,
                         int64_t tokens, int64_t rows, int64_t d) {
  using C = compute_t<T>;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
      C sum = 0;
      for (auto t = static_cast<int64_t>(first[row]); t < tokens; t = next[t])
        sum += static_cast<C>(dy[t * d + c]);
      y[row * d + c] = static_cast<T>(sum);
    }
  }
}

}  // namespace

void Embedding::cuda(Tensors in, Outputs y, Stream stream) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  const Tensor weight = row_major(in[0], stream), ids = row_major(in[1], stream);  // (V, D), (...)
  const int64_t rows = weight.shape()[0], d = weight.shape()[1];
  dispatch<dtypes>(weight.dtype(), [&]<class T>() {
    launch(lookup<T>, blocks_for(n), kThreads, 0, stream, weight.device_data<T>(),
           ids.device_data<int64_t>(), y[0].device_data<T>(), n, d, rows, begin,
           vocabulary > 0 ? vocabulary : rows);
  });
}

void EmbeddingBackward::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor dy = row_major(in[0], stream), ids = row_major(in[1], stream);  // (..., D), (...)
  const int64_t tokens = ids.numel(), own = y[0].shape()[0], d = y[0].shape()[1];
  const Tensor first = empty({own}, DType::i64, dy.device()),
               next = empty({tokens}, DType::i64, dy.device());
  auto* heads = reinterpret_cast<unsigned long long*>(first.device_data<int64_t>());
  launch(clear_lists, blocks_for(own), kThreads, 0, stream, heads, own, tokens);
  if (tokens > 0) {
    launch(link_tokens, blocks_for(tokens, 64), 64, 0, stream, ids.device_data<int64_t>(), heads,
           next.device_data<int64_t>(), tokens, own, begin);
  }
  dispatch<dtypes>(dy.dtype(), [&]<class T>() {
    launch(add_rows<T>, blocks_for(own, 1), threads_for(d), 0, stream, dy.device_data<T>(), heads,
           next.device_data<int64_t>(), y[0].device_data<T>(), tokens, own, d);
  });
}

}  // namespace tessera::op

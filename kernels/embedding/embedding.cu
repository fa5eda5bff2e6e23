// SPDX-License-Identifier: Apache-2.0
// CUDA embedding and its gradient, which is an index_add: the same bits on every run.
#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/index_select/index_select.h"
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

// Rows of this piece of the table; ids of other pieces give rows outside it.
__global__ void find_rows(const int64_t* ids, int64_t* rows, int64_t tokens, int64_t begin) {
  for (int64_t t = first_item(); t < tokens; t += item_step()) rows[t] = ids[t] - begin;
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
  const int64_t tokens = ids.numel(), d = y[0].shape()[1];
  Tensor own = alias(ids, {tokens}, {1}, ids.offset());
  if (begin != 0 && tokens > 0) {
    own = empty({tokens}, DType::i64, dy.device());
    launch(find_rows, blocks_for(tokens), kThreads, 0, stream, ids.device_data<int64_t>(),
           own.device_data<int64_t>(), tokens, begin);
  }
  const Tensor all[] = {Tensor(), own, alias(dy, {tokens, d}, {d, 1}, dy.offset())};
  IndexAdd{0, y[0].shape()[0]}.cuda(Tensors(all, 3), y, stream);
}

}  // namespace tessera::op

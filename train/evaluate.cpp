// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/evaluate.h"

#include "tessera/core/context.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/world.h"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

// This rank's part of a sum that the ranks hold partially.
double own(const Tensor& x) { return (x.is_distributed() ? local(x) : x).item(); }

}  // namespace

Evaluation evaluate(const llama3::Model& model, const TextData& data, int64_t seq_len, int64_t rows,
                    int64_t steps) {
  const NoGrad guard;
  World& world = World::current();
  const nn::AttentionMetadata metadata = model.attention_metadata(seq_len);
  const Tensor& weight = model.tok_embeddings.weight;
  const Layout* by_rows =
      weight.is_distributed() ? Layout::of(layout_of(weight)->mesh(), {Shard(0)}) : nullptr;
  const int64_t all_rows = rows * world.size(), first = rows * world.rank();
  const Shape global{all_rows, seq_len};
  const int64_t whole = (data.windows() + all_rows - 1) / all_rows;
  const int64_t batches = steps < 0 ? whole : std::min(steps, whole);

  const Tensor sums = empty({2}, DType::f64);  // loss, tokens
  double* total = sums.data<double>();
  std::fill_n(total, 2, 0.0);
  for (int64_t step = 0; step < batches; ++step) {
    Batch batch = data.batch(step, all_rows, first, rows);
    for (int64_t row = 0; row < rows; ++row) {
      if (step * all_rows + first + row < data.windows()) continue;
      std::fill_n(batch.targets.data<int64_t>() + row * seq_len, seq_len,
                  CrossEntropyOptions{}.ignore_index);
    }
    if (by_rows) {
      batch.tokens = from_local(batch.tokens, by_rows, global);
      batch.targets = from_local(batch.targets, by_rows, global);
    }
    const CrossEntropyResult result = model.loss(batch.tokens, batch.targets, metadata);
    total[0] += own(result.sum);
    total[1] += own(result.count);
  }
  world.group().all_reduce(sums)->wait();
  const double loss = total[0] / total[1];
  return {loss, std::exp(loss), static_cast<int64_t>(total[1])};
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// How the own products share work: the blocks of c are cut into one part for each thread, a grid of
// equal rectangles, and each part gets scratch of its own. Which part an element lies in must not
// change its sum.
#pragma once

#include "tessera/core/context.h"
#include "tessera/core/parallel.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/products/gemm_impl.h"

#include <algorithm>
#include <cstdint>
#include <omp.h>

namespace tessera {

constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

/// A grid over `all_rows` x `all_columns` blocks of c, in parts of `rows` x `columns`.
struct Parts {
  int64_t all_rows = 0, all_columns = 0, rows = 0, columns = 0;
  [[nodiscard]] int64_t across() const { return ceil_div(all_columns, columns); }
  [[nodiscard]] int64_t count() const { return ceil_div(all_rows, rows) * across(); }
};

/// The grid whose largest part costs least: cost(rows, columns) of a part. Of a single product no
/// more parts than threads, and of a batch no more than its share of them; nor more than there are
/// `task` multiply-adds.
template <class Cost>
Parts cut_in_parts(const Gemm& g, int64_t rows, int64_t columns, int64_t task, const Cost& cost) {
  const int64_t threads = Context::current().options.threads;
  const int64_t most = std::clamp<int64_t>(g.m * g.n * g.k / task, 1,
                                           std::max<int64_t>(1, ceil_div(threads, g.batch)));
  Parts best{rows, columns, rows, columns};
  for (int64_t i = 1; i <= most; ++i) {
    const int64_t r = ceil_div(rows, i), c = ceil_div(columns, most / i);
    if (cost(r, c) < cost(best.rows, best.columns)) best.rows = r, best.columns = c;
  }
  return best;
}

/// work(begin, end, words) for ranges of the parts of all products, one product after the other, on
/// the rank's threads; `words` are `scratch` words of the thread's own.
template <class Work>
void share_parts(const Gemm& g, const Parts& parts, int64_t task, int64_t scratch,
                 const Work& work) {
  const int64_t tasks = g.batch * parts.count(), per_task = g.m * g.n * g.k / parts.count();
  // A rank may itself be a thread of a team, with a number beyond those that start here.
  const int64_t rooms = std::min<int64_t>(Context::current().options.threads, tasks);
  const Tensor words = empty({rooms, scratch}, DType::i32);
  int32_t* first = words.data<int32_t>();
  parallel_for(tasks, std::max<int64_t>(1, task / std::max<int64_t>(1, per_task)),
               [&](int64_t begin, int64_t end) {
                 work(begin, end, first + omp_get_thread_num() % rooms * scratch);
               });
}

}  // namespace tessera

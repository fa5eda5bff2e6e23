// SPDX-License-Identifier: Apache-2.0
// How the own products share work: the blocks of c are cut into one part for each thread, a grid of
// equal rectangles, and each part gets scratch of its own. Which part an element lies in must not
// change its sum.
#pragma once

#include "tessera/core/context.h"
#include "tessera/core/parallel.h"
#include "tessera/core/small_vector.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/products/gemm_impl.h"

#include <algorithm>
#include <cstdint>
#include <omp.h>
#include <span>

namespace tessera {

constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

/// A grid over `all_rows` x `all_columns` blocks of c, in parts of `rows` x `columns`.
struct Parts {
  int64_t all_rows = 0, all_columns = 0, rows = 0, columns = 0;
  [[nodiscard]] int64_t across() const { return ceil_div(all_columns, columns); }
  [[nodiscard]] int64_t count() const { return ceil_div(all_rows, rows) * across(); }
};

/// The multiply-adds of a part, at most: a thread's share of a product or, where there are several,
/// a quarter of it, since the last parts of unlike products do not end together.
inline int64_t part_share(std::span<const Gemm> all) {
  int64_t work = 0;
  for (const Gemm& g : all) work += g.batch * g.m * g.n * g.k;
  const int64_t threads = Context::current().options.threads;
  return std::max<int64_t>(1, ceil_div(work, all.size() > 1 ? 4 * threads : threads));
}

/// The grid whose largest part costs least: cost(rows, columns) of a part. No more parts than there
/// are `share` or `task` multiply-adds in one product of the batch.
template <class Cost>
Parts cut_in_parts(const Gemm& g, int64_t rows, int64_t columns, int64_t share, int64_t task,
                   const Cost& cost) {
  const int64_t work = g.m * g.n * g.k;
  const int64_t most = std::clamp<int64_t>(work / task, 1, ceil_div(work, share));
  Parts best{rows, columns, rows, columns};
  for (int64_t i = 1; i <= most; ++i) {
    const int64_t r = ceil_div(rows, i), c = ceil_div(columns, most / i);
    if (cost(r, c) < cost(best.rows, best.columns)) best.rows = r, best.columns = c;
  }
  return best;
}

/// work(job, task) for tasks [begin, end) of all jobs, numbered one job after the other; the first
/// of a job has the number `job.first_task`, and `task` counts from there.
template <class Jobs, class Work>
void each_task(const Jobs& jobs, int64_t begin, int64_t end, const Work& work) {
  const auto* job = std::upper_bound(jobs.begin(), jobs.end(), begin,
                                     [](int64_t at, const auto& j) { return at < j.first_task; }) -
                    1;
  for (int64_t task = begin; task < end; ++task) {
    while (job + 1 != jobs.end() && job[1].first_task <= task) ++job;
    work(*job, task - job->first_task);
  }
}

/// Numbers the parts of the products of all plans as tasks, and calls work(begin, end, words) for
/// ranges of them on the rank's threads; `words` are scratch of the thread's own, as much as the
/// plan that wants most.
template <class Plan, class Work>
void share_parts(SmallVector<Plan, 1>& plans, int64_t task, const Work& work) {
  int64_t tasks = 0, all = 0, scratch = 0;
  for (Plan& p : plans) {
    p.first_task = tasks;
    tasks += p.g.batch * p.parts.count();
    all += p.g.batch * p.g.m * p.g.n * p.g.k;
    scratch = std::max(scratch, p.scratch());
  }
  // A rank may itself be a thread of a team, with a number beyond those that start here.
  const int64_t rooms = std::min<int64_t>(Context::current().options.threads, tasks);
  const Tensor words = empty({rooms, scratch}, DType::i32);
  int32_t* first = words.data<int32_t>();
  parallel_for(tasks, std::max<int64_t>(1, task / std::max<int64_t>(1, all / tasks)),
               [&](int64_t begin, int64_t end) {
                 work(begin, end, first + omp_get_thread_num() % rooms * scratch);
               });
}

}  // namespace tessera

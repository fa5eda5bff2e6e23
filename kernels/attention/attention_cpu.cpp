// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU, forward. Queries go in blocks of up to 64 (16 where few are left) over the
// keys that they see, 64 at a time, with the running maximum and sum of each row (Dao et al.,
// FlashAttention-2, 2023). A task is one head, or a part of its blocks where heads are few; its
// keys are first copied to padded f32. One query against a cache of keys is a case of its own: the
// heads of a group are its rows, and the keys are cut into parts that are joined at the end.
// With documents, blocks of queries and of keys start where documents do. So a row has the same
// bits on every run and thread count, and in a document alone and among others. Masks that are no
// ranges go by the list of blocks that a block of queries sees.
#include "tessera/kernels/attention/attention_paths_impl.h"
#include "tessera/kernels/attention/attention_plan_impl.h"

#include <omp.h>

namespace tessera::op {
namespace attention {
namespace {

// The running maximum and sum of each row over the scores of `keys` more keys, which become
// weights; rescale: what earlier sums are multiplied by.
template <int64_t width, class C>
TESSERA_INLINE void online_softmax(C* scores, int64_t keys, C* row_max, C* row_sum, C* rescale) {
  alignas(64) C top[width], sum[width];
  for (int64_t i = 0; i < width; ++i) top[i] = row_max[i];
  for (int64_t j = 0; j < keys; ++j) {
    const C* s = scores + j * width;
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) top[i] = s[i] > top[i] ? s[i] : top[i];
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < width; ++i) {
    // A row that has seen nothing keeps -inf; subtracting 0 there gives exp(-inf) = 0 instead of
    // NaN.
    const C base = top[i] == -kInf<C> ? C(0) : top[i];
    rescale[i] = vmath::exp(row_max[i] - base);
    row_max[i] = top[i];
    top[i] = base;
    sum[i] = 0;
  }
  for (int64_t j = 0; j < keys; ++j) {
    C* s = scores + j * width;
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) {
      const C e = weight(s[i] - top[i]);
      s[i] = e;
      sum[i] += e;
    }
  }
  for (int64_t i = 0; i < width; ++i) row_sum[i] = row_sum[i] * rescale[i] + sum[i];
}

// acc, row_max and row_sum of `rows` over the keys [first_key, end_key) that they see. Of ranges,
// blocks of keys start at `origin` and every kBlock keys from there.
template <int64_t width, class Path>
TESSERA_INLINE void forward_block(Path& path, const SeenKeys& seen, const Rows& rows,
                                  int64_t first_key, int64_t end_key) {
  using C = typename Path::C;
  for (int64_t i = 0; i < width; ++i) {
    path.row_max[i] = -kInf<C>;
    path.row_sum[i] = 0;
  }
  bool fresh = true;
  const auto add = [&](int64_t key, int64_t keys, const Hidden& hidden) TESSERA_LAMBDA {
    path.need(key, keys);
    path.template score<width>(key, keys);
    if (path.p.soft_cap != 0)
      cap_scores(path.scores, keys * width, static_cast<C>(path.p.soft_cap));
    hidden.template hide<width>(path.scores, key, keys, rows.rows);
    alignas(64) C rescale[width];
    online_softmax<width>(path.scores, keys, path.row_max, path.row_sum, rescale);
    path.template add_values<width>(key, keys, rows.rows, fresh ? nullptr : rescale);
    fresh = false;
  };
  if (seen.in_ranges()) {
    const KeyRange* ranges = seen.ranges(rows.batch) + rows.query;
    std::array<KeyRange, kBlock> same;
    if (rows.packed) {
      same.fill(*ranges);
      ranges = same.data();
    }
    const BlockRange range(ranges, rows.rows);
    const int64_t low = std::max(range.any.first, first_key),
                  end = std::min(range.any.last + 1, end_key),
                  origin = std::min(seen.start(rows.batch, rows.query), low);
    for (int64_t next = low - (low - origin) % kBlock; low < end && next < end; next += kBlock) {
      // A document may start before the keys of this part do, and end there too.
      const int64_t key = std::max({next, first_key, int64_t{0}});
      const int64_t keys = std::min(next + kBlock, end) - key;
      add(key, keys, Hidden{range.sees_all(key, keys) ? nullptr : ranges});
    }
  } else {
    for_blocks(seen, rows, end_key, first_key, end_key, add);
  }
  path.template finish<width>();
}

// The keys that these blocks of queries see, from the first to the last.
KeyRange keys_of_blocks(const SeenKeys& seen, int64_t batch, std::span<const RowBlock> blocks) {
  const int64_t first = blocks.front().row, end = blocks.back().row + blocks.back().rows;
  if (seen.in_ranges()) {
    const KeyRange any = BlockRange(seen.ranges(batch) + first, end - first).any;
    // Blocks of keys may start before the first key that is seen.
    return {std::max<int64_t>(0, any.first - kBlock + 1), any.last};
  }
  KeyRange any{0, -1};
  for (const RowBlock& b : blocks) {
    for (const SeenBlock& block : seen.blocks(batch, b.row))
      any.last = std::max(any.last, (block.block + 1) * kBlock - 1);
  }
  return any;
}

// Divides by the sum and gives the row's log-sum-exp. A row that sees nothing is 0, even where an
// infinity lies among the hidden values (0 * inf).
template <class C> TESSERA_INLINE C finish_row(C* row, int64_t n, C top, C sum) {
  if (sum == 0) {
    for (int64_t j = 0; j < n; ++j) row[j] = 0;
    return -kInf<C>;
  }
  const C inverse = C(1) / sum;  // a sum of NaN stays one
  for (int64_t j = 0; j < n; ++j) row[j] *= inverse;
  return top + static_cast<C>(std::log(sum));
}

// Parts of the keys to the whole: (splits, rows, width + 2) of acc, maximum and sum; the first
// becomes the result.
template <class C> void join_splits(C* parts, int64_t splits, int64_t n, int64_t width) {
  const int64_t item = width + 2;
  for (int64_t i = 0; i < n; ++i) {
    C* row = parts + i * item;
    C top = -kInf<C>, sum = 0;
    for (int64_t s = 0; s < splits; ++s) top = std::max(top, row[s * n * item + width]);
    for (int64_t s = 0; s < splits; ++s) {
      const C* part = row + s * n * item;
      const C share = part[width] == -kInf<C> ? C(0) : std::exp(part[width] - top);
      sum += part[width + 1] * share;
      for (int64_t j = 0; j < width; ++j) row[j] = (s ? row[j] : C(0)) + part[j] * share;
    }
    row[width] = finish_row(row, width, top, sum);
  }
}

template <class Path> void forward(const Attention& op, Tensors in, Outputs y) {
  using C = typename Path::C;
  const Problem p(op, in, micro::kLanes<C>);
  const SeenKeys seen(op, p.mask_sizes(), in);
  const Plan plan(p, seen);
  const bool inner = op.heads_inner;
  const Operand<C> q(in[0], inner), k(in[1], inner), v(in[2], inner), o(y[0], inner);
  // From one row of a task to the next.
  const int64_t q_row = plan.packed ? q.h : q.t, o_row = plan.packed ? o.h : o.t;
  const int64_t heads = plan.packed ? p.group : 1;
  C* lse = y[1].data<C>();
  const int64_t room = micro::round_up(Path::room(p, plan.panel), 16);
  const int threads = Context::current().options.threads;
  const Tensor scratch = empty({threads, room}, dtype_of<C>);
  const int64_t part_item = p.padded_dv + 2, parts = p.b * p.h_kv * plan.splits;
  const Tensor partial = empty({plan.splits > 1 ? parts : 0, p.group, part_item}, dtype_of<C>);
  C *all_scratch = scratch.data<C>(), *all_parts = partial.data<C>();
  parallel_for(static_cast<int64_t>(plan.tasks.size()), 1, [&](int64_t number, int64_t) {
    const Task& task = plan.tasks[static_cast<size_t>(number)];
    const RowBlock* blocks = plan.blocks_of(task.batch).data() + task.block;
    const int64_t head = task.head * heads, kv_head = head / p.group;
    C* at = all_scratch + omp_get_thread_num() % threads * room;
    simd([&]() TESSERA_LAMBDA {
      const KeyHead<C> keys{k, v, k.head(task.batch, kv_head), v.head(task.batch, kv_head)};
      Path path(p, keys, plan.panel, at);
      if (task.blocks > 1) {
        const RowBlock one{0, 1};
        const KeyRange any = keys_of_blocks(
            seen, task.batch,
            plan.packed ? std::span(&one, 1) : std::span(blocks, static_cast<size_t>(task.blocks)));
        const int64_t end = std::min(any.last + 1, p.s);
        if (any.first < end) path.need(any.first, end - any.first);
      }
      for (const RowBlock* block = blocks; block < blocks + task.blocks; ++block) {
        const int64_t row = block->row, n = block->rows;
        const Rows rows{task.batch, plan.packed ? 0 : row, n, plan.packed};
        const std::byte* q_at = q.head(task.batch, head) + row * q_row;
        if (n <= kNarrow) {
          path.template begin<kNarrow>(q, q_at, q_row, n);
          forward_block<kNarrow>(path, seen, rows, task.first_key, task.end_key);
        } else {
          path.template begin<kBlock>(q, q_at, q_row, n);
          forward_block<kBlock>(path, seen, rows, task.first_key, task.end_key);
        }
        if (plan.splits > 1) {
          const int64_t part_of_keys = (task.batch * p.h_kv + task.head) * plan.splits + task.split;
          C* part = all_parts + part_of_keys * p.group * part_item;
          for (int64_t i = 0; i < n; ++i) {
            C* to = part + (row + i) * part_item;
            for (int64_t j = 0; j < p.padded_dv; ++j) to[j] = path.acc[i * p.padded_dv + j];
            to[p.padded_dv] = path.row_max[i], to[p.padded_dv + 1] = path.row_sum[i];
          }
          continue;
        }
        for (int64_t i = 0; i < n; ++i) {
          lse[(task.batch * p.h + head) * p.t + row + i] =
              finish_row(path.acc + i * p.padded_dv, p.dv, path.row_max[i], path.row_sum[i]);
        }
        o.save(path.acc, p.padded_dv, n, p.dv, o.head(task.batch, head) + row * o_row, o_row, o.d);
      }
    });
  });
  if (plan.splits == 1) return;
  for (int64_t i = 0; i < p.b * p.h_kv; ++i) {
    C* result = all_parts + i * plan.splits * p.group * part_item;
    const int64_t batch = i / p.h_kv, head = i % p.h_kv * p.group;
    join_splits(result, plan.splits, p.group, p.padded_dv);
    o.save(result, part_item, p.group, p.dv, o.head(batch, head), o.h, o.d);
    for (int64_t r = 0; r < p.group; ++r)
      lse[batch * p.h + head + r] = result[r * part_item + p.padded_dv];
  }
}

}  // namespace
}  // namespace attention

void Attention::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0 && y[1].numel() == 0) return;
  using namespace attention;
  // A single query reads each key once: turning values into columns would cost more than it saves.
  const int time = heads_inner ? 1 : 2;
  const bool reused = in[0].shape()[time] > 1 || in[1].shape()[time] <= kBlock;
  const bool tiles = in[0].dtype() == DType::bf16 && reused && micro::has_tiles();
  if (tiles) forward<TilePath>(*this, in, y);
  else if (in[0].dtype() == DType::f64) forward<VectorPath<double>>(*this, in, y);
  else forward<VectorPath<float>>(*this, in, y);
}

}  // namespace tessera::op

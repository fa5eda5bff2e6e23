// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU, forward. Queries go in blocks of up to 64 (16 where few are left) over the
// keys that they see, 64 at a time, with the running maximum and sum of each row (Dao et al.,
// FlashAttention-2, 2023). A task is one head, or a part of its blocks where heads are few; its
// keys are first copied to padded f32. One query against a cache of keys is a case of its own: the
// heads of a group are its rows, and the keys are cut into parts that are joined at the end.
// With documents, blocks of queries and of keys start where documents do. So a row has the same
// bits on every run and thread count, and in a document alone and among others.
#include "tessera/kernels/attention/attention_cpu_impl.h"

#include <omp.h>

namespace tessera::op {
namespace attention {
namespace {

constexpr int64_t kNarrow = 16;

// Throws before anything is written.
void check_positions(const Attention& op, const Problem& p, const Tensor& positions) {
  const AttentionMask mask(op, p.s);
  const int64_t row = positions.strides()[0], step = positions.strides()[1];
  for (int64_t b = 0; b < p.b; ++b) {
    const int64_t* at = positions.data<int64_t>() + b * row;
    for (int64_t i = 0; i < p.t; ++i) {
      const int64_t position = at[i * step];
      const bool next = i == 0 || position == at[(i - 1) * step] + 1;
      if (position == 0 ? mask.possible(i, 0) : next && mask.possible(i, position)) continue;
      const int64_t most = i + op.offset + op.key_start;
      if (!mask.possible(i, position)) {
        fail<ValueError>(op.name, "positions[", b, "][", i, "] of ", positions.meta(), " is ",
                         position, ": expected 0, where a document starts, to ", most,
                         ", a start at the first key");
      }
      fail<ValueError>(op.name, "positions[", b, "][", i, "] of ", positions.meta(), " is ",
                       position, " after ", at[(i - 1) * step],
                       ": expected one more, or 0, where a document starts");
    }
  }
}

struct RowBlock {
  int64_t row = 0, rows = 0;
};

// A part of one head's row blocks (of one key head's, if its group is folded into rows) over a part
// of the keys.
struct Task {
  int64_t batch, head, block, blocks, split, first_key, end_key;
};

struct Plan {
  bool folded = false;  // one query: row r is query head r of the group
  int64_t splits = 1, panel = kBlock;
  std::vector<std::vector<RowBlock>> blocks;  // one list, or one for each batch
  std::vector<Task> tasks;

  Plan(const Problem& p, const RowRanges& ranges) {
    folded = p.t == 1;
    for (int64_t b = 0; b < (ranges.documents() ? p.b : 1); ++b) {
      std::vector<RowBlock>& list = blocks.emplace_back();
      for (int64_t i = 0, rows = folded ? p.group : p.t; i < rows;) {
        const bool fresh = list.empty() || list.back().rows == kBlock ||
                           (!folded && ranges.start(b, i) != ranges.start(b, i - 1));
        if (fresh) list.push_back({i, 0});
        ++list.back().rows, ++i;
      }
    }
    const int64_t heads = folded ? p.h_kv : p.h;
    if (folded && p.b * heads < 16)
      splits = std::clamp<int64_t>(micro::round_up(p.s, 512) / 512, 1, 16);
    const int64_t part = micro::round_up((p.s + splits - 1) / splits, kBlock);
    for (int64_t b = 0; b < p.b; ++b) {
      const auto n = static_cast<int64_t>(blocks_of(b).size());
      // Few heads: their query blocks become tasks of their own.
      const int64_t cuts = p.b * heads >= 8 ? 1 : std::min<int64_t>(n, 4);
      const int64_t per_cut = cuts ? (n + cuts - 1) / cuts : 0;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t block = 0; block < n; block += per_cut) {
          const int64_t count = std::min(per_cut, n - block);
          for (int64_t s = 0; s < splits; ++s)
            tasks.push_back({b, h, block, count, s, s * part, std::min((s + 1) * part, p.s)});
          if (count > 1) panel = std::max(panel, p.s);
        }
      }
    }
  }
  [[nodiscard]] const std::vector<RowBlock>& blocks_of(int64_t batch) const {
    return blocks[blocks.size() > 1 ? static_cast<size_t>(batch) : 0];
  }
};

// Keys and values of one head as padded rows, loaded when they are needed.
template <class C> struct KeyPanel {
  const Operand<C>&k, &v;
  const std::byte *k_head, *v_head;
  int64_t d, padded_d;
  C *keys, *values;
  int64_t first = 0, end = 0;

  void need(int64_t key, int64_t n) {
    if (key >= first && key + n <= end) return;
    first = key, end = key + n;
    k.load(k_head + key * k.t, k.t, k.d, n, d, padded_d, keys);
    v.load(v_head + key * v.t, v.t, v.d, n, d, padded_d, values);
  }
  [[nodiscard]] const C* key(int64_t i) const { return keys + (i - first) * padded_d; }
  [[nodiscard]] const C* value(int64_t i) const { return values + (i - first) * padded_d; }
};

template <class C> struct BlockScratch {
  C *queries, *q_t, *scores, *acc, *row_max, *row_sum;
  static int64_t room(const Problem& p) { return kBlock * (2 * p.padded_d + p.d + kBlock + 2); }
  TESSERA_INLINE BlockScratch(C* at, const Problem& p) {
    queries = at, acc = queries + kBlock * p.padded_d, q_t = acc + kBlock * p.padded_d;
    scores = q_t + kBlock * p.d, row_max = scores + kBlock * kBlock, row_sum = row_max + kBlock;
  }
};

// acc, row_max and row_sum of `rows` queries over the keys [first_key, end_key) that they see;
// blocks of keys start at `origin` and every kBlock keys from there.
template <int64_t width, class C>
TESSERA_INLINE void forward_block(const Problem& p, const BlockScratch<C>& w, KeyPanel<C>& panel,
                                  const KeyRange* ranges, int64_t rows, int64_t origin,
                                  int64_t first_key, int64_t end_key) {
  transpose_block<width>(w.queries, rows, p.d, p.padded_d, static_cast<C>(p.scale), w.q_t);
  for (int64_t i = 0; i < width; ++i) {
    w.row_max[i] = -kInf<C>;
    w.row_sum[i] = 0;
  }
  const int64_t stored = std::min(width, micro::round_up(rows, 4));
  for (int64_t i = 0; i < stored * p.padded_d; ++i) w.acc[i] = 0;
  const BlockRange seen(ranges, rows);
  const int64_t low = std::max(seen.any.first, first_key),
                end = std::min(seen.any.last + 1, end_key);
  if (low >= end) return;
  C* scores = w.scores;
  bool fresh = true;
  for (int64_t next = low - (low - origin) % kBlock; next < end; next += kBlock) {
    // A document may start before the keys of this part do.
    const int64_t key = std::max({next, first_key, int64_t{0}});
    const int64_t keys = std::min(next + kBlock, end) - key;
    panel.need(key, keys);
    micro::block<C>(keys, width, p.d, panel.key(key), p.padded_d, 1, w.q_t, width, scores, width,
                    false);
    if (!seen.sees_all(key, keys)) mask_block<width>(scores, key, keys, ranges, rows);
    alignas(64) C top[width], shrink[width], sum[width];
    for (int64_t i = 0; i < width; ++i) top[i] = w.row_max[i];
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
      shrink[i] = vmath::exp(w.row_max[i] - base);
      w.row_max[i] = top[i];
      top[i] = base;
      sum[i] = 0;
    }
    for (int64_t j = 0; j < keys; ++j) {
      C* s = scores + j * width;
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) {
        const C e = vmath::exp(s[i] - top[i]);
        s[i] = e;
        sum[i] += e;
      }
    }
    for (int64_t i = 0; i < width; ++i) w.row_sum[i] = w.row_sum[i] * shrink[i] + sum[i];
    if (!fresh) {
      for (int64_t i = 0; i < stored; ++i) {
        C* row = w.acc + i * p.padded_d;
        for (int64_t j = 0; j < p.padded_d; ++j) row[j] *= shrink[i];
      }
    }
    fresh = false;
    micro::block<C>(stored, p.padded_d, keys, scores, 1, width, panel.value(key), p.padded_d, w.acc,
                    p.padded_d, true);
  }
}

// Divides by the sum and gives the row's log-sum-exp.
template <class C> TESSERA_INLINE C finish_row(C* row, int64_t n, C top, C sum) {
  const C inverse = sum > 0 ? C(1) / sum : C(0);
  for (int64_t j = 0; j < n; ++j) row[j] *= inverse;
  return sum > 0 ? top + static_cast<C>(std::log(sum)) : -kInf<C>;
}

// Parts of the keys to the whole: (splits, rows, padded_d + 2) of acc, maximum and sum; the first
// becomes the result.
template <class C> void join_splits(C* parts, int64_t splits, int64_t n, int64_t padded_d) {
  const int64_t item = padded_d + 2;
  for (int64_t i = 0; i < n; ++i) {
    C* row = parts + i * item;
    C top = -kInf<C>, sum = 0;
    for (int64_t s = 0; s < splits; ++s) top = std::max(top, row[s * n * item + padded_d]);
    for (int64_t s = 0; s < splits; ++s) {
      const C* part = row + s * n * item;
      const C share = part[padded_d] == -kInf<C> ? C(0) : std::exp(part[padded_d] - top);
      sum += part[padded_d + 1] * share;
      for (int64_t j = 0; j < padded_d; ++j) row[j] = (s ? row[j] : C(0)) + part[j] * share;
    }
    row[padded_d] = finish_row(row, padded_d, top, sum);
  }
}

template <class C> void forward(const Attention& op, Tensors in, Outputs y) {
  const Problem p(op, in, micro::kLanes<C>);
  const Tensor positions = in.size() > 3 ? in[3] : Tensor();
  if (positions.defined()) check_positions(op, p, positions);
  const RowRanges ranges(op, p, positions);
  const Plan plan(p, ranges);
  const bool inner = op.heads_inner;
  const Operand<C> q(in[0], inner), k(in[1], inner), v(in[2], inner), o(y[0], inner);
  // From one row of a task to the next.
  const int64_t q_row = plan.folded ? q.h : q.t, o_row = plan.folded ? o.h : o.t;
  const int64_t heads = plan.folded ? p.group : 1;
  C* lse = y[1].data<C>();
  const int64_t room = micro::round_up(2 * plan.panel * p.padded_d + BlockScratch<C>::room(p), 16);
  const int threads = Context::current().options.threads;
  const Tensor scratch = empty({threads, room}, dtype_of<C>);
  const int64_t part_item = p.padded_d + 2, parts = p.b * p.h_kv * plan.splits;
  const Tensor partial = empty({plan.splits > 1 ? parts : 0, p.group, part_item}, dtype_of<C>);
  C *all_scratch = scratch.data<C>(), *all_parts = partial.data<C>();
  parallel_for(static_cast<int64_t>(plan.tasks.size()), 1, [&](int64_t number, int64_t) {
    const Task& task = plan.tasks[static_cast<size_t>(number)];
    const RowBlock* blocks = plan.blocks_of(task.batch).data() + task.block;
    const KeyRange* seen = ranges.of(task.batch);
    const int64_t head = task.head * heads, kv_head = head / p.group;
    C* at = all_scratch + omp_get_thread_num() % threads * room;
    simd([&]() TESSERA_LAMBDA {
      const BlockScratch<C> w(at + 2 * plan.panel * p.padded_d, p);
      KeyPanel<C> panel{
          k,          v,  k.head(task.batch, kv_head), v.head(task.batch, kv_head), p.d,
          p.padded_d, at, at + plan.panel * p.padded_d};
      if (task.blocks > 1) {
        const RowBlock& last = blocks[task.blocks - 1];
        const int64_t queries = plan.folded ? 1 : last.row + last.rows - blocks->row;
        const KeyRange any = BlockRange(seen + (plan.folded ? 0 : blocks->row), queries).any;
        // Blocks of keys may start before the first key that is seen.
        const int64_t first = std::max<int64_t>(0, any.first - kBlock + 1);
        if (any.first <= any.last) panel.need(first, any.last + 1 - first);
      }
      for (const RowBlock* block = blocks; block < blocks + task.blocks; ++block) {
        const int64_t row = block->row, n = block->rows, query = plan.folded ? 0 : row;
        const int64_t origin = ranges.start(task.batch, query);
        q.load(q.head(task.batch, head) + row * q_row, q_row, q.d, n, p.d, p.padded_d, w.queries);
        // The rows of a folded group are one query.
        std::array<KeyRange, kBlock> same;
        const KeyRange* range = seen + query;
        if (plan.folded) {
          same.fill(*range);
          range = same.data();
        }
        if (n <= kNarrow)
          forward_block<kNarrow>(p, w, panel, range, n, origin, task.first_key, task.end_key);
        else forward_block<kBlock>(p, w, panel, range, n, origin, task.first_key, task.end_key);
        if (plan.splits > 1) {
          const int64_t part_of_keys = (task.batch * p.h_kv + task.head) * plan.splits + task.split;
          C* part = all_parts + part_of_keys * p.group * part_item;
          for (int64_t i = 0; i < n; ++i) {
            C* to = part + (row + i) * part_item;
            for (int64_t j = 0; j < p.padded_d; ++j) to[j] = w.acc[i * p.padded_d + j];
            to[p.padded_d] = w.row_max[i], to[p.padded_d + 1] = w.row_sum[i];
          }
          continue;
        }
        for (int64_t i = 0; i < n; ++i) {
          lse[(task.batch * p.h + head) * p.t + row + i] =
              finish_row(w.acc + i * p.padded_d, p.d, w.row_max[i], w.row_sum[i]);
        }
        o.save(w.acc, p.padded_d, n, p.d, o.head(task.batch, head) + row * o_row, o_row, o.d);
      }
    });
  });
  if (plan.splits == 1) return;
  for (int64_t i = 0; i < p.b * p.h_kv; ++i) {
    C* result = all_parts + i * plan.splits * p.group * part_item;
    const int64_t batch = i / p.h_kv, head = i % p.h_kv * p.group;
    join_splits(result, plan.splits, p.group, p.padded_d);
    o.save(result, part_item, p.group, p.d, o.head(batch, head), o.h, o.d);
    for (int64_t r = 0; r < p.group; ++r)
      lse[batch * p.h + head + r] = result[r * part_item + p.padded_d];
  }
}

}  // namespace
}  // namespace attention

void Attention::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0 && y[1].numel() == 0) return;
  in[0].dtype() == DType::f64 ? attention::forward<double>(*this, in, y)
                              : attention::forward<float>(*this, in, y);
}

}  // namespace tessera::op

// SPDX-License-Identifier: Apache-2.0
// Attention's gradient on the CPU. A task is one key head with its group of query heads; its keys
// are first copied to padded f32, which costs 1/T of the work and serves every dtype and stride. It
// goes over blocks of queries, and for each over the blocks of keys that they see, twice where
// delta is a sum over all of them: the weights are kept in between. Sums run in a fixed order: the
// same bits on every run and thread count. With documents, blocks of queries and of keys start
// where documents do: a document has the same bits alone and among others, and no infinity of
// another reaches it, as a product of zero would let it. Of a single query, the heads of a group
// are the rows of one block.
#include "tessera/kernels/attention/attention_plan_impl.h"
#include "tessera/kernels/products/micro_tiles_impl.h"

#include <omp.h>

namespace tessera::op {
namespace attention {
namespace {

// Scratch of one task.
template <class C> struct BackwardScratch {
  C *k, *dk, *v, *dv;                      // (S, padded d) twice, (S, padded dv) twice
  C *q, *dq, *dout, *out;                  // (kBlock, padded d) twice, (kBlock, padded dv) twice
  C *q_t, *dout_t, *p, *ds, *lse, *delta;  // (d, width), (dv, width), (keys, width) twice, (width)
  C* slopes;                               // (keys, width); null if scores are not capped
  static int64_t room(const Problem& z) {
    return 2 * (z.s + kBlock) * (z.padded_d + z.padded_dv) + kBlock * (z.d + z.dv + 2 * z.s + 2) +
           (z.soft_cap != 0 ? kBlock * z.s : 0);
  }
  TESSERA_INLINE BackwardScratch(C* at, const Problem& z) {
    const int64_t rows = z.s + kBlock;
    k = at, dk = k + z.s * z.padded_d, q = dk + z.s * z.padded_d, dq = q + kBlock * z.padded_d;
    v = at + 2 * rows * z.padded_d, dv = v + z.s * z.padded_dv;
    dout = dv + z.s * z.padded_dv, out = dout + kBlock * z.padded_dv;
    p = v + 2 * rows * z.padded_dv, ds = p + z.s * kBlock, lse = ds + z.s * kBlock;
    delta = lse + kBlock, q_t = delta + kBlock, dout_t = q_t + kBlock * z.d;
    slopes = z.soft_cap != 0 ? dout_t + kBlock * z.dv : nullptr;
  }
};

// What a task reads and writes besides its scratch.
template <class C> struct BackwardOperands {
  Operand<C> q, k, v, o, dout, dq, dk, dv;
  const Tensor &lse, &dlse;
  bool has_dlse, all_keys;
};

// p and dp of a block of queries against keys, some of which its last rows may not see.
template <int64_t width, class C>
TESSERA_INLINE void block_weights(const Problem& z, const BackwardScratch<C>& w, int64_t key,
                                  int64_t keys, const Hidden& hidden, int64_t rows) {
  C *p = w.p + key * width, *dp = w.ds + key * width;
  micro::block<C>(keys, width, z.d, w.k + key * z.padded_d, z.padded_d, 1, w.q_t, width, p, width,
                  false);
  micro::block<C>(keys, width, z.dv, w.v + key * z.padded_dv, z.padded_dv, 1, w.dout_t, width, dp,
                  width, false);
  if (w.slopes) cap_scores(p, keys * width, static_cast<C>(z.soft_cap), w.slopes + key * width);
  hidden.hide<width>(p, key, keys, rows);
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i)
      p[j * width + i] = weight(std::min(p[j * width + i] - w.lse[i], C(88)));
  }
}

// The gradients of these keys and what they add to dq; p and dp become anything.
template <int64_t width, class C>
TESSERA_INLINE void block_gradient(const Problem& z, const BackwardScratch<C>& w, int64_t key,
                                   int64_t keys, int64_t rows) {
  const C scale = static_cast<C>(z.scale);
  const int64_t at = key * z.padded_d, v_at = key * z.padded_dv;
  C *p = w.p + key * width, *ds = w.ds + key * width;
  score_gradients<width>(p, ds, keys, w.delta, scale, w.slopes ? w.slopes + key * width : nullptr);
  micro::block<C>(keys, z.padded_dv, rows, p, width, 1, w.dout, z.padded_dv, w.dv + v_at,
                  z.padded_dv, true);
  micro::block<C>(keys, z.padded_d, rows, ds, width, 1, w.q, z.padded_d, w.dk + at, z.padded_d,
                  true);
  micro::block<C>(rows, z.padded_d, keys, ds, 1, width, w.k + at, z.padded_d, w.dq, z.padded_d,
                  true);
}

template <int64_t width, class C>
TESSERA_INLINE void query_gradient(const Problem& z, const BackwardScratch<C>& w,
                                   const BackwardOperands<C>& x, int64_t batch, int64_t head,
                                   const RowBlock& block, const SeenKeys& seen,
                                   const std::vector<KeyBlock>& keys) {
  const int64_t n = block.rows;
  const bool packed = z.t == 1;
  const auto step = [&](const Operand<C>& y) { return packed ? y.h : y.t; };
  const auto at = [&](const Operand<C>& y) { return y.head(batch, head) + block.row * step(y); };
  const auto load = [&](const Operand<C>& y, int64_t d, int64_t padded, C* to) {
    y.load(at(y), step(y), y.d, n, d, padded, to);
  };
  load(x.q, z.d, z.padded_d, w.q);
  load(x.dout, z.dv, z.padded_dv, w.dout);
  if (!x.all_keys) load(x.o, z.dv, z.padded_dv, w.out);
  transpose_block<width>(w.q, n, z.d, z.padded_d, static_cast<C>(z.scale), w.q_t);
  transpose_block<width>(w.dout, n, z.dv, z.padded_dv, C(1), w.dout_t);
  const Shape &ls = x.lse.strides(), &ds = x.dlse.strides();
  const C *lse = x.lse.template data<C>() + batch * ls[0] + head * ls[1],
          *dlse = x.dlse.template data<C>() + batch * ds[0] + head * ds[1];
  const int64_t lse_step = ls[packed ? 1 : 2], dlse_step = ds[packed ? 1 : 2];
  for (int64_t i = 0; i < width; ++i) {
    // +inf makes the probabilities of rows that do not exist, or see nothing, exp(-inf) = 0.
    w.lse[i] = kInf<C>;
    w.delta[i] = 0;
    if (i >= n) continue;
    const C l = lse[(block.row + i) * lse_step];
    if (l != -kInf<C>) w.lse[i] = l;
    if (!x.all_keys)
      w.delta[i] = rows::dot(w.dout + i * z.padded_dv, w.out + i * z.padded_dv, z.dv);
    if (x.has_dlse) w.delta[i] -= dlse[(block.row + i) * dlse_step];
  }
  for (int64_t i = 0; i < n * z.padded_d; ++i) w.dq[i] = 0;
  const Rows rows{batch, packed ? 0 : block.row, n, packed};
  const auto probabilities = [&](int64_t key, int64_t count, const Hidden& hidden) TESSERA_LAMBDA {
    block_weights<width>(z, w, key, count, hidden, n);
  };
  const auto finish = [&](int64_t key, int64_t count, const Hidden&)
                          TESSERA_LAMBDA { block_gradient<width>(z, w, key, count, n); };
  if (x.all_keys) {
    for_seen(seen, rows, keys, z.s,
             [&](int64_t key, int64_t count, const Hidden& hidden) TESSERA_LAMBDA {
               probabilities(key, count, hidden);
               add_deltas<width>(w.p + key * width, w.ds + key * width, count, w.delta);
             });
    for_seen(seen, rows, keys, z.s, finish);
  } else {
    for_seen(seen, rows, keys, z.s,
             [&](int64_t key, int64_t count, const Hidden& hidden) TESSERA_LAMBDA {
               probabilities(key, count, hidden);
               finish(key, count, hidden);
             });
  }
  x.dq.save(w.dq, z.padded_d, n, z.d, at(x.dq), step(x.dq), x.dq.d);
}

template <class C> void backward(const AttentionBackward& op, Tensors in, Outputs y) {
  const Problem z(op, in, micro::kLanes<C>);
  const SeenKeys seen(op, z.mask_sizes(), in);
  std::vector<std::vector<RowBlock>> blocks;
  std::vector<std::vector<KeyBlock>> keys;
  for (int64_t b = 0; b < seen.lists(); ++b) {
    blocks.push_back(z.t == 1 ? even_blocks(z.group) : row_blocks(seen, b, z.t));
    keys.push_back(key_blocks(z, seen, b));
  }
  const bool inner = op.heads_inner, has_dlse = in.size() > 6 && in[6].defined();
  const auto operand = [&](const Tensor& t) { return Operand<C>(t, inner); };
  const BackwardOperands<C> x{
      operand(in[0]), operand(in[1]), operand(in[2]), operand(in[3]), operand(in[5]),
      operand(y[0]),  operand(y[1]),  operand(y[2]),  in[4],          has_dlse ? in[6] : in[4],
      has_dlse,       op.all_keys};
  const int64_t room = micro::round_up(BackwardScratch<C>::room(z), 16);
  const int threads = Context::current().options.threads;
  const Tensor scratch = empty({threads, room}, dtype_of<C>);
  C* all_scratch = scratch.data<C>();
  parallel_for(z.b * z.h_kv, 1, [&](int64_t task, int64_t) {
    const int64_t batch = task / z.h_kv, kv_head = task % z.h_kv;
    const size_t list = seen.list_of(batch);
    C* at = all_scratch + omp_get_thread_num() % threads * room;
    simd([&]() TESSERA_LAMBDA {
      const BackwardScratch<C> w(at, z);
      x.k.load(x.k.head(batch, kv_head), x.k.t, x.k.d, z.s, z.d, z.padded_d, w.k);
      x.v.load(x.v.head(batch, kv_head), x.v.t, x.v.d, z.s, z.dv, z.padded_dv, w.v);
      for (int64_t i = 0; i < z.s * z.padded_d; ++i) w.dk[i] = 0;
      for (int64_t i = 0; i < z.s * z.padded_dv; ++i) w.dv[i] = 0;
      const int64_t first = kv_head * z.group, heads = z.t == 1 ? 1 : z.group;
      for (int64_t head = first; head < first + heads; ++head) {
        for (const RowBlock& block : blocks[list]) {
          if (block.rows <= kNarrow)
            query_gradient<kNarrow>(z, w, x, batch, head, block, seen, keys[list]);
          else query_gradient<kBlock>(z, w, x, batch, head, block, seen, keys[list]);
        }
      }
      x.dk.save(w.dk, z.padded_d, z.s, z.d, x.dk.head(batch, kv_head), x.dk.t, x.dk.d);
      x.dv.save(w.dv, z.padded_dv, z.s, z.dv, x.dv.head(batch, kv_head), x.dv.t, x.dv.d);
    });
  });
}

}  // namespace
}  // namespace attention

void AttentionBackward::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0 && y[1].numel() == 0 && y[2].numel() == 0) return;
  using namespace attention;
  // As in the forward op: a single query uses each key once.
  const int time = heads_inner ? 1 : 2;
  const bool reused = in[0].shape()[time] > 1 || in[1].shape()[time] <= kBlock;
  if (in[0].dtype() == DType::bf16 && reused && micro::has_tiles()) backward_by_tiles(*this, in, y);
  else if (in[0].dtype() == DType::f64) backward<double>(*this, in, y);
  else backward<float>(*this, in, y);
}

}  // namespace tessera::op

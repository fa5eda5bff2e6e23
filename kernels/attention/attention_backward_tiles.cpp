// SPDX-License-Identifier: Apache-2.0
// Attention's gradient of bf16 operands by matrix tiles. A task is one key head with its group of
// query heads. It goes over blocks of queries, and for each over the blocks of keys that they see,
// twice where delta is a sum over all of them: the weights are kept in between;
// weights and their gradients are rounded to bf16 for the products, sums are f32. With documents,
// blocks of queries and of keys start where documents do, so that a document has the same bits
// alone and among others.
#include "tessera/kernels/attention/attention_plan_impl.h"
#include "tessera/kernels/attention/tiles_impl.h"

#include <algorithm>
#include <omp.h>

namespace tessera::op::attention {
namespace {

constexpr int64_t kFew = 32;  // queries of a narrow block: products over them take 32 at a time

// Row lengths up to multiples of 16 and 32, of queries and of values; columns of the keys turned.
struct TileSizes {
  int64_t d16, d32, v16, v32, columns;
  explicit TileSizes(const Problem& z)
      : d16(micro::round_up(z.d, 16)),
        d32(micro::round_up(z.d, 32)),
        v16(micro::round_up(z.dv, 16)),
        v32(micro::round_up(z.dv, 32)),
        columns(tiles::columns_of(z.s)) {}
};

// Scratch of one task. Behind the last row of keys are 16 of zeros.
struct TileScratch : TileSizes {
  bf16 *k, *v, *k_t;                  // (S + 16, d32), (S + 16, v32), (d16, columns)
  float *dk, *dv;                     // (S + 16, d16), (S + 16, v16)
  bf16* rows;                         // (width, d32 or v32)
  uint32_t *q_t, *dout_t, *q, *dout;  // (d32 / 2, width), (width / 2, d16), of v too
  float *wide, *other, *dq_t, *p, *ds, *lse, *delta;  // (width, padded) twice, (d16, width), ...
  float* slopes = nullptr;     // (keys, width); null if scores are not capped
  bf16 *p_rows, *ds_rows;      // (keys, width)
  uint32_t *ds_pairs, *words;  // (keys / 2, width), 32 d32

  explicit TileScratch(const Problem& z) : TileSizes(z) {}
  // Lays the arrays out from `at` on, and gives how many floats they take; `at` may be null.
  int64_t place(const Problem& z, float* at) {
    int64_t used = 0;
    const auto take = [&]<class T>(T*& array, int64_t n) {
      array = at ? reinterpret_cast<T*>(at + used) : nullptr;
      used += micro::round_up(n * static_cast<int64_t>(sizeof(T)) / 4, 16);
    };
    const int64_t s = z.s + 16, most = std::max(d32, v32);
    take(k, s * d32), take(v, s * v32), take(k_t, d16 * columns);
    take(dk, s * d16), take(dv, s * v16);
    take(rows, kBlock * most);
    take(q_t, kBlock * d32 / 2), take(dout_t, kBlock * v32 / 2);
    take(q, kBlock * d16 / 2), take(dout, kBlock * v16 / 2);
    take(wide, kBlock * most), take(other, kBlock * most), take(dq_t, kBlock * d16);
    take(p, s * kBlock), take(ds, s * kBlock);
    if (z.soft_cap != 0) take(slopes, s * kBlock);
    take(lse, kBlock), take(delta, kBlock);
    take(p_rows, kBlock * kBlock), take(ds_rows, kBlock * kBlock);
    take(ds_pairs, kBlock * kBlock / 2), take(words, 32 * d32);
    return used;
  }
};

// Numbers to bf16, both (n, width).
template <int64_t width> TESSERA_INLINE void to_bf16(const float* from, int64_t n, bf16* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n * width; ++i)
    to[i].bits = static_cast<uint16_t>(tiles::rounded(from[i]) >> 16);
}

// p and dp of a block of queries against keys. Products write up to 16 rows more, which the next
// block of keys overwrites.
template <int64_t width>
TESSERA_INLINE void block_weights(const Problem& z, const TileScratch& w, int64_t key, int64_t keys,
                                  const Hidden& hidden, int64_t rows) {
  const float scale = static_cast<float>(z.scale);
  const int64_t m = micro::round_up(keys, 16);
  float *p = w.p + key * width, *dp = w.ds + key * width;
  micro::tile_block(m, width, w.d32, w.k + key * w.d32, w.d32, w.q_t, width, p, width, false);
  micro::tile_block(m, width, w.v32, w.v + key * w.v32, w.v32, w.dout_t, width, dp, width, false);
  for (int64_t i = 0; i < keys * width; ++i) p[i] *= scale;
  if (w.slopes) cap_scores(p, keys * width, static_cast<float>(z.soft_cap), w.slopes + key * width);
  hidden.hide<width>(p, key, keys, rows);
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) p[j * width + i] = vmath::exp(p[j * width + i] - w.lse[i]);
  }
}

// The gradients of these keys and what they add to dq; dp becomes anything.
template <int64_t width>
TESSERA_INLINE void block_gradient(const Problem& z, const TileScratch& w, int64_t key,
                                   int64_t keys) {
  const int64_t behind = (micro::round_up(keys, 32) - keys) * width;
  const float* p = w.p + key * width;
  float* ds = w.ds + key * width;
  score_gradients<width>(p, ds, keys, w.delta, static_cast<float>(z.scale),
                         w.slopes ? w.slopes + key * width : nullptr);
  to_bf16<width>(p, keys, w.p_rows);
  to_bf16<width>(ds, keys, w.ds_rows);
  tiles::clear(w.p_rows + keys * width, behind);
  tiles::clear(w.ds_rows + keys * width, behind);
  tiles::pair_rows(w.ds_rows, width, micro::round_up(keys, 32), width, w.ds_pairs);
  tiles::add_rows<width>(keys, w.v16, w.p_rows, w.dout, w.other, w.dv + key * w.v16);
  tiles::add_rows<width>(keys, w.d16, w.ds_rows, w.q, w.other, w.dk + key * w.d16);
  tiles::add_columns<width>(w.d16, keys, w.k_t + key, w.columns, z.s - key, w.words, w.ds_pairs,
                            w.dq_t);
}

// (rows, d) at `from` as both right-hand operands of products; d32 and d16: d up to a multiple.
template <int64_t width>
TESSERA_INLINE void load_queries(const Operand<float>& x, const std::byte* from, int64_t n,
                                 int64_t d, int64_t d16, int64_t d32, bf16* rows,
                                 uint32_t* transposed, uint32_t* pairs) {
  tiles::copy_rows(from, x.t, x.d, n, d, d32, rows);
  tiles::clear(rows + n * d32, (width - n) * d32);
  tiles::transpose<width>(reinterpret_cast<const uint32_t*>(rows), d32 / 2, transposed);
  tiles::pair_rows(rows, d32, width, d16, pairs);
}

// What a task reads besides its scratch.
struct Operands {
  Operand<float> q, k, v, o, dout, dq;
  const Tensor &lse, &dlse;
  bool has_dlse, all_keys;
};

template <int64_t width>
TESSERA_INLINE void query_gradient(const Problem& z, const TileScratch& w, const Operands& x,
                                   int64_t batch, int64_t head, const RowBlock& block,
                                   const SeenKeys& seen, const std::vector<KeyBlock>& keys) {
  const int64_t n = block.rows;
  const auto at = [&](const Operand<float>& y) { return y.head(batch, head) + block.row * y.t; };
  load_queries<width>(x.q, at(x.q), n, z.d, w.d16, w.d32, w.rows, w.q_t, w.q);
  load_queries<width>(x.dout, at(x.dout), n, z.dv, w.v16, w.v32, w.rows, w.dout_t, w.dout);
  if (!x.all_keys) {
    x.o.load(at(x.o), x.o.t, x.o.d, n, z.dv, z.padded_dv, w.wide);
    x.dout.load(at(x.dout), x.dout.t, x.dout.d, n, z.dv, z.padded_dv, w.other);
  }
  const Shape &ls = x.lse.strides(), &ds = x.dlse.strides();
  const float *lse = x.lse.data<float>() + batch * ls[0] + head * ls[1],
              *dlse = x.dlse.data<float>() + batch * ds[0] + head * ds[1];
  for (int64_t i = 0; i < width; ++i) {
    // +inf makes the probabilities of rows that do not exist, or see nothing, exp(-inf) = 0.
    w.lse[i] = kInf<float>;
    w.delta[i] = 0;
    if (i >= n) continue;
    const float l = lse[(block.row + i) * ls[2]];
    if (l != -kInf<float>) w.lse[i] = l;
    if (!x.all_keys)
      w.delta[i] = rows::dot(w.other + i * z.padded_dv, w.wide + i * z.padded_dv, z.dv);
    if (x.has_dlse) w.delta[i] -= dlse[(block.row + i) * ds[2]];
  }
  for (int64_t i = 0; i < w.d16 * width; ++i) w.dq_t[i] = 0;
  const Rows rows{batch, block.row, n, false};
  const auto probabilities = [&](int64_t key, int64_t count, const Hidden& hidden) TESSERA_LAMBDA {
    block_weights<width>(z, w, key, count, hidden, n);
  };
  const auto finish = [&](int64_t key, int64_t count, const Hidden&)
                          TESSERA_LAMBDA { block_gradient<width>(z, w, key, count); };
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
  tiles::transpose_back<width>(w.dq_t, w.d16, w.wide, z.padded_d);
  x.dq.save(w.wide, z.padded_d, n, z.d, at(x.dq), x.dq.t, x.dq.d);
}

}  // namespace

void backward_by_tiles(const AttentionBackward& op, Tensors in, Outputs y) {
  const Problem z(op, in, micro::kLanes<float>);
  const SeenKeys seen(op, z.mask_sizes(), in);
  std::vector<std::vector<RowBlock>> blocks;
  std::vector<std::vector<KeyBlock>> keys;
  for (int64_t b = 0; b < seen.lists(); ++b) {
    blocks.push_back(row_blocks(seen, b, z.t));
    keys.push_back(key_blocks(z, seen, b));
  }
  const bool inner = op.heads_inner, has_dlse = in.size() > 6 && in[6].defined();
  const auto operand = [&](const Tensor& t) { return Operand<float>(t, inner); };
  const Operands x{operand(in[0]), operand(in[1]), operand(in[2]), operand(in[3]),
                   operand(in[5]), operand(y[0]),  in[4],          has_dlse ? in[6] : in[4],
                   has_dlse,       op.all_keys};
  const Operand<float> dk = operand(y[1]), dv = operand(y[2]);
  const TileScratch layout(z);
  const int64_t room = TileScratch(z).place(z, nullptr);
  const int threads = Context::current().options.threads;
  const Tensor scratch = empty({threads, room}, DType::f32);
  float* all_scratch = scratch.data<float>();
  parallel_for(z.b * z.h_kv, 1, [&](int64_t task, int64_t) {
    const int64_t batch = task / z.h_kv, kv_head = task % z.h_kv;
    const size_t list = seen.list_of(batch);
    simd([&]() TESSERA_LAMBDA {
      const micro::TileScope scope;
      TileScratch w = layout;
      w.place(z, all_scratch + omp_get_thread_num() % threads * room);
      const std::byte *k = x.k.head(batch, kv_head), *v = x.v.head(batch, kv_head);
      tiles::copy_rows(k, x.k.t, x.k.d, z.s, z.d, w.d32, w.k);
      tiles::copy_rows(v, x.v.t, x.v.d, z.s, z.dv, w.v32, w.v);
      tiles::clear(w.k + z.s * w.d32, 16 * w.d32);
      tiles::clear(w.v + z.s * w.v32, 16 * w.v32);
      tiles::transpose_rows(k, x.k.t, x.k.d, z.s, z.d, w.d32, w.words, w.k_t, w.columns);
      for (int64_t i = 0; i < (z.s + 16) * w.d16; ++i) w.dk[i] = 0;
      for (int64_t i = 0; i < (z.s + 16) * w.v16; ++i) w.dv[i] = 0;
      for (int64_t head = kv_head * z.group; head < (kv_head + 1) * z.group; ++head) {
        for (const RowBlock& block : blocks[list]) {
          if (block.rows <= kFew)
            query_gradient<kFew>(z, w, x, batch, head, block, seen, keys[list]);
          else query_gradient<kBlock>(z, w, x, batch, head, block, seen, keys[list]);
        }
      }
      dk.save(w.dk, w.d16, z.s, z.d, dk.head(batch, kv_head), dk.t, dk.d);
      dv.save(w.dv, w.v16, z.s, z.dv, dv.head(batch, kv_head), dv.t, dv.d);
    });
  });
}

}  // namespace tessera::op::attention

// SPDX-License-Identifier: Apache-2.0
// Attention's gradient on the CPU. A task is one key head with its group of query heads; its
// operands are first copied to padded f32, which costs 1/T of the work and serves every dtype and
// stride. Sums run in a fixed order: the same bits on every run and thread count, and, as a key
// that a query does not see adds an exact zero, the same bits for a document alone and among
// others.
#include "tessera/kernels/attention/attention_cpu_impl.h"

#include <omp.h>

namespace tessera::op {
namespace attention {
namespace {

// Scratch of one backward task; every array is padded to full blocks.
template <class C> struct BackwardScratch {
  C *k, *v, *dk, *dv, *q, *q_t, *dout, *dout_t, *dq, *out, *p, *ds, *lse, *delta;
  static int64_t room(const Problem& z) {
    return 4 * z.s * z.padded_d + z.padded_t * (4 * z.padded_d + 2 * z.d + 2) + 2 * kBlock * kBlock;
  }
  TESSERA_INLINE BackwardScratch(C* at, const Problem& z) {
    const int64_t keys = z.s * z.padded_d, queries = z.padded_t * z.padded_d;
    k = at, v = k + keys, dk = v + keys, dv = dk + keys;
    q = dv + keys, dout = q + queries, dq = dout + queries, out = dq + queries;
    q_t = out + queries, dout_t = q_t + z.padded_t * z.d;
    p = dout_t + z.padded_t * z.d, ds = p + kBlock * kBlock;
    lse = ds + kBlock * kBlock, delta = lse + z.padded_t;
  }
};

template <class C>
TESSERA_INLINE void backward_head(const Problem& z, const BackwardScratch<C>& w,
                                  const KeyRange* ranges, const BlockRange* blocks) {
  const C scale = static_cast<C>(z.scale);
  for (int64_t key = 0; key < z.s; key += kBlock) {
    const int64_t keys = std::min(kBlock, z.s - key), at_key = key * z.padded_d;
    for (int64_t query = 0; query < z.t; query += kBlock) {
      const BlockRange& block = blocks[query / kBlock];
      if (!block.sees_some(key, keys)) continue;
      const int64_t at_query = query * z.padded_d;
      micro::block<C>(keys, kBlock, z.d, w.k + at_key, z.padded_d, 1, w.q_t + query * z.d, kBlock,
                      w.p, kBlock, false);
      micro::block<C>(keys, kBlock, z.d, w.v + at_key, z.padded_d, 1, w.dout_t + query * z.d,
                      kBlock, w.ds, kBlock, false);
      if (!block.sees_all(key, keys))
        mask_block<kBlock>(w.p, key, keys, ranges + query, z.t - query);
      const C *lse = w.lse + query, *delta = w.delta + query;
      for (int64_t j = 0; j < keys; ++j) {
        C *p = w.p + j * kBlock, *ds = w.ds + j * kBlock;
#pragma GCC ivdep
        for (int64_t i = 0; i < kBlock; ++i) {
          const C e = vmath::exp(p[i] - lse[i]);
          p[i] = e;
          ds[i] = e * (ds[i] - delta[i]) * scale;
        }
      }
      micro::block<C>(keys, z.padded_d, kBlock, w.p, kBlock, 1, w.dout + at_query, z.padded_d,
                      w.dv + at_key, z.padded_d, true);
      micro::block<C>(keys, z.padded_d, kBlock, w.ds, kBlock, 1, w.q + at_query, z.padded_d,
                      w.dk + at_key, z.padded_d, true);
      micro::block<C>(kBlock, z.padded_d, keys, w.ds, 1, kBlock, w.k + at_key, z.padded_d,
                      w.dq + at_query, z.padded_d, true);
    }
  }
}

template <class C> void backward(const AttentionBackward& op, Tensors in, Outputs y) {
  const Problem z(op, in, micro::kLanes<C>);
  const RowRanges ranges(op, z, in.size() > 7 ? in[7] : Tensor());
  const int64_t query_blocks = z.padded_t / kBlock, lists = ranges.documents() ? z.b : 1;
  std::vector<BlockRange> blocks;
  for (int64_t b = 0; b < lists; ++b) {
    for (int64_t i = 0; i < z.t; i += kBlock)
      blocks.emplace_back(ranges.of(b) + i, std::min(kBlock, z.t - i));
  }
  const bool inner = op.heads_inner;
  const Operand<C> q(in[0], inner), k(in[1], inner), v(in[2], inner), o(in[3], inner),
      dout(in[5], inner);
  const Operand<C> dq(y[0], inner), dk(y[1], inner), dv(y[2], inner);
  const bool has_dlse = in.size() > 6 && in[6].defined();
  const int64_t room = micro::round_up(BackwardScratch<C>::room(z), 16);
  const int threads = Context::current().options.threads;
  const Tensor scratch = empty({threads, room}, dtype_of<C>);
  C* all_scratch = scratch.data<C>();
  const Tensor &lse = in[4], dlse = has_dlse ? in[6] : in[4];
  const C *lse_data = lse.data<C>(), *dlse_data = dlse.data<C>();
  const Shape &ls = lse.strides(), &ds = dlse.strides();
  parallel_for(z.b * z.h_kv, 1, [&](int64_t task, int64_t) {
    const int64_t batch = task / z.h_kv, kv_head = task % z.h_kv;
    const KeyRange* seen = ranges.of(batch);
    const BlockRange* seen_by_block =
        blocks.data() + (ranges.documents() ? batch * query_blocks : 0);
    C* at = all_scratch + omp_get_thread_num() % threads * room;
    simd([&]() TESSERA_LAMBDA {
      const BackwardScratch<C> w(at, z);
      k.load(k.head(batch, kv_head), k.t, k.d, z.s, z.d, z.padded_d, w.k);
      v.load(v.head(batch, kv_head), v.t, v.d, z.s, z.d, z.padded_d, w.v);
      for (int64_t i = 0; i < z.s * z.padded_d; ++i) w.dk[i] = w.dv[i] = 0;
      for (int64_t head = kv_head * z.group; head < (kv_head + 1) * z.group; ++head) {
        for (int64_t i = 0; i < z.padded_t * z.padded_d; ++i) w.q[i] = w.dout[i] = w.dq[i] = 0;
        q.load(q.head(batch, head), q.t, q.d, z.t, z.d, z.padded_d, w.q);
        dout.load(dout.head(batch, head), dout.t, dout.d, z.t, z.d, z.padded_d, w.dout);
        o.load(o.head(batch, head), o.t, o.d, z.t, z.d, z.padded_d, w.out);
        for (int64_t i = 0; i < z.t; i += kBlock) {
          const int64_t n = std::min(kBlock, z.t - i), row = i * z.padded_d;
          transpose_block<kBlock>(w.q + row, n, z.d, z.padded_d, static_cast<C>(z.scale),
                                  w.q_t + i * z.d);
          transpose_block<kBlock>(w.dout + row, n, z.d, z.padded_d, C(1), w.dout_t + i * z.d);
        }
        for (int64_t i = 0; i < z.padded_t; ++i) {
          // +inf makes the probabilities of rows that do not exist, or see nothing, exp(-inf) = 0.
          w.lse[i] = kInf<C>;
          w.delta[i] = 0;
          if (i >= z.t) continue;
          const C l = lse_data[batch * ls[0] + head * ls[1] + i * ls[2]];
          if (l != -kInf<C>) w.lse[i] = l;
          C sum = 0;
          for (int64_t j = 0; j < z.d; ++j)
            sum += w.dout[i * z.padded_d + j] * w.out[i * z.padded_d + j];
          w.delta[i] = has_dlse ? sum - dlse_data[batch * ds[0] + head * ds[1] + i * ds[2]] : sum;
        }
        backward_head<C>(z, w, seen, seen_by_block);
        dq.save(w.dq, z.padded_d, z.t, z.d, dq.head(batch, head), dq.t, dq.d);
      }
      dk.save(w.dk, z.padded_d, z.s, z.d, dk.head(batch, kv_head), dk.t, dk.d);
      dv.save(w.dv, z.padded_d, z.s, z.d, dv.head(batch, kv_head), dv.t, dv.d);
    });
  });
}

}  // namespace
}  // namespace attention

void AttentionBackward::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0 && y[1].numel() == 0) return;
  in[0].dtype() == DType::f64 ? attention::backward<double>(*this, in, y)
                              : attention::backward<float>(*this, in, y);
}

}  // namespace tessera::op

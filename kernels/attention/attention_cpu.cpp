// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU. Scores are kept transposed, (keys, queries) in blocks of 64 x 64, so that
// the running maximum, the exponentials and the sums go over queries in vector lanes, without
// horizontal steps. A task is one head (forward) or one key head with its group (backward); its
// operands are first copied to padded f32, which costs 1/T of the work and serves every dtype and
// stride. Sums run in a fixed order: the same bits on every run and thread count. What depends on
// the dtype is how rows are loaded and saved; the rest is compiled for f32 and f64 alone.
#include "tessera/core/parallel.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/micro_gemm_impl.h"
#include "tessera/kernels/vector_math.h"

#include <cmath>
#include <omp.h>

namespace tessera::op {
namespace {

constexpr int64_t kBlock = 64;
template <class C> inline constexpr C kInf = std::numeric_limits<C>::infinity();

// A (B, H, T, D) operand of any float type, in either order of dims: heads of it go to and from
// padded rows of C.
template <class C> struct Operand {
  std::byte* data;
  int64_t b, h, t, d;  // strides in bytes, but d in elements
  void (*load)(const void* from, int64_t row, int64_t col, int64_t rows, int64_t d, int64_t padded,
               C* to);
  void (*save)(const C* from, int64_t padded, int64_t rows, int64_t d, void* to, int64_t row,
               int64_t col);

  Operand(const Tensor& x, bool heads_inner)
      : data(static_cast<std::byte*>(x.raw_data())), d(x.strides()[3]) {
    const int64_t item = item_size(x.dtype());
    b = x.strides()[0] * item;
    h = x.strides()[heads_inner ? 2 : 1] * item;
    t = x.strides()[heads_inner ? 1 : 2] * item;
    dispatch<kFloats>(x.dtype(), [&]<class T>() {
      load = &load_rows<T>;
      save = &save_rows<T>;
    });
  }
  [[nodiscard]] std::byte* head(int64_t i, int64_t j) const { return data + i * b + j * h; }

 private:
  template <class T>
  static void load_rows(const void* from, int64_t row, int64_t col, int64_t rows, int64_t d,
                        int64_t padded, C* to) {
    for (int64_t i = 0; i < rows; ++i) {
      const T* x = reinterpret_cast<const T*>(static_cast<const std::byte*>(from) + i * row);
      if (col == 1) {
        for (int64_t j = 0; j < d; ++j) to[i * padded + j] = static_cast<C>(x[j]);
      } else {
        for (int64_t j = 0; j < d; ++j) to[i * padded + j] = static_cast<C>(x[j * col]);
      }
      for (int64_t j = d; j < padded; ++j) to[i * padded + j] = C(0);
    }
  }
  template <class T>
  static void save_rows(const C* from, int64_t padded, int64_t rows, int64_t d, void* to,
                        int64_t row, int64_t col) {
    for (int64_t i = 0; i < rows; ++i) {
      T* y = reinterpret_cast<T*>(static_cast<std::byte*>(to) + i * row);
      for (int64_t j = 0; j < d; ++j) y[j * col] = static_cast<T>(from[i * padded + j]);
    }
  }
};

struct Problem {
  int64_t b, h, t, d, h_kv, s, padded_d, padded_t, offset;
  bool causal;
  double scale;
};
template <class Op> Problem problem_of(const Op& op, Tensors in, int64_t lanes) {
  const Shape &q = in[0].shape(), &k = in[1].shape();
  const int head = op.heads_inner ? 2 : 1, time = op.heads_inner ? 1 : 2;
  const double scale =
      op.scale != 0 ? op.scale : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(q[3], 1)));
  return {q[0],
          q[head],
          q[time],
          q[3],
          k[head],
          k[time],
          micro::round_up(q[3], lanes),
          micro::round_up(q[time], kBlock),
          op.offset,
          op.causal,
          scale};
}

// (rows, padded) to blocks of (d, kBlock): query-minor, scaled; rows beyond the last are zeros.
template <class C>
TESSERA_INLINE void transpose_blocks(const C* from, int64_t rows, int64_t d, int64_t padded,
                                     C scale, C* to) {
  for (int64_t block = 0; block < rows; block += kBlock) {
    const int64_t n = std::min(kBlock, rows - block);
    C* out = to + block * d;
    for (int64_t j = 0; j < d; ++j) {
      for (int64_t i = 0; i < n; ++i) out[j * kBlock + i] = from[(block + i) * padded + j] * scale;
      for (int64_t i = n; i < kBlock; ++i) out[j * kBlock + i] = C(0);
    }
  }
}
// Keys beyond a query's last visible one get -inf.
template <class C>
TESSERA_INLINE void mask_block(C* scores, int64_t key, int64_t keys, int64_t query,
                               int64_t offset) {
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t first =
        std::clamp<int64_t>(key + j - offset - query, 0, kBlock);  // queries before it do not see j
    for (int64_t i = 0; i < first; ++i) scores[j * kBlock + i] = -kInf<C>;
  }
}

template <class C>
TESSERA_INLINE void forward_block(const Problem& p, const C* q_t, const C* k, const C* v,
                                  int64_t query, C* scores, C* acc, C* row_max, C* row_sum) {
  for (int64_t i = 0; i < kBlock; ++i) {
    row_max[i] = -kInf<C>;
    row_sum[i] = 0;
  }
  for (int64_t i = 0; i < kBlock * p.padded_d; ++i) acc[i] = 0;
  const int64_t seen = p.causal ? std::min(p.s, query + kBlock + p.offset) : p.s;
  for (int64_t key = 0; key < seen; key += kBlock) {
    const int64_t keys = std::min(kBlock, p.s - key);
    micro::block<C>(keys, kBlock, p.d, k + key * p.padded_d, p.padded_d, 1, q_t, kBlock, scores,
                    kBlock, false);
    if (p.causal && key + keys - 1 > query + p.offset)
      mask_block(scores, key, keys, query, p.offset);
    alignas(64) C top[kBlock], shrink[kBlock], sum[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) top[i] = row_max[i];
    for (int64_t j = 0; j < keys; ++j) {
      const C* s = scores + j * kBlock;
#pragma GCC ivdep
      for (int64_t i = 0; i < kBlock; ++i) top[i] = s[i] > top[i] ? s[i] : top[i];
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < kBlock; ++i) {
      // A row that has seen nothing keeps -inf; subtracting 0 there gives exp(-inf) = 0 instead of
      // NaN.
      const C base = top[i] == -kInf<C> ? C(0) : top[i];
      shrink[i] = vmath::exp(row_max[i] - base);
      row_max[i] = top[i];
      top[i] = base;
      sum[i] = 0;
    }
    for (int64_t j = 0; j < keys; ++j) {
      C* s = scores + j * kBlock;
#pragma GCC ivdep
      for (int64_t i = 0; i < kBlock; ++i) {
        const C e = vmath::exp(s[i] - top[i]);
        s[i] = e;
        sum[i] += e;
      }
    }
    for (int64_t i = 0; i < kBlock; ++i) row_sum[i] = row_sum[i] * shrink[i] + sum[i];
    if (key > 0) {
      for (int64_t i = 0; i < kBlock; ++i) {
        C* row = acc + i * p.padded_d;
        for (int64_t j = 0; j < p.padded_d; ++j) row[j] *= shrink[i];
      }
    }
    micro::block<C>(kBlock, p.padded_d, keys, scores, 1, kBlock, v + key * p.padded_d, p.padded_d,
                    acc, p.padded_d, true);
  }
}

template <class C> void forward(const Attention& op, Tensors in, Outputs y) {
  const Problem p = problem_of(op, in, micro::kLanes<C>);
  const Operand<C> q(in[0], op.heads_inner), k(in[1], op.heads_inner), v(in[2], op.heads_inner),
      o(y[0], op.heads_inner);
  C* lse = y[1].data<C>();
  const int64_t blocks = p.padded_t / kBlock;
  // Few heads: their query blocks become tasks of their own. Rows do not depend on how they are
  // cut.
  const int64_t cuts = p.b * p.h >= 8 ? 1 : std::min<int64_t>(blocks, 4),
                per_cut = (blocks + cuts - 1) / std::max<int64_t>(1, cuts);
  const int64_t room = 2 * p.s * p.padded_d + per_cut * kBlock * (p.padded_d + p.d) +
                       kBlock * (kBlock + p.padded_d + 2);
  const int threads = Context::current().options.threads;
  const Tensor scratch = empty({threads, micro::round_up(room, 16)}, dtype_of<C>);
  C* all_scratch = scratch.data<C>();
  parallel_for(p.b * p.h * cuts, 1, [&](int64_t task, int64_t) {
    const int64_t head = task / cuts % p.h, batch = task / cuts / p.h,
                  kv_head = head / (p.h / p.h_kv);
    const int64_t first = task % cuts * per_cut * kBlock,
                  rows = std::min(p.t - first, per_cut * kBlock);
    if (rows <= 0) return;
    C* at = all_scratch + omp_get_thread_num() % threads * micro::round_up(room, 16);
    simd([&]() TESSERA_LAMBDA {
      C *keys = at, *values = keys + p.s * p.padded_d, *queries = values + p.s * p.padded_d;
      C *q_t = queries + per_cut * kBlock * p.padded_d, *scores = q_t + per_cut * kBlock * p.d;
      C *acc = scores + kBlock * kBlock, *row_max = acc + kBlock * p.padded_d,
        *row_sum = row_max + kBlock;
      k.load(k.head(batch, kv_head), k.t, k.d, p.s, p.d, p.padded_d, keys);
      v.load(v.head(batch, kv_head), v.t, v.d, p.s, p.d, p.padded_d, values);
      q.load(q.head(batch, head) + first * q.t, q.t, q.d, rows, p.d, p.padded_d, queries);
      transpose_blocks<C>(queries, rows, p.d, p.padded_d, static_cast<C>(p.scale), q_t);
      for (int64_t block = 0; block < rows; block += kBlock) {
        forward_block<C>(p, q_t + block * p.d, keys, values, first + block, scores, acc, row_max,
                         row_sum);
        const int64_t n = std::min(kBlock, rows - block);
        for (int64_t i = 0; i < n; ++i) {
          const C inverse = row_sum[i] > 0 ? C(1) / row_sum[i] : C(0);
          for (int64_t j = 0; j < p.d; ++j) acc[i * p.padded_d + j] *= inverse;
          lse[(batch * p.h + head) * p.t + first + block + i] =
              row_sum[i] > 0 ? row_max[i] + static_cast<C>(std::log(row_sum[i])) : -kInf<C>;
        }
        o.save(acc, p.padded_d, n, p.d, o.head(batch, head) + (first + block) * o.t, o.t, o.d);
      }
    });
  });
}

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
TESSERA_INLINE void backward_head(const Problem& z, const BackwardScratch<C>& w) {
  const C scale = static_cast<C>(z.scale);
  for (int64_t key = 0; key < z.s; key += kBlock) {
    const int64_t keys = std::min(kBlock, z.s - key), at_key = key * z.padded_d;
    int64_t query = 0;
    if (z.causal && key - z.offset > 0)
      query = (key - z.offset) / kBlock * kBlock;  // earlier queries see none of these keys
    for (; query < z.t; query += kBlock) {
      const int64_t at_query = query * z.padded_d;
      micro::block<C>(keys, kBlock, z.d, w.k + at_key, z.padded_d, 1, w.q_t + query * z.d, kBlock,
                      w.p, kBlock, false);
      micro::block<C>(keys, kBlock, z.d, w.v + at_key, z.padded_d, 1, w.dout_t + query * z.d,
                      kBlock, w.ds, kBlock, false);
      if (z.causal && key + keys - 1 > query + z.offset)
        mask_block(w.p, key, keys, query, z.offset);
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
  const Problem z = problem_of(op, in, micro::kLanes<C>);
  const bool inner = op.heads_inner;
  const Operand<C> q(in[0], inner), k(in[1], inner), v(in[2], inner), o(in[3], inner),
      dout(in[5], inner);
  const Operand<C> dq(y[0], inner), dk(y[1], inner), dv(y[2], inner);
  const bool has_dlse = in.size() > 6 && in[6].defined();
  const int64_t room = micro::round_up(BackwardScratch<C>::room(z), 16),
                group = z.h_kv ? z.h / z.h_kv : 0;
  const int threads = Context::current().options.threads;
  const Tensor scratch = empty({threads, room}, dtype_of<C>);
  C* all_scratch = scratch.data<C>();
  const Tensor &lse = in[4], dlse = has_dlse ? in[6] : in[4];
  const C *lse_data = lse.data<C>(), *dlse_data = dlse.data<C>();
  const Shape &ls = lse.strides(), &ds = dlse.strides();
  parallel_for(z.b * z.h_kv, 1, [&](int64_t task, int64_t) {
    const int64_t batch = task / z.h_kv, kv_head = task % z.h_kv;
    C* at = all_scratch + omp_get_thread_num() % threads * room;
    simd([&]() TESSERA_LAMBDA {
      const BackwardScratch<C> w(at, z);
      k.load(k.head(batch, kv_head), k.t, k.d, z.s, z.d, z.padded_d, w.k);
      v.load(v.head(batch, kv_head), v.t, v.d, z.s, z.d, z.padded_d, w.v);
      for (int64_t i = 0; i < z.s * z.padded_d; ++i) w.dk[i] = w.dv[i] = 0;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int64_t i = 0; i < z.padded_t * z.padded_d; ++i) w.q[i] = w.dout[i] = w.dq[i] = 0;
        q.load(q.head(batch, head), q.t, q.d, z.t, z.d, z.padded_d, w.q);
        dout.load(dout.head(batch, head), dout.t, dout.d, z.t, z.d, z.padded_d, w.dout);
        o.load(o.head(batch, head), o.t, o.d, z.t, z.d, z.padded_d, w.out);
        transpose_blocks<C>(w.q, z.t, z.d, z.padded_d, static_cast<C>(z.scale), w.q_t);
        transpose_blocks<C>(w.dout, z.t, z.d, z.padded_d, C(1), w.dout_t);
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
        backward_head<C>(z, w);
        dq.save(w.dq, z.padded_d, z.t, z.d, dq.head(batch, head), dq.t, dq.d);
      }
      dk.save(w.dk, z.padded_d, z.s, z.d, dk.head(batch, kv_head), dk.t, dk.d);
      dv.save(w.dv, z.padded_d, z.s, z.d, dv.head(batch, kv_head), dv.t, dv.d);
    });
  });
}

}  // namespace

void Attention::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0 && y[1].numel() == 0) return;
  in[0].dtype() == DType::f64 ? forward<double>(*this, in, y) : forward<float>(*this, in, y);
}

void AttentionBackward::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0 && y[1].numel() == 0) return;
  in[0].dtype() == DType::f64 ? backward<double>(*this, in, y) : backward<float>(*this, in, y);
}

}  // namespace tessera::op

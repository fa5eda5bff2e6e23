// SPDX-License-Identifier: Apache-2.0
// Attention's gradients on tensor cores. A block of queries finds delta (by p dp) and dq, one of
// keys dk and dv: nothing is added atomically, the same bits on every run. With scores transposed
// in the second kernel its weights are left operands as they lie.
#include "tessera/kernels/attention/attention_mma.cuh"

namespace tessera::op {
namespace mma_attention {
namespace {

constexpr int kStep = 32;  // keys of a step, or queries in the kernel of keys

template <class T> struct Operands {
  Heads<const T> q, k, v, dout;
  const float *lse, *delta;
  bool aligned;
};

// --- blocks of queries ---------------------------------------------------------------------------

template <class T, int kD> struct QueryShared {
  SeenBlocks<kD> seen;
  HeadTile<T, kRows<kD>, kD> q, dout;
  struct {
    HeadTile<T, kStep, kD> k, v;
  } at[2];
};

// kDelta: writes delta, the rows' sums of p dp without dlse. Otherwise dq.
template <class T, int kD, bool kDelta>
__global__ void __launch_bounds__(kMmaThreads<kD>)
    query_kernel(Operands<T> in, const float* dlse, float* delta, Heads<T> dq, AttentionSizes z) {
  constexpr int kM = kTilesM<kD>;
  auto& shared = *reinterpret_cast<QueryShared<T, kD>*>(launch_shared());
  const QueryTile<kD> tile(z);
  const auto [b, head, kv_head, first, row] = tile;
  const int lane = threadIdx.x % 32;
  const float scale = static_cast<float>(z.scale) * kLog2E;
  const T *k_head = in.k.of(b, kv_head), *v_head = in.v.of(b, kv_head);
  const int64_t row_0 = (b * z.heads + head) * z.queries;

  // lse in powers of 2, infinite in rows that see nothing: their weights are 0. And delta.
  float top[kM][2], pull[kM][2];
  for (int m = 0; m < kM; ++m) {
    for (int half = 0; half < 2; ++half) {
      const int64_t query = first + row + m * 16 + half * 8 + lane / 4;
      const bool inside = query < z.queries && in.lse[row_0 + query] != -kInfinity;
      top[m][half] = inside ? in.lse[row_0 + query] * kLog2E : kInfinity;
      pull[m][half] = inside && !kDelta ? in.delta[row_0 + query] : 0;
    }
  }
  Sums<kM, kDelta ? 8 : kD> out;
  float sums[kM][2] = {};
  KeySteps<kD, kStep> steps(shared.seen, z, tile);
  shared.q.load(in.q, in.q.of(b, head), first, z.queries, z.d, in.aligned);
  shared.dout.load(in.dout, in.dout.of(b, head), first, z.queries, z.dv, in.aligned);
  const auto load = [&](int64_t step, int stage) {
    shared.at[stage].k.load(in.k, k_head, step * kStep, z.keys, z.d, in.aligned);
    shared.at[stage].v.load(in.v, v_head, step * kStep, z.keys, z.dv, in.aligned);
  };
  walk(steps, load, [&](int64_t step, int stage, const BlockSeen& seen) {
    const int64_t key = step * kStep;
    Sums<kM, kStep> p, dp;
    multiply_rows<T>(p, shared.q, row, shared.at[stage].k);
    multiply_rows<T>(dp, shared.dout, row, shared.at[stage].v);
    const bool whole = seen.by == BlockSeen::kEverything && key + kStep <= z.keys;
    const SeenBits<kM, kStep> bits(whole, [&](int r, int column) {
      return z.mask.sees(seen, b, first + row + r, key + column);
    });
    p.each([&](int m, int half, int j, int e, float& x) {
      const bool counts = bits.has(m, half, j, e) && top[m][half] != kInfinity;
      x = counts ? exp2f(vmath::fma(x, scale, -top[m][half])) : 0;
      float& g = dp.at[m][j][half * 2 + e];
      g = counts ? x * (g - pull[m][half]) : 0;
      if constexpr (kDelta) sums[m][half] += g;
    });
    if constexpr (!kDelta) multiply_weights<T>(out, dp, shared.at[stage].k);
  });
  if constexpr (kDelta) {
    for (int m = 0; m < kM; ++m) {
      for (int half = 0; half < 2; ++half) {
        const float sum = row_sum(sums[m][half]);
        const int64_t query = first + row + m * 16 + half * 8 + lane / 4;
        if (lane % 4 == 0 && query < z.queries)
          delta[row_0 + query] = sum - (dlse ? dlse[row_0 + query] : 0);
      }
    }
  } else {
    store_rows(out, dq, dq.of(b, head), first + row, z.queries, z.d,
               [&](int, int) { return static_cast<float>(z.scale); });
  }
}

// --- blocks of keys ------------------------------------------------------------------------------

template <class T, int kD> struct KeyShared {
  SeenBlocks<kD> seen;
  HeadTile<T, kRows<kD>, kD> k, v;
  struct {
    HeadTile<T, kStep, kD> q, dout;
    float lse[kStep], delta[kStep];
  } at[2];
};

// The queries that a tile of keys walks over, kStep at a time, of one head of its group after the
// other. The mask is the same for all heads.
template <int kD> struct QuerySteps {
  static constexpr int kPerBlock = kAttentionBlock / kStep;
  SeenBlocks<kD>& blocks;
  const AttentionSizes& z;
  int64_t batch, first;  // key
  int row, per_head, count;
  int64_t known = 0;

  __device__ QuerySteps(SeenBlocks<kD>& found, const AttentionSizes& sizes, int64_t b,
                        int64_t first_key, int warp_row)
      : blocks(found), z(sizes), batch(b), first(first_key), row(warp_row) {
    per_head = static_cast<int>(ceil_div(z.queries, kStep));
    count = per_head * static_cast<int>(z.heads / z.kv_heads);
  }
  [[nodiscard]] __device__ int64_t query(int step) const { return step % per_head * kStep; }
  [[nodiscard]] __device__ int head(int step) const { return step / per_head; }  // of the group
  __device__ int next(int step) {
    const int64_t all = ceil_div(z.queries, kAttentionBlock);
    for (; step < count; step = (head(step) + 1) * per_head) {
      const int64_t block =
          blocks.next(step % per_head / kPerBlock, all, known, [&](int mine, int64_t q) {
            const int64_t key = first + mine * kAttentionBlock;
            return key < z.keys ? z.mask.block(batch, q * kAttentionBlock, key)
                                : BlockSeen{BlockSeen::kNothing};
          });
      if (block < all)
        return max(step, head(step) * per_head + static_cast<int>(block) * kPerBlock);
    }
    return count;
  }
  [[nodiscard]] __device__ BlockSeen seen(int step) const {
    return step < count ? blocks.of(row / kAttentionBlock, step % per_head / kPerBlock, known)
                        : BlockSeen{BlockSeen::kNothing};
  }
};

// Long heads leave no registers for all columns of both gradients: a block takes a part of them.
template <int kD> constexpr int kParts = kD <= 128 ? 1 : 2;

template <class T, int kD>
__global__ void __launch_bounds__(kMmaThreads<kD>)
    key_kernel(Operands<T> in, Heads<T> dk, Heads<T> dv, AttentionSizes z) {
  constexpr int kM = kTilesM<kD>;
  auto& shared = *reinterpret_cast<KeyShared<T, kD>*>(launch_shared());
  constexpr int kColumns = kD / kParts<kD>;
  const int column = blockIdx.x % kParts<kD> * kColumns;  // of the first
  const int64_t block = blockIdx.x / kParts<kD>, tiles = ceil_div(z.keys, kRows<kD>);
  const int64_t first = block % tiles * kRows<kD>;
  const int64_t kv_head = block / tiles % z.kv_heads, b = block / tiles / z.kv_heads;
  const int row = threadIdx.x / 32 * kWarpRows<kD>, lane = threadIdx.x % 32;
  const float scale = static_cast<float>(z.scale) * kLog2E;

  Sums<kM, kColumns> key_sums, value_sums;
  QuerySteps<kD> steps(shared.seen, z, b, first, row);
  shared.k.load(in.k, in.k.of(b, kv_head), first, z.keys, z.d, in.aligned);
  shared.v.load(in.v, in.v.of(b, kv_head), first, z.keys, z.dv, in.aligned);
  const auto load = [&](int step, int stage) {
    auto& to = shared.at[stage];
    const int64_t head = kv_head * (z.heads / z.kv_heads) + steps.head(step),
                  query = steps.query(step);
    to.q.load(in.q, in.q.of(b, head), query, z.queries, z.d, in.aligned);
    to.dout.load(in.dout, in.dout.of(b, head), query, z.queries, z.dv, in.aligned);
    for (int i = threadIdx.x; i < kStep; i += blockDim.x) {
      const int64_t at = (b * z.heads + head) * z.queries + query + i;
      const bool inside = query + i < z.queries && in.lse[at] != -kInfinity;
      to.lse[i] = inside ? in.lse[at] * kLog2E : kInfinity;
      to.delta[i] = inside ? in.delta[at] : 0;
    }
  };
  walk(steps, load, [&](int step, int stage, const BlockSeen& seen) {
    const auto& now = shared.at[stage];
    const int64_t query = steps.query(step);
    Sums<kM, kStep> p, dp;  // (keys, queries)
    multiply_rows<T>(p, shared.k, row, now.q);
    multiply_rows<T>(dp, shared.v, row, now.dout);
    const bool whole = seen.by == BlockSeen::kEverything && first + row + kWarpRows<kD> <= z.keys &&
                       query + kStep <= z.queries;
    const SeenBits<kM, kStep> bits(
        whole, [&](int r, int c) { return z.mask.sees(seen, b, query + c, first + row + r); });
    p.each([&](int m, int half, int j, int e, float& x) {
      const int i = j * 8 + lane % 4 * 2 + e;
      const bool counts = bits.has(m, half, j, e) && now.lse[i] != kInfinity;
      x = counts ? exp2f(vmath::fma(x, scale, -now.lse[i])) : 0;
      float& g = dp.at[m][j][half * 2 + e];
      g = counts ? x * (g - now.delta[i]) : 0;
    });
    multiply_weights<T>(value_sums, p, now.dout, column);
    multiply_weights<T>(key_sums, dp, now.q, column);
  });
  store_rows(
      key_sums, dk, dk.of(b, kv_head), first + row, z.keys, z.d,
      [&](int, int) { return static_cast<float>(z.scale); }, column);
  store_rows(
      value_sums, dv, dv.of(b, kv_head), first + row, z.keys, z.dv, [](int, int) { return 1.0F; },
      column);
}

}  // namespace

template <class T>
void backward(Tensors in, Outputs y, bool heads_inner, bool all_keys, const Tensor& lse,
              const Tensor& dlse, const Tensor& delta, const AttentionSizes& z, Stream stream) {
  const auto heads = [&](size_t i) { return Heads<const T>(in[i], heads_inner); };
  Operands<T> operands{heads(0),
                       heads(1),
                       heads(2),
                       heads(5),
                       lse.device_data<float>(),
                       delta.device_data<float>(),
                       rows_aligned(heads(0)) && rows_aligned(heads(1)) && rows_aligned(heads(2)) &&
                           rows_aligned(heads(5))};
  const float* dlses = dlse.defined() ? dlse.device_data<float>() : nullptr;
  with_head_size(std::max(z.d, z.dv), [&]<int kD>() {
    const auto blocks = [](int64_t rows, int64_t heads_) {
      return static_cast<unsigned>(ceil_div(rows, kRows<kD>) * heads_);
    };
    const auto queries = [&](auto kernel) {
      constexpr size_t kBytes = sizeof(QueryShared<T, kD>);
      allow_shared(kernel, kBytes);
      launch(kernel, blocks(z.queries, z.heads * z.batch), kMmaThreads<kD>, kBytes, stream,
             operands, dlses, delta.device_data<float>(), Heads<T>(y[0], heads_inner), z);
    };
    if (z.batch * z.heads * z.queries > 0) {
      if (all_keys) queries(query_kernel<T, kD, true>);
      queries(query_kernel<T, kD, false>);
    }
    if (z.batch * z.kv_heads * z.keys > 0) {
      const auto kernel = key_kernel<T, kD>;
      constexpr size_t kBytes = sizeof(KeyShared<T, kD>);
      allow_shared(kernel, kBytes);
      launch(kernel, blocks(z.keys, z.kv_heads * z.batch * kParts<kD>), kMmaThreads<kD>, kBytes,
             stream, operands, Heads<T>(y[1], heads_inner), Heads<T>(y[2], heads_inner), z);
    }
  });
}
template void backward<bf16>(Tensors, Outputs, bool, bool, const Tensor&, const Tensor&,
                             const Tensor&, const AttentionSizes&, Stream);
template void backward<f16>(Tensors, Outputs, bool, bool, const Tensor&, const Tensor&,
                            const Tensor&, const AttentionSizes&, Stream);

}  // namespace mma_attention
}  // namespace tessera::op

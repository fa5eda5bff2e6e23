// SPDX-License-Identifier: Apache-2.0
// Attention's gradients on tensor cores. A block of queries finds delta (by p dp) and dq, one of
// keys dk and dv: nothing is added atomically, the same bits on every run. With scores transposed
// in the second kernel its weights are left operands as they lie.
#include "tessera/kernels/attention/attention_mma.cuh"

namespace tessera::op {
namespace mma_attention {
namespace {

template <class T> struct Operands {
  Heads<const T> q, k, v, dout;
  const float *lse, *delta;
  bool aligned;          // 16 bytes at a time may be read of operands,
  bool numbers_aligned;  // and of lse and delta
};

// lse in powers of 2, infinite in rows that see nothing: their weights are 0.
__device__ __forceinline__ float top_of(float lse) {
  return lse == -kInfinity ? kInfinity : lse * kLog2E;
}

// --- blocks of queries ---------------------------------------------------------------------------

// Delta has no sums of rows to keep: there is room for more rows, or for more keys.
template <int kD, bool kDelta> using QueryShape = Shape<kD, kD <= (kDelta ? 128 : 64) ? 2 : 1>;
template <int kD, bool kDelta> constexpr int kKeyStep = kD <= 64 && kDelta ? kAttentionBlock : 32;

template <class T, int kD, bool kDelta> struct QueryShared {
  using S = QueryShape<kD, kDelta>;
  SeenBlocks<S> seen;
  HeadTile<T, S::kRows, kD> q, dout;
  struct {
    HeadTile<T, kKeyStep<kD, kDelta>, kD> k, v;
  } at[2];
};

// kDelta: writes delta, the rows' sums of p dp without dlse. Otherwise dq.
template <class T, int kD, bool kDelta, bool kCap>
__global__ void __launch_bounds__(QueryShape<kD, kDelta>::kThreads)
    query_kernel(Operands<T> in, const float* dlse, float* delta, Heads<T> dq, AttentionSizes z) {
  using S = QueryShape<kD, kDelta>;
  constexpr int kM = S::kM, kStep = kKeyStep<kD, kDelta>;
  auto& shared = *reinterpret_cast<QueryShared<T, kD, kDelta>*>(launch_shared());
  const QueryTile<S> tile(z);
  const auto [b, head, kv_head, first, row] = tile;
  const int lane = threadIdx.x % 32;
  const ScoreForm<kCap> form(z);
  const T *k_head = in.k.of(b, kv_head), *v_head = in.v.of(b, kv_head);
  const int64_t row_0 = (b * z.heads + head) * z.queries;

  float top[kM][2], pull[kM][2];  // pull: delta
  for (int m = 0; m < kM; ++m) {
    for (int half = 0; half < 2; ++half) {
      const int query = first + row + m * 16 + half * 8 + lane / 4;
      const bool inside = query < z.queries;
      top[m][half] = inside ? top_of(in.lse[row_0 + query]) : kInfinity;
      pull[m][half] = inside && !kDelta ? in.delta[row_0 + query] : 0;
    }
  }
  Sums<kM, kDelta ? 8 : kD> out;
  float sums[kM][2] = {};
  KeySteps<S, kStep> steps(shared.seen, z, tile);
  shared.q.template load<S::kThreads>(in.q, in.q.of(b, head), first, z.queries, z.d, in.aligned);
  shared.dout.template load<S::kThreads>(in.dout, in.dout.of(b, head), first, z.queries, z.dv,
                                         in.aligned);
  const auto load = [&](int step, int stage) {
    shared.at[stage].k.template load<S::kThreads>(in.k, k_head, step * kStep, z.keys, z.d,
                                                  in.aligned);
    shared.at[stage].v.template load<S::kThreads>(in.v, v_head, step * kStep, z.keys, z.dv,
                                                  in.aligned);
  };
  walk(steps, load, [&](int step, int stage, const BlockSeen& seen) {
    const int key = step * kStep;
    Sums<kM, kStep> p, dp;
    multiply_rows<T>(p, shared.q, row, shared.at[stage].k);
    multiply_rows<T>(dp, shared.dout, row, shared.at[stage].v);
    const auto weigh = [&](auto counts) {
      p.each([&](int m, int half, int j, int e, float& x) {
        const bool is_in = counts(m, half, j, e);
        const float share = form.of(x);
        x = is_in ? exp2_approx(vmath::fma(share, form.scale, -top[m][half])) : 0;
        float& g = dp.at[m][j][half * 2 + e];
        g = is_in ? x * (g - pull[m][half]) : 0;
        if constexpr (kCap && !kDelta) g *= is_in ? 1 - share * share : 0;
        if constexpr (kDelta) sums[m][half] += g;
      });
    };
    if (seen.by == BlockSeen::kEverything && key + kStep <= z.keys) {
      weigh([](int, int, int, int) { return true; });
    } else {
      const CountingSums<kM, kStep, false> counting(z.mask, seen, b, first + row, key);
      weigh([&](int m, int half, int j, int e) { return counting.has(m, half, j, e); });
    }
    if constexpr (!kDelta) multiply_weights<T>(out, dp, shared.at[stage].k);
  });
  if constexpr (kDelta) {
    for (int m = 0; m < kM; ++m) {
      for (int half = 0; half < 2; ++half) {
        const float sum = row_sum(sums[m][half]);
        const int query = first + row + m * 16 + half * 8 + lane / 4;
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

template <int kD> using KeyShape = Shape<kD, kD <= 64 ? 2 : 1>;
constexpr int kStep = 32;  // queries

template <class T, int kD> struct KeyShared {
  SeenBlocks<KeyShape<kD>> seen;
  HeadTile<T, KeyShape<kD>::kRows, kD> k, v;
  struct {
    HeadTile<T, kStep, kD> q, dout;
    alignas(16) float lse[kStep], delta[kStep];
  } at[2];
};

// The queries that a tile of keys walks over, kStep at a time, of one head of its group after the
// other. The mask is the same for all heads.
template <class S> struct QuerySteps {
  static constexpr int kPerBlock = kAttentionBlock / kStep;
  SeenBlocks<S>& blocks;
  const AttentionSizes& z;
  int batch, first, row;  // first: key
  int per_head, count, known = 0;

  __device__ QuerySteps(SeenBlocks<S>& found, const AttentionSizes& sizes, int b, int first_key,
                        int warp_row)
      : blocks(found), z(sizes), batch(b), first(first_key), row(warp_row) {
    per_head = static_cast<int>(ceil_div(z.queries, kStep));
    count = per_head * static_cast<int>(z.heads / z.kv_heads);
  }
  [[nodiscard]] __device__ int query(int step) const { return step % per_head * kStep; }
  [[nodiscard]] __device__ int head(int step) const { return step / per_head; }  // of the group
  __device__ int next(int step) {
    const int all = static_cast<int>(ceil_div(z.queries, kAttentionBlock));
    for (; step < count; step = (head(step) + 1) * per_head) {
      const int block = blocks.next(step % per_head / kPerBlock, all, known, [&](int mine, int q) {
        const int key = first + mine * kAttentionBlock;
        return key < z.keys ? z.mask.block(batch, static_cast<int64_t>(q) * kAttentionBlock, key)
                            : BlockSeen{BlockSeen::kNothing};
      });
      if (block < all) return max(step, head(step) * per_head + block * kPerBlock);
    }
    return count;
  }
  [[nodiscard]] __device__ BlockSeen seen(int step) const {
    return step < count ? blocks.of(row / kAttentionBlock, step % per_head / kPerBlock, known)
                        : BlockSeen{BlockSeen::kNothing};
  }
};

// Starts to take a number of each of kStep queries, of which there are `left`.
__device__ __forceinline__ void load_rows(float (&to)[kStep], const float* from, int left,
                                          bool aligned) {
  const int i = threadIdx.x * 4;
  if (i >= kStep) return;
  if (aligned) {
    const int inside = min(max(left - i, 0), 4);
    cp_async(&to[i], inside ? from + i : from, inside * static_cast<int>(sizeof(float)));
  } else {
    for (int j = i; j < i + 4; ++j) to[j] = j < left ? from[j] : 0;
  }
}

// Long heads leave no registers for all columns of both gradients: a block takes a part of them.
template <int kD> constexpr int kParts = kD <= 128 ? 1 : 2;

template <class T, int kD, bool kCap>
__global__ void __launch_bounds__(KeyShape<kD>::kThreads)
    key_kernel(Operands<T> in, Heads<T> dk, Heads<T> dv, AttentionSizes z) {
  using S = KeyShape<kD>;
  constexpr int kM = S::kM;
  auto& shared = *reinterpret_cast<KeyShared<T, kD>*>(launch_shared());
  constexpr int kColumns = kD / kParts<kD>;
  const int column = blockIdx.x % kParts<kD> * kColumns;  // of the first
  const unsigned block = blockIdx.x / kParts<kD>, kv_heads = static_cast<unsigned>(z.kv_heads),
                 tiles = static_cast<unsigned>(ceil_div(z.keys, S::kRows));
  const int first = static_cast<int>(block % tiles) * S::kRows;
  const int kv_head = static_cast<int>(block / tiles % kv_heads),
            b = static_cast<int>(block / tiles / kv_heads);
  const int row = threadIdx.x / 32 * S::kWarpRows, lane = threadIdx.x % 32;
  const ScoreForm<kCap> form(z);

  Sums<kM, kColumns> key_sums, value_sums;
  QuerySteps<S> steps(shared.seen, z, b, first, row);
  shared.k.template load<S::kThreads>(in.k, in.k.of(b, kv_head), first, z.keys, z.d, in.aligned);
  shared.v.template load<S::kThreads>(in.v, in.v.of(b, kv_head), first, z.keys, z.dv, in.aligned);
  const auto load = [&](int step, int stage) {
    auto& to = shared.at[stage];
    const int head = kv_head * static_cast<int>(z.heads / z.kv_heads) + steps.head(step),
              query = steps.query(step);
    to.q.template load<S::kThreads>(in.q, in.q.of(b, head), query, z.queries, z.d, in.aligned);
    to.dout.template load<S::kThreads>(in.dout, in.dout.of(b, head), query, z.queries, z.dv,
                                       in.aligned);
    const int64_t at = (b * z.heads + head) * z.queries + query;
    const int left = z.queries - query < kStep ? static_cast<int>(z.queries - query) : kStep;
    load_rows(to.lse, in.lse + at, left, in.numbers_aligned);
    load_rows(to.delta, in.delta + at, left, in.numbers_aligned);
  };
  walk(steps, load, [&](int step, int stage, const BlockSeen& seen) {
    const auto& now = shared.at[stage];
    const int query = steps.query(step);
    Sums<kM, kStep> p, dp;  // (keys, queries)
    multiply_rows<T>(p, shared.k, row, now.q);
    multiply_rows<T>(dp, shared.v, row, now.dout);
    const auto weigh = [&](auto counts) {
      p.each([&](int m, int half, int j, int e, float& x) {
        const int i = j * 8 + lane % 4 * 2 + e;
        const bool is_in = counts(m, half, j, e);
        const float share = form.of(x);
        x = is_in ? exp2_approx(vmath::fma(share, form.scale, -top_of(now.lse[i]))) : 0;
        float& g = dp.at[m][j][half * 2 + e];
        g = is_in ? x * (g - now.delta[i]) : 0;
        if constexpr (kCap) g *= is_in ? 1 - share * share : 0;
      });
    };
    if (seen.by == BlockSeen::kEverything && first + row + S::kWarpRows <= z.keys &&
        query + kStep <= z.queries) {
      weigh([](int, int, int, int) { return true; });
    } else {
      const CountingSums<kM, kStep, true> counting(z.mask, seen, b, first + row, query);
      weigh([&](int m, int half, int j, int e) { return counting.has(m, half, j, e); });
    }
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
  Operands<T> operands{
      heads(0),
      heads(1),
      heads(2),
      heads(5),
      lse.device_data<float>(),
      delta.device_data<float>(),
      rows_aligned(heads(0)) && rows_aligned(heads(1)) && rows_aligned(heads(2)) &&
          rows_aligned(heads(5)),
      z.queries % 4 == 0 && reinterpret_cast<uintptr_t>(lse.raw_device_data()) % 16 == 0};
  const float* dlses = dlse.defined() ? dlse.device_data<float>() : nullptr;
  with_head_size(std::max(z.d, z.dv), [&]<int kD>() {
    const auto blocks = [](int64_t tiles, int64_t heads_) {
      return static_cast<unsigned>(tiles * heads_);
    };
    with_cap(z, [&]<bool kCap>() {
      const auto queries = [&]<bool kDelta>() {
        using S = QueryShape<kD, kDelta>;
        const auto kernel = query_kernel<T, kD, kDelta, kCap>;
        constexpr size_t kBytes = sizeof(QueryShared<T, kD, kDelta>);
        allow_shared(kernel, kBytes);
        launch(kernel, blocks(ceil_div(z.queries, S::kRows), z.heads * z.batch), S::kThreads,
               kBytes, stream, operands, dlses, delta.device_data<float>(),
               Heads<T>(y[0], heads_inner), z);
      };
      if (z.batch * z.heads * z.queries > 0) {
        if (all_keys) queries.template operator()<true>();
        queries.template operator()<false>();
      }
      if (z.batch * z.kv_heads * z.keys > 0) {
        using S = KeyShape<kD>;
        const auto kernel = key_kernel<T, kD, kCap>;
        constexpr size_t kBytes = sizeof(KeyShared<T, kD>);
        allow_shared(kernel, kBytes);
        launch(kernel, blocks(ceil_div(z.keys, S::kRows), z.kv_heads * z.batch * kParts<kD>),
               S::kThreads, kBytes, stream, operands, Heads<T>(y[1], heads_inner),
               Heads<T>(y[2], heads_inner), z);
      }
    });
  });
}
template void backward<bf16>(Tensors, Outputs, bool, bool, const Tensor&, const Tensor&,
                             const Tensor&, const AttentionSizes&, Stream);
template void backward<f16>(Tensors, Outputs, bool, bool, const Tensor&, const Tensor&,
                            const Tensor&, const AttentionSizes&, Stream);

}  // namespace mma_attention
}  // namespace tessera::op

// SPDX-License-Identifier: Apache-2.0
// Attention's forward kernel on tensor cores.
#include "tessera/kernels/attention/attention_mma.cuh"

namespace tessera::op {
namespace mma_attention {
namespace {

template <int kD> constexpr int kStep = kD <= 128 ? kAttentionBlock : 32;  // keys

template <class T, int kD> struct Shared {
  SeenBlocks<kD> seen;
  HeadTile<T, kRows<kD>, kD> q;
  struct {
    HeadTile<T, kStep<kD>, kD> k, v;
  } at[2];
};

// The scores of a warp's rows become weights, and sums and `out` what they are for the new maximum.
template <int kM, int kStep, int kD> struct Softmax {
  float top[kM][2], sum[kM][2];  // of a row and, of its sum, this thread's part

  __device__ Softmax() {
    for (int m = 0; m < kM; ++m)
      for (int half = 0; half < 2; ++half) top[m][half] = -kInfinity, sum[m][half] = 0;
  }
  __device__ __forceinline__ void take(Sums<kM, kStep>& scores, Sums<kM, kD>& out) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float high = top[m][half];
#pragma unroll
        for (int j = 0; j < kStep / 8; ++j)
          high = fmaxf(fmaxf(high, scores.at[m][j][half * 2]), scores.at[m][j][half * 2 + 1]);
        high = row_max(high);
        const float base = high == -kInfinity ? 0 : high;
        const float rescale = exp2f(top[m][half] - base);
        float all = sum[m][half] * rescale;
#pragma unroll
        for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e)
            all += scores.at[m][j][e] = exp2f(scores.at[m][j][e] - base);
        }
        top[m][half] = high, sum[m][half] = all;
#pragma unroll
        for (int j = 0; j < kD / 8; ++j) {
          out.at[m][j][half * 2] *= rescale;
          out.at[m][j][half * 2 + 1] *= rescale;
        }
      }
    }
  }
};

template <class T, int kD>
__global__ void __launch_bounds__(kMmaThreads<kD>)
    forward_kernel(Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> o, float* lse,
                   AttentionSizes z, bool aligned) {
  constexpr int kM = kTilesM<kD>, kStep = mma_attention::kStep<kD>;
  auto& shared = *reinterpret_cast<Shared<T, kD>*>(launch_shared());
  const QueryTile<kD> tile(z);
  const auto [b, head, kv_head, first, row] = tile;
  const int lane = threadIdx.x % 32;
  const float scale = static_cast<float>(z.scale) * kLog2E;
  const T *k_head = k.of(b, kv_head), *v_head = v.of(b, kv_head);

  Sums<kM, kD> out;
  Softmax<kM, kStep, kD> softmax;
  KeySteps<kD, kStep> steps(shared.seen, z, tile);
  shared.q.load(q, q.of(b, head), first, z.queries, z.d, aligned);
  const auto load = [&](int64_t step, int stage) {
    shared.at[stage].k.load(k, k_head, step * kStep, z.keys, z.d, aligned);
    shared.at[stage].v.load(v, v_head, step * kStep, z.keys, z.dv, aligned);
  };
  walk(steps, load, [&](int64_t step, int stage, const BlockSeen& seen) {
    const int64_t key = step * kStep;
    Sums<kM, kStep> scores;
    multiply_rows<T>(scores, shared.q, row, shared.at[stage].k);
    const bool whole = seen.by == BlockSeen::kEverything && key + kStep <= z.keys;
    const SeenBits<kM, kStep> bits(whole, [&](int r, int column) {
      return z.mask.sees(seen, b, first + row + r, key + column);
    });
    const float broken = seen.by == BlockSeen::kBroken ? not_a_number<float>() : 0;
    scores.each([&](int m, int half, int j, int e, float& score) {
      score = bits.has(m, half, j, e) ? vmath::fma(score, scale, broken) : -kInfinity;
    });
    softmax.take(scores, out);
    multiply_weights<T>(out, scores, shared.at[stage].v);
  });
  float inverse[kM][2];
  for (int m = 0; m < kM; ++m) {
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(softmax.sum[m][half]);
      inverse[m][half] = sum == 0 ? 0 : 1 / sum;
      const int64_t query = first + row + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < z.queries)
        lse[(b * z.heads + head) * z.queries + query] =
            sum == 0 ? -kInfinity : (softmax.top[m][half] + log2f(sum)) * kLn2;
    }
  }
  store_rows(out, o, o.of(b, head), first + row, z.queries, z.dv,
             [&](int m, int half) { return inverse[m][half]; });
}

}  // namespace

template <class T>
void forward(Tensors in, Outputs y, bool heads_inner, const AttentionSizes& z, Stream stream) {
  const Heads<const T> q(in[0], heads_inner), k(in[1], heads_inner), v(in[2], heads_inner);
  const bool aligned = rows_aligned(q) && rows_aligned(k) && rows_aligned(v);
  with_head_size(std::max(z.d, z.dv), [&]<int kD>() {
    const auto kernel = forward_kernel<T, kD>;
    constexpr size_t kBytes = sizeof(Shared<T, kD>);
    allow_shared(kernel, kBytes);
    const int64_t blocks = ceil_div(z.queries, kRows<kD>) * z.heads * z.batch;
    launch(kernel, static_cast<unsigned>(blocks), kMmaThreads<kD>, kBytes, stream, q, k, v,
           Heads<T>(y[0], heads_inner), y[1].device_data<float>(), z, aligned);
  });
}
template void forward<bf16>(Tensors, Outputs, bool, const AttentionSizes&, Stream);
template void forward<f16>(Tensors, Outputs, bool, const AttentionSizes&, Stream);

}  // namespace mma_attention
}  // namespace tessera::op

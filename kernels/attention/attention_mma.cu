// SPDX-License-Identifier: Apache-2.0
// Attention's forward kernel on tensor cores.
#include "tessera/kernels/attention/attention_mma.cuh"

namespace tessera::op {
namespace mma_attention {
namespace {

template <int kD> using ForwardShape = Shape<kD, kD <= 128 ? 2 : 1>;
template <int kD> constexpr int kStep = kD <= 64 ? kAttentionBlock : 32;  // keys

template <class T, int kD> struct Shared {
  SeenBlocks<ForwardShape<kD>> seen;
  HeadTile<T, ForwardShape<kD>::kRows, kD> q;
  struct {
    HeadTile<T, kStep<kD>, kD> k, v;
  } at[2];
};

// The scores of a warp's rows become weights, powers of 2 above a base that follows the rows'
// greatest scores. It may stay behind by kSlack, so that what was summed is seldom multiplied
// again. Scores count times `scale`; taken from the base before, large ones do not lose their
// difference.
template <int kM, int kStep, int kD> struct Softmax {
  static constexpr float kSlack = 8;
  const float scale, nothing;     // of a score that counts for nothing
  float base[kM][2], sum[kM][2];  // of a row and, of its sum, this thread's part

  __device__ explicit Softmax(float s) : scale(s), nothing(s >= 0 ? -kInfinity : kInfinity) {
    for (int m = 0; m < kM; ++m)
      for (int half = 0; half < 2; ++half) base[m][half] = nothing, sum[m][half] = 0;
  }
  __device__ __forceinline__ void take(Sums<kM, kStep>& scores, Sums<kM, kD>& out) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float high = greatest(scores, m, half);
        if ((high - base[m][half]) * scale > kSlack) {
          const float rescale = exp2_approx((base[m][half] - high) * scale);
          base[m][half] = high;
          sum[m][half] *= rescale;
#pragma unroll
          for (int j = 0; j < kD / 8; ++j) {
            out.at[m][j][half * 2] *= rescale;
            out.at[m][j][half * 2 + 1] *= rescale;
          }
        }
        const float from = base[m][half] == nothing ? 0 : base[m][half];
#pragma unroll
        for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) {
            float& score = scores.at[m][j][e];
            sum[m][half] += score = exp2_approx((score - from) * scale);
          }
        }
      }
    }
  }
  /// The greatest score of a row, or the least if `scale` is negative.
  __device__ __forceinline__ float greatest(const Sums<kM, kStep>& scores, int m, int half) const {
    float x = scores.at[m][0][half * 2];
    const auto join = [&](auto f) {
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
        x = f(f(x, scores.at[m][j][half * 2]), scores.at[m][j][half * 2 + 1]);
      x = f(x, __shfl_xor_sync(0xffffffffu, x, 1));  // four neighbouring lanes share a row
      x = f(x, __shfl_xor_sync(0xffffffffu, x, 2));
    };
    if (scale >= 0) join([](float a, float b) { return fmaxf(a, b); });
    else join([](float a, float b) { return fminf(a, b); });
    return x;
  }
};

template <class T, int kD, bool kCap>
__global__ void __launch_bounds__(ForwardShape<kD>::kThreads)
    forward_kernel(Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> o, float* lse,
                   AttentionSizes z, bool aligned) {
  using S = ForwardShape<kD>;
  constexpr int kM = S::kM, kStep = mma_attention::kStep<kD>;
  auto& shared = *reinterpret_cast<Shared<T, kD>*>(launch_shared());
  const QueryTile<S> tile(z);
  const auto [b, head, kv_head, first, row] = tile;
  const int lane = threadIdx.x % 32;
  const T *k_head = k.of(b, kv_head), *v_head = v.of(b, kv_head);

  Sums<kM, kD> out;
  const ScoreForm<kCap> form(z);
  Softmax<kM, kStep, kD> softmax(form.scale);
  KeySteps<S, kStep> steps(shared.seen, z, tile);
  shared.q.template load<S::kThreads>(q, q.of(b, head), first, z.queries, z.d, aligned);
  const auto load = [&](int step, int stage) {
    shared.at[stage].k.template load<S::kThreads>(k, k_head, step * kStep, z.keys, z.d, aligned);
    shared.at[stage].v.template load<S::kThreads>(v, v_head, step * kStep, z.keys, z.dv, aligned);
  };
  walk(steps, load, [&](int step, int stage, const BlockSeen& seen) {
    const int key = step * kStep;
    Sums<kM, kStep> scores;
    multiply_rows<T>(scores, shared.q, row, shared.at[stage].k);
    if constexpr (kCap)
      scores.each([&](int, int, int, int, float& score) { score = form.of(score); });
    if (seen.by != BlockSeen::kEverything || key + kStep > z.keys) {
      const CountingSums<kM, kStep, false> counting(z.mask, seen, b, first + row, key);
      const float broken = seen.by == BlockSeen::kBroken ? not_a_number<float>() : 0;
      scores.each([&](int m, int half, int j, int e, float& score) {
        score = counting.has(m, half, j, e) ? score + broken : softmax.nothing;
      });
    }
    softmax.take(scores, out);
    multiply_weights<T>(out, scores, shared.at[stage].v);
  });
  float inverse[kM][2];
  for (int m = 0; m < kM; ++m) {
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(softmax.sum[m][half]);
      inverse[m][half] = sum == 0 ? 0 : 1 / sum;
      const int query = first + row + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < z.queries)
        lse[(b * z.heads + head) * z.queries + query] =
            sum == 0 ? -kInfinity : (softmax.base[m][half] * softmax.scale + log2f(sum)) * kLn2;
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
    with_cap(z, [&]<bool kCap>() {
      using S = ForwardShape<kD>;
      const auto kernel = forward_kernel<T, kD, kCap>;
      constexpr size_t kBytes = sizeof(Shared<T, kD>);
      allow_shared(kernel, kBytes);
      const int64_t blocks = ceil_div(z.queries, S::kRows) * z.heads * z.batch;
      launch(kernel, static_cast<unsigned>(blocks), S::kThreads, kBytes, stream, q, k, v,
             Heads<T>(y[0], heads_inner), y[1].device_data<float>(), z, aligned);
    });
  });
}
template void forward<bf16>(Tensors, Outputs, bool, const AttentionSizes&, Stream);
template void forward<f16>(Tensors, Outputs, bool, const AttentionSizes&, Stream);

}  // namespace mma_attention
}  // namespace tessera::op

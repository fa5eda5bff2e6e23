// SPDX-License-Identifier: Apache-2.0
// What the blocks of a norm's backward do with a row: it is blockDim.x threads wide, each with some
// packs of it. A block has blockDim.y rows at a time.
#pragma once

#include "tessera/kernels/shared/pack.cuh"
#include "tessera/kernels/vector_math.h"

namespace tessera {

/// Threads of a row at most. A row of more than their packs is cut into slabs, and its sums are
/// made ahead.
inline constexpr int kRowThreads = 512;

/// Added to weights that have no offset: -0, so that zeros keep their signs too.
inline constexpr double kNoOffset = -0.0;

/// Row-major: x, dy, more and dx (rows, d), weight (d), mean and rstd (rows). A weight that is null
/// is 1; `offset` is added to others. `more`, which is added to dx, may be null, and mean is null
/// where nothing is centred.
template <class T> struct NormRows {
  using C = compute_t<T>;
  const T *x, *weight, *dy, *more;
  const C *mean, *rstd;
  T* dx;
  int64_t rows, d;
  C offset = kNoOffset;
  C* sums = nullptr;   // (sums, rows), of rows in slabs
  C* parts = nullptr;  // (gradients, chunks, d)
};

/// Operands that may be left out.
inline Tensor row_major_if_given(const Tensor& x, Stream stream) {
  return x.defined() ? row_major(x, stream) : Tensor();
}
template <class T> T* data_or_null(const Tensor& x) {
  return x.defined() ? x.device_data<T>() : nullptr;
}

/// A weight that is not given is 1, whatever the offset.
template <int kPack, class T>
__device__ __forceinline__ Pack<compute_t<T>, kPack> weights_at(const T* weight, int64_t i,
                                                                compute_t<T> offset) {
  Pack<compute_t<T>, kPack> w;
  if (weight) {
    const auto given = load_pack<kPack>(weight + i);
#pragma unroll
    for (int e = 0; e < kPack; ++e) w.v[e] = static_cast<compute_t<T>>(given.v[e]) + offset;
  } else {
#pragma unroll
    for (int e = 0; e < kPack; ++e) w.v[e] = 1;
  }
  return w;
}

/// Sums of a row, and gradients of parameters: one each for the weight, and for the bias if
/// centred.
template <bool kCentred> inline constexpr int kSumsOf = kCentred ? 2 : 1;

/// The normalised x.
template <bool kCentred, class T, class C>
__device__ __forceinline__ C normal_of(T x, C mean, C rstd) {
  return (kCentred ? static_cast<C>(x) - mean : static_cast<C>(x)) * rstd;
}

/// Adds a pack's share of the row's sums: of g n, with g = w dy and n the normalised x; of g.
template <bool kCentred, int kPack, class T, class C>
__device__ __forceinline__ void add_to_sums(C (&sums)[kSumsOf<kCentred>], const Pack<T, kPack>& x,
                                            const Pack<T, kPack>& dy, const Pack<C, kPack>& weight,
                                            C mean, C rstd) {
#pragma unroll
  for (int e = 0; e < kPack; ++e) {
    const C g = weight.v[e] * static_cast<C>(dy.v[e]);
    sums[0] = vmath::fma(g, normal_of<kCentred>(x.v[e], mean, rstd), sums[0]);
    if constexpr (kCentred) sums[1] += g;
  }
}

/// Gives all blockDim.x threads of a row, a power of two, their joined sums. Rows lie along y; all
/// threads of the block call it, with `shared` that the last call did not have.
template <int n, class C> __device__ __forceinline__ void join_row(C (&sums)[n], C* shared) {
  const int threads = static_cast<int>(blockDim.x), warps = threads / 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (step >= threads) continue;
#pragma unroll
    for (int s = 0; s < n; ++s) sums[s] += __shfl_xor_sync(0xffffffffu, sums[s], step);
  }
  if (warps <= 1) return;
  C* const own = shared + threadIdx.y * warps * n;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int s = 0; s < n; ++s) own[threadIdx.x / 32 * n + s] = sums[s];
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < n; ++s) sums[s] = own[s];
  for (int w = 1; w < warps; ++w) {
#pragma unroll
    for (int s = 0; s < n; ++s) sums[s] += own[w * n + s];
  }
}

/// For join_row, twice: rows take turns.
template <class C, int n> using JoinedRows = C[2][kRowThreads / 32 * n];

/// A thread's columns: packs that lie blockDim.x packs apart. It may have fewer than kPacks.
template <int kPack, int kPacks> struct Columns {
  int64_t first, step, d;
  __device__ explicit Columns(int64_t d)
      : first((static_cast<int64_t>(blockIdx.x) * blockDim.x * kPacks + threadIdx.x) * kPack),
        step(static_cast<int64_t>(blockDim.x) * kPack),
        d(d) {}
  __device__ __forceinline__ int64_t at(int p) const { return first + p * step; }
  __device__ __forceinline__ bool has(int p) const { return at(p) < d; }

  /// Loads the packs of a row. For a pack that the row does not have it loads the first one, which
  /// nobody uses: choosing an address takes fewer registers than choosing values.
  template <class T>
  __device__ __forceinline__ void load(Pack<T, kPack> (&to)[kPacks], const T* row) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) to[p] = load_pack<kPack>(row + (has(p) ? at(p) : 0));
  }
};

/// What a thread has of a row, from its load to its sums.
template <class T, int kPack, int kPacks> struct RowPart {
  Pack<T, kPack> x[kPacks], dy[kPacks];

  __device__ __forceinline__ void load(const NormRows<T>& a, const Columns<kPack, kPacks>& columns,
                                       int64_t row) {
    columns.load(x, a.x + row * a.d);
    columns.load(dy, a.dy + row * a.d);
  }

  template <bool kCentred, class C>
  __device__ __forceinline__ void add_to(C (&sums)[kSumsOf<kCentred>], const NormRows<T>& a,
                                         const Columns<kPack, kPacks>& columns, C mean,
                                         C rstd) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!columns.has(p)) continue;
      const auto weight = weights_at<kPack>(a.weight, columns.at(p), a.offset);
      add_to_sums<kCentred>(sums, x[p], dy[p], weight, mean, rstd);
    }
  }
};

}  // namespace tessera

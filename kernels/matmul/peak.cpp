// SPDX-License-Identifier: Apache-2.0
// A repeat takes about 0.1 ms: shorter than a time slice of the scheduler, longer than its clock
// ticks. A loop has more independent sums than an instruction takes cycles, so the instructions
// follow one another without a wait.
#include "tessera/kernels/matmul/peak.h"

#include "tessera/core/context.h"
#include "tessera/core/error.h"
#include "tessera/core/parallel.h"
#include "tessera/core/process.h"
#include "tessera/kernels/products/micro_tiles_impl.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#if defined(__x86_64__) && defined(__linux__)
#include "tessera/kernels/products/intrinsics_impl.h"
#define TESSERA_HAS_LOOPS 1
#endif

namespace tessera {
namespace {

constexpr int kSums = 12;  // of vectors, all in registers

// A loop over registers: runs `rounds` rounds of `flops` operations.
struct Loop {
  void (*run)(int64_t rounds);
  double flops;
  int64_t rounds;
};

// Vectors of 128 bits, which every machine has; multiplication and addition apart.
template <class T> void plain_sums(int64_t rounds) {
  using Vector __attribute__((vector_size(16))) = T;
  const Vector x = Vector{} + T(0.5);
  Vector sums[kSums] = {};
  for (; rounds > 0; --rounds) {
    for (Vector& sum : sums) sum = sum * x + x;
  }
  asm volatile("" : : "m"(sums));  // somebody needs them
}

#ifdef TESSERA_HAS_LOOPS
// `fma` on twelve sums; the empty asm keeps them in registers and alive.
#define TESSERA_SUMS(name, target_of, Vector, set, fma)                                        \
  target_of void name(int64_t rounds) {                                                        \
    const Vector x = set(0.5);                                                                 \
    Vector a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x; \
    for (; rounds > 0; --rounds) {                                                             \
      a = fma(a, x, x), b = fma(b, x, x), c = fma(c, x, x), d = fma(d, x, x);                  \
      e = fma(e, x, x), f = fma(f, x, x), g = fma(g, x, x), h = fma(h, x, x);                  \
      i = fma(i, x, x), j = fma(j, x, x), k = fma(k, x, x), l = fma(l, x, x);                  \
      asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f));                 \
      asm volatile("" : "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));                 \
    }                                                                                          \
  }
TESSERA_SUMS(sums_f32_512, TESSERA_AVX512, __m512, _mm512_set1_ps, _mm512_fmadd_ps)
TESSERA_SUMS(sums_f64_512, TESSERA_AVX512, __m512d, _mm512_set1_pd, _mm512_fmadd_pd)
TESSERA_SUMS(sums_f32_256, TESSERA_AVX2, __m256, _mm256_set1_ps, _mm256_fmadd_ps)
TESSERA_SUMS(sums_f64_256, TESSERA_AVX2, __m256d, _mm256_set1_pd, _mm256_fmadd_pd)
#undef TESSERA_SUMS

// Pairs of bf16: 32 products added to 16 sums.
__attribute__((target("avx512f,avx512bf16"))) void sums_bf16_512(int64_t rounds) {
  __m512 sums[kSums] = {};
  const __m512bh pairs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f003f00));
  for (; rounds > 0; --rounds) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, pairs, pairs);
#pragma GCC unroll 12
    for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  }
}

// Four tiles of sums, as tile_block has; all values are zero, which takes as long.
__attribute__((target("amx-tile,amx-bf16"))) void sums_tiles(int64_t rounds) {
  const micro::TileScope scope;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (; rounds > 0; --rounds) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}
#endif

// The loops that products of `dtype` may run at the speed of.
std::vector<Loop> loops_of(DType dtype) {
  if (!is_floating(dtype))
    fail<DTypeError>("measure_peak", "matmuls are of floating dtypes: given ", dtype);
  const bool wide = dtype == DType::f64;
  constexpr int64_t kRounds = 40'000;
  std::vector<Loop> loops;
  const auto add = [&](void (*run)(int64_t), int lanes) {
    loops.push_back({run, 2.0 * kSums * lanes, kRounds});
  };
#ifdef TESSERA_HAS_LOOPS
  const Isa isa = Process::get().isa();
  if (isa == Isa::avx512) add(wide ? sums_f64_512 : sums_f32_512, wide ? 8 : 16);
  if (isa == Isa::avx2) add(wide ? sums_f64_256 : sums_f32_256, wide ? 4 : 8);
  if (dtype == DType::bf16 && isa == Isa::avx512 && __builtin_cpu_supports("avx512bf16"))
    add(sums_bf16_512, 32);
  if (dtype == DType::bf16 && micro::has_tiles())
    loops.push_back({sums_tiles, 4 * 2.0 * 16 * 16 * 32, kRounds / 10});
#endif
  if (loops.empty()) add(wide ? plain_sums<double> : plain_sums<float>, wide ? 2 : 4);
  return loops;
}

// FLOP/s of the fastest repeat on this thread.
double fastest(const Loop& loop, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLeast = 8;
  const auto start = Clock::now();
  const auto since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  double best = 0;
  for (int repeats = 0; repeats < kLeast || since(start) < seconds; ++repeats) {
    const auto begin = Clock::now();
    loop.run(loop.rounds);
    best = std::max(best, loop.flops * static_cast<double>(loop.rounds) / since(begin));
  }
  return best;
}

}  // namespace

double measure_peak(DType dtype, double seconds) {
  const std::vector<Loop> loops = loops_of(dtype);
  std::vector<double> best(static_cast<size_t>(Context::current().options.threads));
  const double each = seconds / static_cast<double>(loops.size());
  parallel_for(static_cast<int64_t>(best.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      for (const Loop& loop : loops) {
        double& fast = best[static_cast<size_t>(thread)];
        fast = std::max(fast, fastest(loop, each));
      }
    }
  });
  return std::accumulate(best.begin(), best.end(), 0.0);
}

}  // namespace tessera

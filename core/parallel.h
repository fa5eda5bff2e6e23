// SPDX-License-Identifier: Apache-2.0
// Threads and instruction sets for CPU kernels. Work is split into chunks that do not depend on the
// thread count, so results do not either. `simd` runs a loop compiled for the machine's instruction
// set: the lambda (and what it inlines) is compiled once per set, from baseline code, without one
// file per set.
#pragma once

#include "tessera/core/context.h"
#include "tessera/core/process.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace tessera {

namespace detail {
using ChunkFunction = void (*)(const void* f, int64_t begin, int64_t end);
TESSERA_API void run_chunks(int64_t n, int64_t grain, int threads, ChunkFunction run,
                            const void* f);
}  // namespace detail

/// Runs f(begin, end) over [0, n) in chunks of `grain`, on the current rank's threads. f must not
/// throw nor allocate tensors. Chunk boundaries are multiples of `grain` whatever the number of
/// threads.
template <class F> void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t chunks = (n + grain - 1) / grain;
  const int threads =
      static_cast<int>(std::min<int64_t>(chunks, Context::current().options.threads));
  if (threads <= 1) {
    for (int64_t begin = 0; begin < n; begin += grain) f(begin, std::min(n, begin + grain));
    return;
  }
  const auto run = [](const void* erased, int64_t begin, int64_t end) {
    (*static_cast<const std::remove_reference_t<F>*>(erased))(begin, end);
  };
  detail::run_chunks(n, grain, threads, run, &f);
}

#if defined(__x86_64__) && !defined(__CUDACC__)
#ifdef __clang__
#define TESSERA_WIDE_VECTORS ""  // its general tuning takes 512 bits where it may
#else
#define TESSERA_WIDE_VECTORS ",prefer-vector-width=512"
#endif
#define TESSERA_AVX2 __attribute__((target("avx2,fma,f16c,bmi2")))
#define TESSERA_AVX512 \
  __attribute__((      \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2" TESSERA_WIDE_VECTORS)))
namespace detail {
template <class F> TESSERA_AVX2 __attribute__((noinline)) void run_avx2(F& f) { f(); }
template <class F> TESSERA_AVX512 __attribute__((noinline)) void run_avx512(F& f) { f(); }
}  // namespace detail

/// Runs `f`, which must be a lambda marked TESSERA_LAMBDA, compiled for the machine's instruction
/// set.
template <class F> void simd(F&& f) {
  switch (Process::get().isa()) {
    case Isa::avx512: return detail::run_avx512(f);
    case Isa::avx2: return detail::run_avx2(f);
    case Isa::baseline: return f();
  }
}
#else
template <class F> void simd(F&& f) { f(); }
#endif

/// Marks a lambda given to simd: `simd([&]() TESSERA_LAMBDA { ... })`.
#define TESSERA_LAMBDA __attribute__((always_inline))

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Distribution of chunks over threads: each thread begins with the same adjacent chunks in every
// call, so that data of the last op is in its cache, then it takes chunks of others. Beyond 64
// threads, several begin with the same chunks.
#include "tessera/core/parallel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <omp.h>

namespace tessera::detail {
namespace {

// Tells the thread sanitizer, which does not see OpenMP's own waits, that threads of a region start
// after what the caller did before it, and have ended before what the caller does next. Each caller
// has one.
class SeenBySanitizer {
 public:
#ifdef __SANITIZE_THREAD__
  void pass() { passed_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<int> passed_{0};
#else
  void pass() {}
#endif
};
constinit thread_local SeenBySanitizer region;

}  // namespace

void run_chunks(int64_t n, int64_t grain, int threads, ChunkFunction run, const void* f) {
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  constexpr int64_t kMost = 64;
  std::array<Share, kMost> shares;
  const int64_t chunks = (n + grain - 1) / grain, count = std::min<int64_t>(threads, kMost);
  for (int64_t i = 0; i < count; ++i) {
    shares[static_cast<size_t>(i)].next = chunks * i / count;
    shares[static_cast<size_t>(i)].end = chunks * (i + 1) / count;
  }
  SeenBySanitizer& own = region;
  own.pass();
#pragma omp parallel num_threads(threads)
  {
    own.pass();
    for (int64_t i = 0; i < count; ++i) {
      Share& share = shares[static_cast<size_t>((omp_get_thread_num() + i) % count)];
      int64_t c;
      while ((c = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end)
        run(f, c * grain, std::min(n, (c + 1) * grain));
    }
    own.pass();
  }
  own.pass();
}

}  // namespace tessera::detail

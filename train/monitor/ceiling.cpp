// SPDX-License-Identifier: Apache-2.0
// The product starts small and grows while there is time, so that a slow machine is not kept
// waiting and a fast one is not timed on a product that is too small for it.
#include "tessera/train/monitor/ceiling.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"

#include <algorithm>
#include <chrono>

namespace tessera::train {

double measure_ceiling(DType dtype, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSmallest = 256, kLargest = 2048;
  const NoGrad guard;
  const auto start = Clock::now();
  const auto since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  double best = 0;
  for (int64_t n = kSmallest;; n *= 2) {
    const Tensor a = normal({n, n}, {1, 1}, 0, 1, dtype), b = normal({n, n}, {1, 2}, 0, 1, dtype);
    const auto once = [&] {
      const auto begin = Clock::now();
      const Tensor c = matmul(a, b);
      const double took = std::max(since(begin), 1e-9), size = static_cast<double>(n);
      best = std::max(best, 2 * size * size * size / took);
      return took;
    };
    once();  // the first of a size prepares
    double last = once();
    // Twice the size is eight times the work, done three times.
    if (n < kLargest && since(start) + 24 * last < seconds) continue;
    while (since(start) + last < seconds) last = once();
    return best;
  }
}

}  // namespace tessera::train

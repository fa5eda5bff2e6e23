// SPDX-License-Identifier: Apache-2.0
// Counts on CPU: each thread counts for itself, then bins are added up.
#include "tessera/kernels/histogram/histogram.h"

#include "tessera/kernels/shared/strided_copy_impl.h"

#include <cmath>
#include <limits>

namespace tessera::op {
namespace {

constexpr int64_t kGrain = 16384;

void check_input(std::string_view name, DTypeSet dtypes, const TensorMeta& x, int64_t bins) {
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  if (bins < 0)
    fail<ValueError>(name, "the number of bins must not be negative: given ", bins, " for ", x);
}

// Each piece counts its own values.
ShardingRule count_rule(const Shape& shape) {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int64_t size : shape) dims.push_back({static_cast<int16_t>(r.add_factor(size)), 1});
  return r.operand(dims).outputs_from_here().operand({DimFactor{}});
}

// Counts `n` elements; bin_of(i) gives the bin of element i, or -1.
template <class F> void count(int64_t n, int64_t bins, int64_t* y, F&& bin_of) {
  std::fill_n(y, bins, 0);
  const int threads = static_cast<int>(
      std::min<int64_t>(Context::current().options.threads, n / (2 * kGrain + 4 * bins) + 1));
  if (threads == 1) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t bin = bin_of(i);
      if (bin >= 0) ++y[bin];
    }
    return;
  }
  // One more bin takes what is not counted.
  const Tensor scratch = empty({threads, bins + 1}, DType::i64);
  int64_t* all = scratch.data<int64_t>();
  const int64_t part = (n + threads - 1) / threads;
  parallel_for(n, part, [&](int64_t begin, int64_t end) {
    int64_t* mine = all + begin / part * (bins + 1) + 1;
    std::fill_n(mine - 1, bins + 1, 0);
    for (int64_t i = begin; i < end; ++i) ++mine[bin_of(i)];
  });
  for (int64_t t = 0; t * part < n; ++t) {
    for (int64_t b = 0; b < bins; ++b) y[b] += all[t * (bins + 1) + 1 + b];
  }
}

}  // namespace

MetaList Bincount::meta(Metas in) const {
  check_input(name, dtypes, in[0], bins);
  return {{Shape{bins}, DType::i64, in[0].device}};
}

ShardingRule Bincount::sharding(Metas in) const { return count_rule(in[0].shape); }

void Bincount::cpu(Tensors in, Outputs y) const {
  const Tensor x = row_major(in[0]);
  const int64_t n = x.numel();
  int64_t* counts = bins > 0 ? y[0].data<int64_t>() : nullptr;
  if (n == 0) return (void)std::fill_n(counts, bins, 0);
  const int64_t* from = x.data<int64_t>();
  const auto limit = static_cast<uint64_t>(bins);
  int64_t outside = 0;
  simd([&]() TESSERA_LAMBDA {
    int64_t any = 0;
    for (int64_t i = 0; i < n; ++i)
      any |= static_cast<int64_t>(static_cast<uint64_t>(from[i]) >= limit);
    outside = any;
  });
  for (int64_t i = 0; outside; ++i) {
    if (static_cast<uint64_t>(from[i]) >= limit)
      fail<IndexError>(name, "value ", from[i], " at position ", i, " (row-major) of ", x.meta(),
                       " has no bin: expected 0 to ", bins - 1);
  }
  count(n, bins, counts, [from](int64_t i) { return from[i]; });
}

std::vector<Sample<Bincount>> Bincount::samples() {
  return {
      {Bincount{9}, {index_arg({37}, 0, 9)}},
      {Bincount{20}, {index_arg({5, 6, 7}, 3, 12)}},
      {Bincount{5}, {index_arg({}, 0, 5)}},
      known(Bincount{5}, {arg({6}).listed({1, 3, 1, 0, 1, 3}).as(DType::i64)}, {{1, 3, 0, 2, 0}}),
      timed(Bincount{64}, {index_arg({16384}, 0, 64)}),
      timed(Bincount{50304}, {index_arg({1 << 20}, 0, 50304)}),
      bad(Bincount{5}, {index_arg({8}, 5, 9)}, "IndexError"),
      bad(Bincount{5}, {index_arg({8}, -3, 0)}, "IndexError"),
      bad(Bincount{-1}, {index_arg({8}, 0, 5)}, "ValueError"),
      bad(Bincount{5}, {arg({8}).as(DType::f32)}, "DTypeError"),
  };
}

// --- histogram ----------------------------------------------------------------------------------------------------

MetaList Histogram::meta(Metas in) const {
  check_input(name, dtypes, in[0], bins);
  if (!(low < high) || !std::isfinite(high - low))
    fail<ValueError>(name, "expected finite low < high: given low ", low, " and high ", high,
                     " for ", in[0]);
  return {{Shape{bins}, DType::i64, in[0].device}};
}

ShardingRule Histogram::sharding(Metas in) const { return count_rule(in[0].shape); }

void Histogram::cpu(Tensors in, Outputs y) const {
  const Tensor x = row_major(in[0]);
  const int64_t n = x.numel();
  if (bins == 0) return;
  int64_t* counts = y[0].data<int64_t>();
  if (n == 0) return (void)std::fill_n(counts, bins, 0);
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    const Histogram op = *this;
    count(n, bins, counts, [from, op](int64_t i) {
      return op.bin_of(static_cast<double>(static_cast<compute_t<T>>(from[i])));
    });
  });
}

std::vector<Sample<Histogram>> Histogram::samples() {
  return {
      {Histogram{7, -1.5, 2}, {arg({37})}},
      {Histogram{10, 0, 9}, {arg({5, 6, 7}).whole(0, 12)}},
      {Histogram{1, -3, 3}, {arg({5})}},
      known(Histogram{4, 0, 4}, {arg({7}).listed({0, 1, 1, 3, 4, 5, 2})}, {{1, 2, 1, 2}}),
      known(Histogram{2, -1, 1}, {arg({4}).listed({-0.5, 0, 0.25, -2})}, {{1, 2}}),
      timed(Histogram{100, -3, 3}, {arg({1024, 1024})}),
      bad(Histogram{5, 1, 1}, {arg({8})}, "ValueError"),
      bad(Histogram{5, 0, std::numeric_limits<double>::infinity()}, {arg({8})}, "ValueError"),
      bad(Histogram{-5, 0, 1}, {arg({8})}, "ValueError"),
      bad(Histogram{5, 0, 1}, {arg({8}).as(DType::bool_)}, "DTypeError"),
  };
}

}  // namespace tessera::op

// SPDX-License-Identifier: Apache-2.0
// permutation on CPU: places sorted by the upper halves of their numbers; the few that tie there by
// the whole.
#include "tessera/kernels/permutation/permutation.h"

#include "tessera/core/message.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/philox_impl.h"
#include "tessera/kernels/shared/radix_sort_impl.h"
#include "tessera/kernels/shared/rows_impl.h"

#include <algorithm>
#include <cstring>

namespace tessera::op {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int kBuckets = 256;
constexpr int64_t kFewPerBucket = 16384;

// The upper half of each place's number, in order of place.
void make_keys(const Permutation& op, uint32_t* keys) {
  constexpr int64_t kAtOnce = 2 * kPhiloxBlocks;  // a counter gives two places their numbers
  parallel_for(op.n, kGrain, [&](int64_t begin, int64_t end) {
    simd([&]() TESSERA_LAMBDA {
      for (int64_t i = begin; i < end; i += kAtOnce) {
        uint32_t bits[4][kPhiloxBlocks];
        philox_batch(op.key, static_cast<uint64_t>(i) / 2, bits);
        uint32_t here[kAtOnce];
        for (int64_t j = 0; j < kPhiloxBlocks; ++j) {
          here[2 * j] = bits[0][j];
          here[2 * j + 1] = bits[2][j];
        }
        std::memcpy(keys + i, here, static_cast<size_t>(std::min(kAtOnce, end - i)) * 4);
      }
    });
  });
}

// The items of a bucket, which agree in the first byte, by their other bytes. The last one is left
// to comparisons where so few items agree in all the others that these find little to move.
PackedItem* sort_bucket(PackedItem* items, PackedItem* other, int64_t n) {
  const int first = n < kFewPerBucket ? 1 : 0;
  PackedItem* sorted = radix_sort(items, other, n, 3, first);
  for (int64_t i = 1; first > 0 && i < n; ++i) {
    const PackedItem item = sorted[i];
    int64_t to = i;
    for (; to > 0 && sorted[to - 1] > item; --to) sorted[to] = sorted[to - 1];
    sorted[to] = item;
  }
  return sorted;
}

// Places that tie in the upper half, by the whole.
void settle_ties(const Permutation& op, PackedItem* sorted, int64_t n) {
  for (int64_t i = 0; i + 1 < n; ++i) {
    if (sorted[i] >> 32 != sorted[i + 1] >> 32) continue;
    int64_t end = i + 2;
    while (end < n && sorted[end] >> 32 == sorted[i] >> 32) ++end;
    std::stable_sort(sorted + i, sorted + end, [&](PackedItem a, PackedItem b) {
      return op.weight(static_cast<uint64_t>(place_of(a))) <
             op.weight(static_cast<uint64_t>(place_of(b)));
    });
  }
}

}  // namespace

MetaList Permutation::meta(Metas in) const {
  if (in.size() != 0) fail<UsageError>(name, "takes no inputs: given ", in.size());
  if (n < 0 || n > int64_t{1} << 32)
    fail<ShapeError>(name, "expected 0 to 2^32 elements: given ", n);
  if (begin < 0 || count < 0 || begin > n || count > n - begin)
    fail<ShapeError>(name, counted(count, "element"), " from ", begin, " would not lie inside ", n);
  return {{Shape{count}, DType::i64, device}};
}

ShardingRule Permutation::sharding(Metas) const {
  ShardingRule r;
  const DimFactor c{static_cast<int16_t>(r.add_factor(count, 'n')), 1};
  return r.outputs_from_here().operand({c});
}

Permutation Permutation::local(const Piece& piece) const {
  Permutation p = *this;
  p.begin += piece.range(0, 0).begin;
  p.count = piece.range(0, 0).size;
  return p;
}

// The first byte makes buckets that fit the cache and are sorted by the others, one thread each.
void Permutation::cpu(Tensors, Outputs y) const {
  if (count == 0) return;
  const Tensor first_halves = empty({n}, DType::i32), buckets = empty({n}, DType::i64);
  auto* keys = static_cast<uint32_t*>(first_halves.raw_data());
  auto* items = static_cast<PackedItem*>(buckets.raw_data());
  make_keys(*this, keys);
  int64_t starts[kBuckets + 1] = {};
  for (int64_t i = 0; i < n; ++i) ++starts[(keys[i] >> 24) + 1];
  const int64_t largest = *std::max_element(starts, starts + kBuckets + 1);
  for (int b = 0; b < kBuckets; ++b) starts[b + 1] += starts[b];
  int64_t next[kBuckets];
  std::copy_n(starts, kBuckets, next);
  for (int64_t i = 0; i < n; ++i) items[next[keys[i] >> 24]++] = pack_item(keys[i], i);
  int64_t* to = y[0].data<int64_t>();
  // The other half of a sort is a bucket that stays in the cache.
  for_each_row<int64_t>(kBuckets, n / kBuckets, largest, 1,
                        [&](int64_t b, int64_t* scratch, int64_t) {
                          const int64_t first = std::max(starts[b], begin),
                                        last = std::min(starts[b + 1], begin + count);
                          if (first >= last) return;
                          const int64_t at = starts[b], size = starts[b + 1] - at;
                          auto* other = reinterpret_cast<PackedItem*>(scratch);
                          PackedItem* sorted = sort_bucket(items + at, other, size);
                          settle_ties(*this, sorted, size);
                          for (int64_t i = first; i < last; ++i)
                            to[i - begin] = place_of(sorted[i - at]);
                        });
}

std::vector<Sample<Permutation>> Permutation::samples() {
  return {
      {Permutation{17, {3, 5}, 0, 17, kCpu}, {}},
      {Permutation{300, {4, 6}, 100, 70, kCpu}, {}},
      {Permutation{9, {3, 5}, 0, 9, kMeta}, {}},
      known(Permutation{7, {3, 5}, 0, 7, kCpu}, {}, {{1, 3, 2, 0, 5, 6, 4}}),
      known(Permutation{9, {4, 6}, 2, 5, kCpu}, {}, {{6, 3, 5, 4, 1}}),
      timed(Permutation{1 << 20, {3, 5}, 0, 1 << 20, kCpu}, {}),
      bad(Permutation{-1, {3, 5}, 0, -1, kCpu}, {}, "ShapeError"),
      bad(Permutation{9, {3, 5}, 4, 6, kCpu}, {}, "ShapeError"),
      bad(Permutation{4, {3, 5}, 0, 4, kCpu}, {arg({4})}, "UsageError"),
  };
}

}  // namespace tessera::op

// SPDX-License-Identifier: Apache-2.0
// permutation on CPU: places sorted by the upper halves of their numbers; the few that tie there by
// the whole.
#include "tessera/kernels/permutation/permutation.h"

#include "tessera/core/parallel.h"
#include "tessera/kernels/radix_sort_impl.h"

namespace tessera::op {
namespace {

// All places by (weight, place); `all` has room for 2 * n.
const PackedItem* sorted_places(const Permutation& op, PackedItem* all) {
  const int64_t n = op.n;
  parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      all[i] = pack_item(static_cast<uint32_t>(op.weight(static_cast<uint64_t>(i)) >> 32), i);
  });
  PackedItem* sorted = radix_sort(all, all + n, n, 4);
  for (int64_t i = 0; i < n;) {
    int64_t end = i + 1;
    while (end < n && sorted[end] >> 32 == sorted[i] >> 32) ++end;
    if (end - i > 1)
      std::stable_sort(sorted + i, sorted + end, [&](PackedItem a, PackedItem b) {
        return op.weight(static_cast<uint64_t>(place_of(a))) <
               op.weight(static_cast<uint64_t>(place_of(b)));
      });
    i = end;
  }
  return sorted;
}

}  // namespace

MetaList Permutation::meta(Metas in) const {
  if (in.size() != 0) fail<UsageError>(name, "takes no inputs: given ", in.size());
  if (n < 0 || n > int64_t{1} << 32)
    fail<ShapeError>(name, "expected 0 to 2^32 elements: given ", n);
  if (begin < 0 || count < 0 || begin > n || count > n - begin)
    fail<ShapeError>(name, count, " elements from ", begin, " do not lie inside ", n);
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

void Permutation::cpu(Tensors, Outputs y) const {
  if (count == 0) return;
  const Tensor scratch = empty({2, n}, DType::i64);
  const PackedItem* sorted = sorted_places(*this, static_cast<PackedItem*>(scratch.raw_data()));
  int64_t* to = y[0].data<int64_t>();
  for (int64_t i = 0; i < count; ++i) to[i] = place_of(sorted[begin + i]);
}

std::vector<Sample<Permutation>> Permutation::samples() {
  return {
      {Permutation{17, {3, 5}, 0, 17, kCpu}, {}},
      {Permutation{300, {4, 6}, 100, 70, kCpu}, {}},
      {Permutation{9, {3, 5}, 0, 9, kMeta}, {}},
      timed(Permutation{1 << 20, {3, 5}, 0, 1 << 20, kCpu}, {}),
      bad(Permutation{-1, {3, 5}, 0, -1, kCpu}, {}, "ShapeError"),
      bad(Permutation{9, {3, 5}, 4, 6, kCpu}, {}, "ShapeError"),
      bad(Permutation{4, {3, 5}, 0, 4, kCpu}, {arg({4})}, "UsageError"),
  };
}

}  // namespace tessera::op

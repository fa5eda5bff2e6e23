// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradient, samples and CPU kernel of flip: rows of the output, each read
// backwards where the last dim is flipped.
#include "tessera/kernels/flip/flip.h"

#include "tessera/kernels/shared/strided_copy_impl.h"

namespace tessera::op {
namespace {

uint32_t mask_of(const Flip& op, const TensorMeta& x) {
  uint32_t mask = 0;
  for (const int64_t dim : op.dims) {
    if (x.shape.rank() == 0)
      fail<ShapeError>(op.name, "a 0-dim tensor has no dim ", dim, ": given ", x);
    const uint32_t bit = 1u << normalize_dim(static_cast<int>(dim), x.shape.rank(), op.name);
    if (mask & bit) fail<ShapeError>(op.name, "dims must differ: given ", op.dims, " for ", x);
    mask |= bit;
  }
  return mask;
}

// Rows whose last dim is read backwards, element beside element.
template <class Bits>
void copy_backwards(const Tensor& y, const Tensor& x, const LoopNest<2>& nest) {
  constexpr int64_t kGrain = 65536 / static_cast<int64_t>(sizeof(Bits));
  const int64_t n = nest.shape.back(), cuts = (n + kGrain - 1) / kGrain,
                piece = (n + cuts - 1) / cuts;
  auto* to = static_cast<Bits*>(y.raw_data());
  const auto* from = static_cast<const Bits*>(x.raw_data());
  parallel_for(y.numel() / n * cuts, std::max<int64_t>(1, kGrain / piece),
               [&](int64_t begin, int64_t end) {
                 simd([&]() TESSERA_LAMBDA {
                   for (int64_t task = begin; task < end; ++task) {
                     const auto at = nest.row_offsets(task / cuts);
                     const int64_t first = task % cuts * piece, count = std::min(piece, n - first);
                     Bits* __restrict row = to + at[0] + first;
                     const Bits* __restrict source = from + at[1] - first;
                     for (int64_t i = 0; i < count; ++i) row[i] = source[-i];
                   }
                 });
               });
}

}  // namespace

MetaList Flip::meta(Metas in) const {
  (void)mask_of(*this, in[0]);
  return {in[0]};
}

ShardingRule Flip::sharding(Metas in) const {
  const uint32_t flipped = mask_of(*this, in[0]);
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> factors;
  for (int d = 0; d < in[0].shape.rank(); ++d) {
    factors.push_back({static_cast<int16_t>(r.add_factor(in[0].shape[d])), 1});
    if (flipped >> d & 1) r.replicate_factor(factors.back().factor);
  }
  return r.operand(factors).outputs_from_here().operand(factors).linear({0}).monotone_up();
}

void Flip::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0) return;
  const Tensor x = reversed(in[0]);
  const LoopNest<2> nest(x.shape(), {&y[0], &x});
  if (nest.strides[1].back() != -1) return strided_copy(y[0], x);
  switch (item_size(x.dtype())) {
    case 1: return copy_backwards<uint8_t>(y[0], x, nest);
    case 2: return copy_backwards<uint16_t>(y[0], x, nest);
    case 4: return copy_backwards<uint32_t>(y[0], x, nest);
    default: return copy_backwards<uint64_t>(y[0], x, nest);
  }
}

Grads Flip::vjp(const Saved&, const Grads& dy, Needs) const { return {call(*this, {dy[0]})}; }

std::vector<Sample<Flip>> Flip::samples() {
  return {
      {Flip{{0}}, {arg({5, 7})}},
      {Flip{{-1}}, {arg({5, 7})}},
      {Flip{{0, 2}}, {arg({5, 6, 7})}},
      {Flip{{1}}, {arg({5, 8, 6})}},
      {Flip{{}}, {arg({5})}},
      timed(Flip{{0}}, {arg({1024, 1024})}),
      timed(Flip{{1}}, {arg({1024, 1024})}),
      known(Flip{{0, 1}}, {arg({2, 3}).listed({1, 2, 3, 4, 5, 6})}, {{6, 5, 4, 3, 2, 1}}),
      bad(Flip{{2}}, {arg({5, 7})}, "IndexError"),
      bad(Flip{{0, -2}}, {arg({5, 7})}, "ShapeError"),
      bad(Flip{{0}}, {arg({})}, "ShapeError"),
  };
}

}  // namespace tessera::op

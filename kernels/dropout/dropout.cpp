// SPDX-License-Identifier: Apache-2.0
// dropout on CPU: the bits of 64 elements at a time, compared as whole numbers.
#include "tessera/kernels/dropout/dropout.h"

#include "tessera/core/draws.h"
#include "tessera/kernels/shared/philox_impl.h"
#include "tessera/kernels/shared/piece_index_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

#include <bit>

namespace tessera {
namespace op {
namespace {

struct Mask {
  RngKey key;
  uint32_t threshold;
  bool stays(uint64_t i) const { return rng::philox(key, i / 4).v[i % 4] >= threshold; }
};

// Elements first, first + 1, ... of the whole.
template <class T>
void drop_run(const Mask& mask, double by, uint64_t first, int64_t n, const T* x, T* y) {
  using C = compute_t<T>;
  const C scale = static_cast<C>(by);
  int64_t i = 0;
  const auto one = [&] {
    y[i] = mask.stays(first + static_cast<uint64_t>(i))
               ? static_cast<T>(static_cast<C>(x[i]) * scale)
               : T(0);
    ++i;
  };
  while (i < n && (first + static_cast<uint64_t>(i)) % 4 != 0) one();
  simd([&]() TESSERA_LAMBDA {
    for (; i + kPhiloxBatch <= n; i += kPhiloxBatch) {
      uint32_t bits[4][kPhiloxBlocks], order[kPhiloxBatch];
      philox_batch(mask.key, (first + static_cast<uint64_t>(i)) / 4, bits);
      for (int64_t j = 0; j < kPhiloxBlocks; ++j) {
        for (int64_t e = 0; e < 4; ++e) order[4 * j + e] = bits[e][j];
      }
      for (int64_t j = 0; j < kPhiloxBatch; ++j) {
        const C v = static_cast<C>(x[i + j]) * scale;
        y[i + j] = static_cast<T>(order[j] >= mask.threshold ? v : C(0));
      }
    }
  });
  while (i < n) one();
}

}  // namespace

MetaList Dropout::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x);
  if (!(p >= 0 && p < 1))
    fail<ValueError>(name, "p must be at least 0 and below 1: given ", p, " for ", x);
  for (size_t i = 1; i < 4; ++i) {
    if (in[i].dtype != DType::i64 || in[i].shape.rank() != 0)
      fail<DTypeError>(name, "seed, stream and row must be i64[]: given ", in[i]);
  }
  bool fits = whole.rank() == x.shape.rank() && start.rank() == x.shape.rank();
  for (int d = 0; fits && d < x.shape.rank(); ++d)
    fits = start[d] >= 0 && x.shape[d] <= whole[d] - start[d];
  if (!fits) fail<ShapeError>(name, "a piece ", x, " at ", start, " does not lie inside ", whole);
  return {x};
}

ShardingRule Dropout::sharding(Metas in) const {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int64_t size : in[0].shape) dims.push_back({static_cast<int16_t>(r.add_factor(size)), 1});
  return r.operand(dims)
      .operand({})
      .operand({})
      .operand({})
      .outputs_from_here()
      .operand(dims)
      .linear({0});
}

Dropout Dropout::local(const Piece& piece) const {
  Dropout d = *this;
  for (int i = 0; i < start.rank(); ++i) d.start[i] += piece.range(0, i).begin;
  return d;
}

void Dropout::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0) return;
  const Tensor x = row_major(in[0]);
  const Mask mask{{std::bit_cast<uint64_t>(*in[1].data<int64_t>()),
                   std::bit_cast<uint64_t>(*in[2].data<int64_t>())},
                  threshold()};
  PieceIndex place(x.shape(), start, whole);
  place.base += *in[3].data<int64_t>() * row_size();
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y[0].data<T>();
    for_each_run(place, x.numel(), [&](uint64_t number, int64_t i, int64_t n) {
      drop_run(mask, scale(), number, n, from + i, to + i);
    });
  });
}

Grads Dropout::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(4);
  if (needs[0]) g[0] = call(*this, {dy[0], s.input(1), s.input(2), s.input(3)});
  return g;
}

std::vector<Sample<Dropout>> Dropout::samples() {
  const Arg seed = index_arg({}, 0, 1 << 30), stream = seed, row = index_arg({}, 0, 1 << 20);
  const Arg six = arg({6}).listed({1, 2, 3, 4, 5, 6});
  const auto seed_of = [](double v) { return arg({}).listed({v}).as(DType::i64); };
  return {
      {Dropout{0.5, {5, 77}, {0, 0}}, {arg({5, 77}), seed, stream, row}},
      {Dropout{0.1, {5, 6, 7}, {0, 0, 0}}, {arg({5, 6, 7}), seed, stream, row}},
      {Dropout{0.25, {9, 200}, {2, 7}}, {arg({5, 133}), seed, stream, row}},
      {Dropout{0, {5}, {0}}, {arg({5}), seed, stream, row}},
      {Dropout{0.3, {}, {}}, {arg({}), seed, stream, row}},
      known(Dropout{0.5, {6}, {0}}, {six, seed_of(3), seed_of(5), seed_of(0)},
            {{0, 0, 0, 8, 0, 12}}),
      known(Dropout{0.25, {6}, {0}}, {six, seed_of(3), seed_of(5), seed_of(0)},
            {{1.3333333333333333, 0, 0, 5.333333333333333, 6.666666666666667, 8}}),
      known(Dropout{0.5, {2, 3}, {0, 0}},
            {arg({2, 3}).listed({1, 2, 3, 4, 5, 6}), seed_of(3), seed_of(5), seed_of(1)},
            {{2, 0, 6, 0, 10, 12}}),
      timed(Dropout{0.1, {4096, 1024}, {0, 0}}, {arg({4096, 1024}), seed, stream, row}),
      bad(Dropout{1, {5}, {0}}, {arg({5}), seed, stream, row}, "ValueError"),
      bad(Dropout{-0.1, {5}, {0}}, {arg({5}), seed, stream, row}, "ValueError"),
      bad(Dropout{0.5, {5}, {1}}, {arg({5}), seed, stream, row}, "ShapeError"),
      bad(Dropout{0.5, {5, 5}, {0, 0}}, {arg({5}), seed, stream, row}, "ShapeError"),
      bad(Dropout{0.5, {5}, {0}}, {arg({5}).as(DType::i64), seed, stream, row}, "DTypeError"),
      bad(Dropout{0.5, {5}, {0}}, {arg({5}), index_arg({1}, 0, 5), stream, row}, "DTypeError"),
  };
}

}  // namespace op

namespace {

Tensor word(int64_t value, Device device) {
  const Tensor t = empty({}, DType::i64, device.is_meta() ? device : kCpu);
  if (device.is_meta()) return t;
  *t.data<int64_t>() = value;
  return to_device(t, device);
}

void check_probability(const Tensor& x, double p) {
  if (!(p >= 0 && p < 1))
    fail<ValueError>("dropout", "p must be at least 0 and below 1: given ", p, " for ", x.meta());
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  check_probability(x, p);
  if (!training || p == 0) return x;
  const Draw draw = next_draw();
  return dropout(x, p, draw.key, draw.row);
}

Tensor dropout(const Tensor& x, double p, RngKey key, int64_t row) {
  check_probability(x, p);
  if (row < 0) fail<ValueError>("dropout", "rows count from 0: given ", row);
  if (p == 0) return x;
  return call(op::Dropout{p, x.shape(), Shape::filled(x.rank(), 0)},
              {x, word(std::bit_cast<int64_t>(key.seed), x.device()),
               word(std::bit_cast<int64_t>(key.stream), x.device()), word(row, x.device())});
}

}  // namespace tessera

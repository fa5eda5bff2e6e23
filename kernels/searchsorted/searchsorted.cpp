// SPDX-License-Identifier: Apache-2.0
// searchsorted on CPU: a binary search for each value, several at a time.
#include "tessera/kernels/searchsorted/searchsorted.h"

#include "tessera/kernels/shared/rows_impl.h"

namespace tessera::op {

MetaList SearchSorted::meta(Metas in) const {
  const TensorMeta &sorted = in[0], &values = in[1];
  if (!dtypes.has(sorted.dtype) || sorted.dtype != values.dtype)
    fail<DTypeError>(name, "the sorted sequence and the values must share one dtype of ", dtypes,
                     ": given ", sorted, " and ", values);
  const int rank = sorted.shape.rank();
  bool fits = rank >= 1;
  if (rank > 1) {
    fits = rank == values.shape.rank();
    for (int d = 0; fits && d + 1 < rank; ++d) fits = sorted.shape[d] == values.shape[d];
  }
  if (!fits)
    fail<ShapeError>(name,
                     "the sorted sequence must be (s), or (..., s) for values (..., n): given ",
                     sorted, " and ", values);
  return {{values.shape, DType::i64, values.device}};
}

ShardingRule SearchSorted::sharding(Metas in) const {
  const Shape& shape = in[1].shape;
  const int rank = in[0].shape.rank();
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> sorted, values;
  for (int64_t size : shape) values.push_back({static_cast<int16_t>(r.add_factor(size)), 1});
  for (int d = 0; d + 1 < rank; ++d) sorted.push_back(values[static_cast<size_t>(d)]);
  sorted.push_back({static_cast<int16_t>(r.add_factor(in[0].shape.back(), 's')), 1});
  return r.operand(sorted).operand(values).outputs_from_here().operand(values);
}

namespace {

// Values that share a sequence search side by side: their reads do not wait for each other.
template <class T> struct Search {
  static constexpr int64_t kAtOnce = 16;
  const T* sorted;
  int64_t n, step;
  bool right;

  void run(const T* values, int64_t stride, int64_t count, int64_t* places) const {
    int64_t i = 0;
    for (; n > 0 && i + kAtOnce <= count; i += kAtOnce)
      simd([&]() TESSERA_LAMBDA {
        if (right) several<true>(values + i * stride, stride, places + i);
        else several<false>(values + i * stride, stride, places + i);
      });
    for (; i < count; ++i)
      places[i] =
          count_before(sorted, n, step, static_cast<compute_t<T>>(values[i * stride]), right);
  }

 private:
  using C = compute_t<T>;
  template <bool kRight>
  TESSERA_INLINE void several(const T* values, int64_t stride, int64_t* places) const {
    C v[kAtOnce];
    int64_t low[kAtOnce];
    for (int64_t j = 0; j < kAtOnce; ++j) {
      v[j] = static_cast<C>(values[j * stride]);
      low[j] = 0;
    }
    int64_t left = n;
    for (; left > 1; left -= left / 2) narrow<kRight>(left / 2, v, low);
    narrow<kRight>(1, v, low);
    for (int64_t j = 0; j < kAtOnce; ++j) places[j] = low[j];
  }
  // Goes on by `by` where the last of the next `by` elements comes before the value.
  template <bool kRight> TESSERA_INLINE void narrow(int64_t by, const C* v, int64_t* low) const {
    const T* s = sorted + (by - 1) * step;
    for (int64_t j = 0; j < kAtOnce; ++j) {
      const C x = static_cast<C>(s[low[j] * step]);
      const bool before = comes_before(x, v[j], kRight);
      low[j] += by & -static_cast<int64_t>(before);  // a branch would be guessed wrong
    }
  }
};

}  // namespace

void SearchSorted::cpu(Tensors in, Outputs y) const {
  const Tensor &sorted = in[0], &values = in[1];
  if (y[0].numel() == 0) return;
  const bool shared = sorted.rank() == 1;
  const Rows sequences(sorted, sorted.rank() - 1), from(values, values.rank() - 1);
  constexpr int64_t kPiece = 1024;  // values of one row, for one task
  const int64_t pieces = (from.n + kPiece - 1) / kPiece;
  dispatch<dtypes>(sorted.dtype(), [&]<class T>() {
    const T* s = sequences.n > 0 ? sorted.data<T>() : nullptr;
    const T* v = values.data<T>();
    int64_t* places = y[0].data<int64_t>();
    parallel_for(from.count * pieces, std::max<int64_t>(1, kPiece / from.n),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t task = begin; task < end; ++task) {
                     const int64_t row = task / pieces, first = task % pieces * kPiece;
                     const Search<T> search{s + (shared ? 0 : sequences.offset(row)), sequences.n,
                                            sequences.stride, right};
                     search.run(v + from.offset(row) + first * from.stride, from.stride,
                                std::min(kPiece, from.n - first), places + row * from.n + first);
                   }
                 });
  });
}

std::vector<Sample<SearchSorted>> SearchSorted::samples() {
  const Arg rising = arg({9}).listed({0, 1, 2, 2, 2, 5, 7, 7, 9});
  const Arg rows = arg({5, 6}).listed(
      {0, 1, 2, 3, 4, 5, 2, 2, 4, 4, 6, 6, 0, 3, 3, 3, 9, 9, 1, 5, 6, 7, 8, 9, 0, 0, 0, 1, 1, 1});
  std::vector<double> many(4096);
  for (size_t i = 0; i < many.size(); ++i) many[i] = -4 + static_cast<double>(i) / 512;
  return {
      {SearchSorted{false}, {rising, arg({5, 7}).whole(0, 11)}},
      {SearchSorted{true}, {rising, arg({13}).whole(0, 11)}},
      {SearchSorted{true}, {rows, arg({5, 8}).whole(0, 11)}},
      {SearchSorted{false}, {rows, arg({5, 8}).whole(0, 11)}},
      {SearchSorted{false}, {rising, arg({}).whole(0, 11)}},
      known(SearchSorted{false}, {arg({4}).listed({1, 3, 3, 5}), arg({5}).listed({0, 1, 3, 4, 6})},
            {{0, 0, 1, 3, 4}}),
      known(SearchSorted{true}, {arg({4}).listed({1, 3, 3, 5}), arg({5}).listed({0, 1, 3, 4, 6})},
            {{0, 1, 3, 3, 4}}),
      timed(SearchSorted{false}, {arg({4096}).listed(many), arg({1024, 256})}),
      bad(SearchSorted{false}, {arg({}), arg({5})}, "ShapeError"),
      bad(SearchSorted{false}, {arg({5, 6}), arg({4, 8})}, "ShapeError"),
      bad(SearchSorted{false}, {arg({5, 6}), arg({8})}, "ShapeError"),
      bad(SearchSorted{false}, {arg({5}).as(DType::f32), arg({5}).as(DType::f64)}, "DTypeError"),
      bad(SearchSorted{false}, {arg({5}).as(DType::bool_), arg({5}).as(DType::bool_)},
          "DTypeError"),
  };
}

}  // namespace tessera::op

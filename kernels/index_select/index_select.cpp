// SPDX-License-Identifier: Apache-2.0
// index_select copies slices as bytes. index_add adds in the order of the index, in f32 for
// narrower floats, whatever is one task's: a slice of the output, or a line of narrow ones.
#include "tessera/kernels/index_select/index_select.h"

#include "tessera/kernels/shared/rows_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <cstring>

namespace tessera::op {
namespace {

constexpr int64_t kGrain = 16384;

int check_operands(std::string_view name, int dim, const TensorMeta& x, const TensorMeta& index,
                   DTypeSet dtypes) {
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x);
  if (index.dtype != DType::i64)
    fail<DTypeError>(name, "the index must be i64: given ", index, "; cast it");
  if (x.shape.rank() == 0) fail<ShapeError>(name, "a 0-dim tensor has no dim to index: given ", x);
  if (index.shape.rank() != 1)
    fail<ShapeError>(name, "the index must be (m): given ", index, " for ", x,
                     "; gather takes an index of x's rank");
  return normalize_dim(dim, x.shape.rank(), name);
}

// Throws before anything is written.
void check_range(std::string_view name, const Tensor& index, int64_t size) {
  const int64_t* at = index.data<int64_t>();
  for (int64_t i = 0; i < index.numel(); ++i) {
    if (static_cast<uint64_t>(at[i]) >= static_cast<uint64_t>(size))
      fail<IndexError>(name, "index ", at[i], " at position ", i, " of ", index.meta(),
                       " is out of range: expected 0 to ", size - 1);
  }
}

// Every dim but `dim` is one factor of all operands of rank above 1; `along` gives the factor of
// `dim` in each.
ShardingRule slice_rule(const Shape& shape, int dim, ShardingRule r, DimFactor m,
                        std::initializer_list<DimFactor> along, bool first_given) {
  SmallVector<DimFactor, kMaxRank> free;
  for (int d = 0; d < shape.rank(); ++d)
    free.push_back(d == dim ? DimFactor{}
                            : DimFactor{static_cast<int16_t>(r.add_factor(shape[d])), 1});
  for (size_t o = 0; o < along.size(); ++o) {
    auto dims = free;
    dims[static_cast<size_t>(dim)] = along.begin()[o];
    if (o == 1) r.operand({m});
    if (o + 1 == along.size()) r.outputs_from_here();
    if (o == 0 && !first_given) dims.clear();
    r.operand(dims);
  }
  return r;
}

}  // namespace

// --- index_select -------------------------------------------------------------------------------------------------

MetaList IndexSelect::meta(Metas in) const {
  const int d = check_operands(name, dim, in[0], in[1], dtypes);
  Shape out = in[0].shape;
  out[d] = in[1].shape[0];
  return {{out, in[0].dtype, in[0].device}};
}

ShardingRule IndexSelect::sharding(Metas in) const {
  ShardingRule r;
  const DimFactor m{static_cast<int16_t>(r.add_factor(in[1].shape[0], 'm')), 1};
  const Shape& shape = in[0].shape;
  return slice_rule(shape, normalize_dim(dim, shape.rank(), name), r, m, {DimFactor{}, m}, true)
      .linear({0});
}

void IndexSelect::cpu(Tensors in, Outputs y) const {
  const Tensor index = row_major(in[1]);
  const int d = normalize_dim(dim, in[0].rank(), name);
  if (index.numel() > 0) check_range(name, index, in[0].shape()[d]);
  if (y[0].numel() == 0) return;
  // Slices that lie in one piece are copied from where they are.
  Shape tail, tail_strides;
  for (int i = d + 1; i < in[0].rank(); ++i) {
    tail.push_back(in[0].shape()[i]);
    tail_strides.push_back(in[0].strides()[i]);
  }
  const Tensor x = is_contiguous(tail, tail_strides) ? in[0] : row_major(in[0]);
  const int64_t inner = tail.numel(), m = index.numel(), move = x.strides()[d];
  const int64_t* at = index.data<int64_t>();
  const auto outer_offset = [&](int64_t outer) {
    int64_t offset = 0;
    for (int i = d - 1; i >= 0; --i) {
      offset += outer % x.shape()[i] * x.strides()[i];
      outer /= x.shape()[i];
    }
    return offset;
  };
  const auto run = [&]<class Bits>() {
    const auto* from = static_cast<const Bits*>(x.raw_data());
    auto* to = static_cast<Bits*>(y[0].raw_data());
    const int64_t rows = y[0].numel() / inner;
    parallel_for(rows, std::max<int64_t>(1, kGrain / inner), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end;) {
        const Bits* line = from + outer_offset(row / m);
        const int64_t stop = std::min(end, (row / m + 1) * m);
        for (int64_t j = row % m; row < stop; ++row, ++j) {
          if (inner == 1) to[row] = line[at[j] * move];
          else
            std::memcpy(to + row * inner, line + at[j] * move,
                        static_cast<size_t>(inner) * sizeof(Bits));
        }
      }
    });
  };
  switch (item_size(x.dtype())) {
    case 1: return run.template operator()<uint8_t>();
    case 2: return run.template operator()<uint16_t>();
    case 4: return run.template operator()<uint32_t>();
    default: return run.template operator()<uint64_t>();
  }
}

Grads IndexSelect::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  const Shape& x = s.input_meta(0).shape;
  if (needs[0]) g[0] = index_zeros(x[normalize_dim(dim, x.rank(), name)], dim, s.input(1), dy[0]);
  return g;
}

std::vector<Sample<IndexSelect>> IndexSelect::samples() {
  return {
      {IndexSelect{0}, {arg({7, 5}), index_arg({9}, 0, 7)}},
      {IndexSelect{1}, {arg({5, 7}), index_arg({6}, 0, 7)}},
      {IndexSelect{-2}, {arg({5, 6, 7}), index_arg({8}, 0, 6)}},
      {IndexSelect{0}, {arg({37}), index_arg({19}, 0, 37)}},
      known(IndexSelect{1},
            {arg({2, 3}).listed({1, 2, 3, 4, 5, 6}), arg({2}).listed({2, 0}).as(DType::i64)},
            {{3, 1, 6, 4}}),
      known(IndexSelect{0}, {arg({2}).listed({0, 1}), arg({3}).listed({1, 0, 1}).as(DType::i64)},
            {{1, 0, 1}}),
      timed(IndexSelect{0}, {arg({4096, 512}), index_arg({4096}, 0, 4096)}),
      timed(IndexSelect{1}, {arg({1024, 1024}), index_arg({1024}, 0, 1024)}),
      bad(IndexSelect{1}, {arg({5, 7}), index_arg({2}, 7, 9)}, "IndexError"),
      bad(IndexSelect{0}, {arg({5, 7}), index_arg({2}, -2, 0)}, "IndexError"),
      bad(IndexSelect{0}, {arg({5, 7}), index_arg({2, 2}, 0, 5)}, "ShapeError"),
      bad(IndexSelect{0}, {arg({}), index_arg({2}, 0, 1)}, "ShapeError"),
      bad(IndexSelect{2}, {arg({5, 7}), index_arg({2}, 0, 5)}, "IndexError"),
      bad(IndexSelect{0}, {arg({5}), arg({5}).as(DType::f32)}, "DTypeError"),
      bad(IndexSelect{0}, {arg({5}).as(DType::f8_e4m3), index_arg({2}, 0, 5)}, "DTypeError"),
  };
}

// --- index_add ----------------------------------------------------------------------------------------------------

namespace {

// What is added to, given or not.
TensorMeta target_of(const IndexAdd& op, Metas in) {
  if (in.has(0)) return in[0];
  TensorMeta x = in[2];
  if (x.shape.rank() > 0) x.shape[normalize_dim(op.dim, x.shape.rank(), op.name)] = op.size;
  return x;
}

constexpr int64_t kNarrow = 16;  // below, slices are not worth a task

// y = x (zero if null), plus the slices of src; all row-major, (outer, n or m, inner).
template <class T> struct Addition {
  const int64_t* index;
  const T *src, *x;
  T* y;
  int64_t n, m, inner;
  using A = std::conditional_t<is_floating(dtype_of<T>), compute_t<T>, uint64_t>;

  // Lines of n slices are independent; within one the index is followed.
  void by_line(int64_t outer) const {
    using Held = std::conditional_t<is_floating(dtype_of<T>), compute_t<T>, int64_t>;
    const int64_t size = n * inner;
    for_each_row<Held>(outer, size, 1, [&](int64_t row, Held* held, int64_t) {
      auto* sum = reinterpret_cast<A*>(held);
      for (int64_t i = 0; i < size; ++i) sum[i] = x ? static_cast<A>(x[row * size + i]) : A{};
      const T* from = src + row * m * inner;
      if (inner == 1) {
        for (int64_t j = 0; j < m; ++j) sum[index[j]] += static_cast<A>(from[j]);
      } else {
        for (int64_t j = 0; j < m; ++j) {
          for (int64_t c = 0; c < inner; ++c)
            sum[index[j] * inner + c] += static_cast<A>(from[j * inner + c]);
        }
      }
      for (int64_t i = 0; i < size; ++i) y[row * size + i] = static_cast<T>(sum[i]);
    });
  }

  // The index is sorted first (counting, stable), so that each slice of y is one task's.
  void by_slice(int64_t outer) const {
    const Tensor scratch = empty({n + 2 + m}, DType::i64);
    int64_t* starts = scratch.data<int64_t>();
    int64_t* order = starts + n + 2;
    std::fill_n(starts, n + 2, 0);
    for (int64_t j = 0; j < m; ++j) ++starts[index[j] + 2];
    for (int64_t r = 0; r < n; ++r) starts[r + 2] += starts[r + 1];
    for (int64_t j = 0; j < m; ++j) order[starts[index[j] + 1]++] = j;
    const int64_t per_slice = inner * (1 + m / n);
    parallel_for(outer * n, std::max<int64_t>(1, kGrain / per_slice),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     const int64_t r = row % n;
                     add_slices(row, row / n * m, order + starts[r], starts[r + 1] - starts[r]);
                   }
                 });
  }

 private:
  // Slice `row` of y: x's and `count` slices of src, of those from `first` on.
  void add_slices(int64_t row, int64_t first, const int64_t* order, int64_t count) const {
    T* to = y + row * inner;
    const T* base = x ? x + row * inner : nullptr;
    if (count == 0) {
      if (base) std::copy_n(base, inner, to);
      else std::fill_n(to, inner, T{});
      return;
    }
    const auto slice = [&](int64_t k) { return src + (first + order[k]) * inner; };
    if (count == 1 && base) {
      simd([&]() TESSERA_LAMBDA {
        const T* one = slice(0);
        for (int64_t i = 0; i < inner; ++i)
          to[i] = static_cast<T>(static_cast<A>(base[i]) + static_cast<A>(one[i]));
      });
      return;
    }
    constexpr int64_t kBlock = 512;
    for (int64_t column = 0; column < inner; column += kBlock) {
      const int64_t width = std::min(kBlock, inner - column);
      simd([&]() TESSERA_LAMBDA {
        A sum[kBlock];
        if (base) {
          for (int64_t i = 0; i < width; ++i) sum[i] = static_cast<A>(base[column + i]);
        } else {
          for (int64_t i = 0; i < width; ++i) sum[i] = A{};
        }
        for (int64_t k = 0; k < count; ++k) {
          const T* one = slice(k) + column;
          for (int64_t i = 0; i < width; ++i) sum[i] += static_cast<A>(one[i]);
        }
        for (int64_t i = 0; i < width; ++i) to[column + i] = static_cast<T>(sum[i]);
      });
    }
  }
};

}  // namespace

MetaList IndexAdd::meta(Metas in) const {
  if (size < 0 || (in.has(0) && size != 0)) {
    fail<ValueError>(
        name, "size ", size, " for src ", in[2],
        in.has(0) ? " and a given input: expected 0, the input's own" : ": expected 0 or more");
  }
  const TensorMeta x = target_of(*this, in);
  const int d = check_operands(name, dim, x, in[1], dtypes);
  if (in[2].dtype != x.dtype)
    fail<DTypeError>(name, "input and src must share one dtype: given ", x, " and ", in[2]);
  Shape expected = x.shape;
  expected[d] = in[1].shape[0];
  if (!(in[2].shape == expected))
    fail<ShapeError>(name, "src must be ", expected, " for input ", x, " and index ", in[1],
                     ": given ", in[2]);
  return {x};
}

ShardingRule IndexAdd::sharding(Metas in) const {
  // Cutting the index would add a given x once per piece; cutting x would need indices of the
  // piece.
  const Shape shape = target_of(*this, in).shape;
  const int d = normalize_dim(dim, shape.rank(), name);
  ShardingRule r;
  const DimFactor n{static_cast<int16_t>(r.add_factor(shape[d], 'n')), 1};
  const DimFactor m{static_cast<int16_t>(r.add_factor(in[1].shape[0], 'm')), 1};
  r.replicate(in.has(0) ? "n m" : "n");
  r = slice_rule(shape, d, r, m, {n, m, n}, in.has(0));
  return in.has(0) ? r.linear({0, 2}) : r.linear({2});
}

void IndexAdd::cpu(Tensors in, Outputs y) const {
  const Tensor index = row_major(in[1]), src = row_major(in[2]);
  const Shape& shape = y[0].shape();
  const int d = normalize_dim(dim, shape.rank(), name);
  const int64_t n = shape[d], m = index.numel();
  if (m > 0) check_range(name, index, n);
  if (y[0].numel() == 0) return;
  const Tensor x = in[0].defined() ? row_major(in[0]) : Tensor();
  int64_t inner = 1;
  for (int i = d + 1; i < shape.rank(); ++i) inner *= shape[i];
  const int64_t outer = y[0].numel() / inner / n;
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    const Addition<T> add{m > 0 ? index.data<int64_t>() : nullptr,
                          m > 0 ? src.data<T>() : nullptr,
                          x.defined() ? x.data<T>() : nullptr,
                          y[0].data<T>(),
                          n,
                          m,
                          inner};
    if (inner < kNarrow) add.by_line(outer);
    else add.by_slice(outer);
  });
}

Grads IndexAdd::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(3);
  if (needs[0]) g[0] = dy[0];
  if (needs[2]) g[2] = index_select(dy[0], dim, s.input(1));
  return g;
}

std::vector<Sample<IndexAdd>> IndexAdd::samples() {
  return {
      {IndexAdd{0, 0}, {arg({7, 5}), index_arg({9}, 0, 7), arg({9, 5})}},
      {IndexAdd{1, 0}, {arg({5, 7}), index_arg({6}, 0, 7), arg({5, 6})}},
      {IndexAdd{-2, 0}, {arg({5, 6, 7}), index_arg({8}, 0, 6), arg({5, 8, 7})}},
      {IndexAdd{0, 7}, {no_arg(), index_arg({9}, 0, 7), arg({9, 5})}},
      {IndexAdd{-1, 19}, {no_arg(), index_arg({37}, 0, 19), arg({5, 37})}},
      known(IndexAdd{0, 0},
            {arg({3, 2}).listed({1, 2, 3, 4, 5, 6}), arg({2}).listed({2, 2}).as(DType::i64),
             arg({2, 2}).listed({10, 20, 30, 40})},
            {{1, 2, 3, 4, 45, 66}}),
      known(IndexAdd{1, 3},
            {no_arg(), arg({2}).listed({2, 0}).as(DType::i64), arg({2, 2}).listed({1, 2, 3, 4})},
            {{2, 0, 1, 4, 0, 3}}),
      timed(IndexAdd{0, 0}, {arg({4096, 512}), index_arg({4096}, 0, 4096), arg({4096, 512})}),
      bad(IndexAdd{1, 0}, {arg({5, 7}), index_arg({2}, 7, 9), arg({5, 2})}, "IndexError"),
      bad(IndexAdd{1, 0}, {arg({5, 7}), index_arg({2}, 0, 7), arg({5, 3})}, "ShapeError"),
      bad(IndexAdd{0, 0}, {arg({5, 7}), index_arg({2, 2}, 0, 5), arg({2, 7})}, "ShapeError"),
      bad(IndexAdd{1, 7}, {arg({5, 7}), index_arg({2}, 0, 7), arg({5, 2})}, "ValueError"),
      bad(IndexAdd{1, -1}, {no_arg(), index_arg({2}, 0, 7), arg({5, 2})}, "ValueError"),
      bad(IndexAdd{0, 5}, {no_arg(), index_arg({2}, 5, 7), arg({2, 5})}, "IndexError"),
      bad(IndexAdd{0, 0}, {arg({5}), index_arg({5}, 0, 5), arg({5}).as(DType::bool_)},
          "DTypeError"),
      bad(IndexAdd{0, 0}, {arg({5}), arg({5}).as(DType::f32), arg({5})}, "DTypeError"),
  };
}

}  // namespace tessera::op

namespace tessera {

Tensor repeat_interleave(const Tensor& x, const Tensor& counts, std::optional<int> dim) {
  constexpr std::string_view kName = "repeat_interleave";
  if (!dim) return repeat_interleave(flatten(x), counts, 0);
  const int d = normalize_dim(*dim, x.rank(), kName);
  if (!kIntegers.has(counts.dtype()))
    fail<DTypeError>(kName, "counts must be i64 or i32: given ", counts.meta());
  if (counts.rank() != 1 || x.rank() == 0 || counts.numel() != x.shape()[d])
    fail<ShapeError>(kName, "expected a count for each element of dim ", *dim, ": given counts ",
                     counts.meta(), " for ", x.meta());
  std::vector<double> places;
  const std::vector<double> times = counts.values();
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i] < 0)
      fail<ValueError>(kName, "counts must not be negative: given ", times[i], " at position ", i,
                       " of ", counts.meta());
    places.insert(places.end(), static_cast<size_t>(times[i]), static_cast<double>(i));
  }
  const Tensor index = from_values(places, {static_cast<int64_t>(places.size())}, DType::i64);
  return index_select(x, d, to_device(index, x.device()));
}

}  // namespace tessera

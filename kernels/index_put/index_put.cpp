// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and CPU kernel of index_put_. Threads share out the elements of a slice, so that
// each place is written by one of them, in the order of the indices.
#include "tessera/kernels/index_put/index_put.h"

#include "tessera/core/message.h"
#include "tessera/kernels/index_put/index_put_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

#include <algorithm>
#include <type_traits>

namespace tessera::op {
namespace {

constexpr int64_t kGrain = 16384;

// Where in x each of the m slices begins, in elements. Throws before anything is written.
std::vector<int64_t> slice_starts(std::string_view name, const Tensor& x, Tensors indices) {
  std::vector<int64_t> starts(static_cast<size_t>(indices[0].numel()), 0);
  for (size_t k = 0; k < indices.size(); ++k) {
    const auto index = indices[k].to_vector<int64_t>();
    const int64_t size = x.shape()[static_cast<int>(k)], step = x.strides()[static_cast<int>(k)];
    for (size_t j = 0; j < index.size(); ++j) {
      if (index[j] < 0 || index[j] >= size)
        fail<IndexError>(name, "index ", index[j], " at position ", j, " of ", indices[k].meta(),
                         " is out of range for dim ", k, " of ", x.meta(), ": expected 0 to ",
                         size - 1);
      starts[j] += index[j] * step;
    }
  }
  return starts;
}

}  // namespace

MetaList IndexPut::meta(Metas in) const {
  if (in.size() < 3)
    fail<UsageError>(name, "needs x, values and indices: given ", counted(in.size(), "input"));
  const TensorMeta &x = in[0], &values = in[1], &index = in[2];
  const int indexed = static_cast<int>(in.size()) - 2;
  if (!dtypes.has(x.dtype) || values.dtype != x.dtype)
    fail<DTypeError>(name, "x and values must share one dtype of ", dtypes, ": given ", x, " and ",
                     values, "; cast the values");
  if (accumulate && x.dtype == DType::bool_)
    fail<DTypeError>(name, "truth values do not add up: given ", x, "; cast it");
  for (size_t i = 2; i < in.size(); ++i) {
    if (in[i].dtype != DType::i64)
      fail<DTypeError>(name, "indices must be i64: given ", in[i], "; cast it");
    if (in[i].shape.rank() != 1 || !(in[i].shape == index.shape))
      fail<ShapeError>(name, "indices must be 1-D and of one length: given ", index, " and ",
                       in[i]);
  }
  bool fits = x.shape.rank() >= indexed && values.shape.rank() == x.shape.rank() - indexed + 1 &&
              values.shape[0] == index.shape[0];
  for (int d = indexed; fits && d < x.shape.rank(); ++d)
    fits = values.shape[d - indexed + 1] == x.shape[d];
  if (!fits)
    fail<ShapeError>(name, "values must be (m, ...) for ", indexed,
                     " indices (m) and x (..., ...): given x ", x, ", values ", values,
                     " and indices ", index);
  return {x};
}

ShardingRule IndexPut::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const auto indexed = in.size() - 2;
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> x(indexed), values(1), whole(1);
  for (int d = static_cast<int>(indexed); d < shape.rank(); ++d) {
    x.push_back({static_cast<int16_t>(r.add_factor(shape[d])), 1});
    values.push_back(x.back());
  }
  r.operand(x).operand(values);
  for (size_t i = 0; i < indexed; ++i) r.operand(whole);
  return r.outputs_from_here().operand(x).stricter_because(
      "partial values would make what is written in place partial too");
}

void IndexPut::cpu(Tensors in, Outputs written) const {
  const Tensor& x = written[0];
  const Tensors indices = in.subspan(2);
  const std::vector<int64_t> starts = slice_starts(name, x, indices);
  const Tensor values = row_major(in[1]);  // (m, ...)
  const Tensor slice = first_slice(x, indices.size());
  const int64_t size = slice.numel();
  if (starts.empty() || size == 0) return;
  const Tensor source = alias(values, slice.shape(), contiguous_strides(slice.shape()), 0);
  const LoopNest<2> nest(slice.shape(), {&slice, &source});
  const int last = nest.shape.rank() - 1;
  const int64_t n = nest.shape[last], rows = size / n, step = nest.strides[0][last];
  const int64_t cuts = rows >= 8 ? 1 : (n + kGrain - 1) / kGrain, piece = (n + cuts - 1) / cuts;
  const int64_t work = piece * static_cast<int64_t>(starts.size());
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    T* const to = x.data<T>();
    const T* const from = values.data<T>();
    parallel_for(rows * cuts, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const auto at = nest.row_offsets(task / cuts);
        const int64_t first = task % cuts * piece, stop = std::min(n, first + piece);
        for (size_t j = 0; j < starts.size(); ++j) {
          T* y = to + starts[j] + at[0];
          const T* v = from + static_cast<int64_t>(j) * size + at[1];
          for (int64_t i = first; i < stop; ++i)
            y[i * step] = accumulate ? sum_of(y[i * step], v[i]) : v[i];
        }
      }
    });
  });
}

std::vector<Sample<IndexPut>> IndexPut::samples() {
  const Arg x = arg({3, 2}).listed({0, 1, 2, 3, 4, 5});
  const Arg values = arg({3, 2}).listed({10, 20, 30, 40, 50, 60});
  const Arg rows = arg({3}).listed({2, 0, 2}).as(DType::i64);
  const Arg row = arg({3}).listed({1, 0, 1}).as(DType::i64);
  const Arg column = arg({3}).listed({0, 1, 0}).as(DType::i64);
  const Arg few = arg({3}).listed({7, 8, 9});
  const Arg numbers = arg({5, 7}).as(DType::f32), pairs = arg({3, 5, 8}).as(DType::bf16);
  const Arg third = index_arg({40}, 0, 3), fifth = index_arg({40}, 0, 5);
  std::vector<double> all(40);  // many indices, each of another slice
  for (size_t j = 0; j < all.size(); ++j) all[j] = static_cast<double>(j * 7 % 48);
  const Arg apart = arg({40}).listed(std::move(all)).as(DType::i64);
  return {
      {IndexPut{false}, {arg({7, 5}), arg({9, 5}), index_arg({9}, 0, 7)}},
      {IndexPut{false}, {arg({5, 3, 6}), arg({8, 6}), index_arg({8}, 0, 5), index_arg({8}, 0, 3)}},
      {IndexPut{true}, {numbers, arg({9, 7}).as(DType::f32), index_arg({9}, 0, 5)}},
      {IndexPut{false}, {arg({6}), arg({9}), index_arg({9}, 0, 6)}},
      {IndexPut{false}, {arg({5, 7}), arg({40, 7}), fifth}},
      {IndexPut{true}, {numbers, arg({40, 7}).as(DType::f32), fifth}},
      {IndexPut{false}, {arg({3, 5, 16}), arg({40, 16}), third, fifth}},
      {IndexPut{true}, {pairs, arg({40, 8}).as(DType::bf16), third, fifth}},
      {IndexPut{false}, {arg({48, 7}), arg({40, 7}), apart}},
      known(IndexPut{false}, {x, values, rows}, {{30, 40, 2, 3, 50, 60}}),
      known(IndexPut{true}, {x.as(DType::i64), values.as(DType::i64), rows},
            {{30, 41, 2, 3, 64, 85}}),
      known(IndexPut{false}, {x, few, row, column}, {{0, 8, 9, 3, 4, 5}}),
      timed(IndexPut{false}, {arg({4096, 1024}), arg({4096, 1024}), index_arg({4096}, 0, 4096)}),
      timed(IndexPut{true}, {arg({7, 1024}).as(DType::f32), arg({4096, 1024}).as(DType::f32),
                             index_arg({4096}, 0, 7)}),
      bad(IndexPut{false}, {arg({5, 7}), arg({2, 7}), index_arg({2}, 5, 9)}, "IndexError"),
      bad(IndexPut{false}, {arg({5, 7}), arg({3, 7}), index_arg({2}, 0, 5)}, "ShapeError"),
      bad(IndexPut{false}, {arg({5, 7}), arg({2, 6}), index_arg({2}, 0, 5)}, "ShapeError"),
      bad(IndexPut{false}, {arg({5}), arg({2, 2}), index_arg({2, 2}, 0, 5)}, "ShapeError"),
      bad(IndexPut{false}, {arg({5}), arg({2}), arg({2}).as(DType::f32)}, "DTypeError"),
      bad(IndexPut{false},
          {arg({5}).as(DType::f32), arg({2}).as(DType::bf16), index_arg({2}, 0, 5)}, "DTypeError"),
      bad(IndexPut{true}, {bool_arg({5}), bool_arg({2}), index_arg({2}, 0, 5)}, "DTypeError"),
  };
}

}  // namespace tessera::op

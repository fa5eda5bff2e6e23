// SPDX-License-Identifier: Apache-2.0
// sort on CPU: a row becomes keys with their places, which one thread sorts byte by byte.
#include "tessera/kernels/sort/sort.h"

#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/shared/radix_sort_impl.h"
#include "tessera/kernels/shared/rows_impl.h"
#include "tessera/kernels/sort/order_key_impl.h"

namespace tessera::op {

MetaList Sort::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype))
    fail<DTypeError>(name, "the input must be of ", dtypes, ": given ", x, "; cast it");
  (void)normalize_dim(dim, x.shape.rank(), name);
  if (bound < 0) fail<ValueError>(name, "the bound is ", bound, ": expected 0 (none) or more");
  if (bound > 0 && is_floating(x.dtype))
    fail<DTypeError>(name, "a bound is for whole numbers: given ", x, "; leave it out");
  return {x, {x.shape, DType::i64, x.device}};
}

ShardingRule Sort::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const int own = normalize_dim(dim, shape.rank(), name);
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int d = 0; d < shape.rank(); ++d) {
    dims.push_back({static_cast<int16_t>(r.add_factor(shape[d])), 1});
    if (d == own) r.replicate_factor(dims.back().factor);
  }
  return r.operand(dims).outputs_from_here().operand(dims).operand(dims);
}

void Sort::cpu(Tensors in, Outputs y) const {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  const int d = normalize_dim(dim, x.rank(), name);
  const Rows from(x, d), to(y[0], d);
  const int64_t n = from.n;
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    const T* source = x.data<T>();
    T* values = y[0].data<T>();
    int64_t* indices = y[1].data<int64_t>();
    const auto write = [&](int64_t row, const auto* sorted) {
      const T* line = source + from.offset(row);
      const int64_t at = to.offset(row);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t place = place_of(sorted[i]);
        values[at + i * to.stride] = line[place * from.stride];
        indices[at + i * to.stride] = place;
      }
    };
    const int bytes = (order_bits<T>(bound) + 7) / 8;
    if (bytes <= 4 && n < int64_t{1} << 32) {
      for_each_row<int64_t>(from.count, n, 2, [&](int64_t row, int64_t* scratch, int64_t padded) {
        auto* items = reinterpret_cast<PackedItem*>(scratch);
        const T* line = source + from.offset(row);
        for (int64_t i = 0; i < n; ++i)
          items[i] =
              pack_item(static_cast<uint32_t>(order_key(line[i * from.stride], descending)), i);
        write(row, radix_sort(items, items + padded, n, bytes));
      });
    } else {
      for_each_row<int64_t>(
          from.count, 2 * n, 2, [&](int64_t row, int64_t* scratch, int64_t padded) {
            auto* items = reinterpret_cast<WideItem*>(scratch);
            const T* line = source + from.offset(row);
            for (int64_t i = 0; i < n; ++i)
              items[i] = {order_key(line[i * from.stride], descending), static_cast<uint64_t>(i)};
            write(row, radix_sort(items, items + padded / 2, n, bytes));
          });
    }
  });
}

Grads Sort::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (!dy[0].defined()) return Grads(1);
  const Shape& shape = s.input_meta(0).shape;
  if (shape.rank() == 0) return {dy[0]};
  return {scatter_zeros(shape[normalize_dim(dim, shape.rank(), name)], dim, s.output(1), dy[0])};
}

std::vector<Sample<Sort>> Sort::samples() {
  return {
      {Sort{-1, false}, {arg({5, 37}).distinct()}},
      {Sort{0, true}, {arg({7, 5}).distinct()}},
      {Sort{1, false}, {arg({5, 6, 7}).distinct()}},
      {Sort{-1, true}, {arg({5, 150}).distinct()}},
      {Sort{-1, false}, {arg({130}).distinct()}},
      {Sort{0, false}, {arg({}).distinct()}},
      {Sort{0, false, 9}, {index_arg({200}, 0, 9)}},
      {Sort{0, true, 600}, {index_arg({130, 5}, 0, 600)}},
      known(Sort{-1, false}, {arg({2, 3}).listed({3, 1, 2, 5, 5, 4})},
            {{1, 2, 3, 4, 5, 5}, {1, 2, 0, 2, 0, 1}}),
      known(Sort{0, true}, {arg({3}).listed({1, 3, 3})}, {{3, 3, 1}, {1, 2, 0}}),
      known(Sort{-1, false, 6}, {arg({7}).as(DType::i64).listed({3, 0, 5, 3, 0, 4, 5})},
            {{0, 0, 3, 3, 4, 5, 5}, {1, 4, 0, 3, 5, 2, 6}}),
      known(Sort{0, true, 2}, {arg({3, 2}).as(DType::i32).listed({0, 1, 1, 0, 0, 1})},
            {{1, 1, 0, 1, 0, 0}, {1, 0, 0, 2, 2, 1}}),
      timed(Sort{-1, false}, {arg({4096, 128})}),
      timed(Sort{-1, true}, {arg({16, 32768})}),
      bad(Sort{2, false}, {arg({5, 7})}, "IndexError"),
      bad(Sort{0, false}, {arg({5}).as(DType::bool_)}, "DTypeError"),
      bad(Sort{0, false, 9}, {arg({5}).as(DType::f32)}, "DTypeError"),
      bad(Sort{0, false, -1}, {arg({5}).as(DType::i64)}, "ValueError"),
  };
}

}  // namespace tessera::op

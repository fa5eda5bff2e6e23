// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and CPU kernel of one_hot: ids are checked before anything is written.
#include "tessera/kernels/one_hot/one_hot.h"

#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

namespace tessera::op {

MetaList OneHot::meta(Metas in) const {
  const TensorMeta& ids = in[0];
  if (ids.dtype != DType::i64)
    fail<DTypeError>(name, "ids must be i64: given ", ids, "; cast them");
  if (!dtypes.has(dtype))
    fail<DTypeError>(name, "the output must be of ", dtypes, ": asked for ", dtype, " of ", ids);
  if (classes < 0)
    fail<ShapeError>(name, "classes must not be negative: given ", classes, " for ", ids);
  Shape out = ids.shape;
  out.push_back(classes);
  return {{out, dtype, ids.device}};
}

ShardingRule OneHot::sharding(Metas in) const {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (const int64_t size : in[0].shape)
    dims.push_back({static_cast<int16_t>(r.add_factor(size)), 1});
  r.operand(dims).outputs_from_here();
  dims.push_back({});
  return r.operand(dims);
}

void OneHot::cpu(Tensors in, Outputs y) const {
  const Tensor ids = row_major(in[0]);
  const int64_t n = ids.numel();
  const int64_t* id = ids.data<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    if (id[i] < 0 || id[i] >= classes)
      fail<IndexError>(name, "id ", id[i], " at position ", i, " of ", ids.meta(),
                       " is out of range: expected 0 to ", classes - 1);
  }
  dispatch<dtypes>(dtype, [&]<class T>() {
    T* to = y[0].data<T>();
    parallel_for(n, std::max<int64_t>(1, 16384 / std::max<int64_t>(classes, 1)),
                 [&](int64_t begin, int64_t end) {
                   std::fill(to + begin * classes, to + end * classes, T{});
                   for (int64_t i = begin; i < end; ++i)
                     to[i * classes + id[i]] = static_cast<T>(1.0F);
                 });
  });
}

std::vector<Sample<OneHot>> OneHot::samples() {
  std::vector<Sample<OneHot>> all;
  for (DType t :
       {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::bool_})
    all.push_back({{7, t}, {index_arg({5, 6}, 0, 7)}});
  all.push_back({{3, DType::f32}, {index_arg({}, 0, 3)}});
  all.push_back(
      known(OneHot{3, DType::f32}, {arg({2}).listed({2, 0}).as(DType::i64)}, {{0, 0, 1, 1, 0, 0}}));
  all.push_back(timed(OneHot{512, DType::f32}, {index_arg({8, 512}, 0, 512)}));
  all.push_back(bad(OneHot{3, DType::f32}, {index_arg({4}, 3, 9)}, "IndexError"));
  all.push_back(bad(OneHot{3, DType::f32}, {index_arg({4}, -2, 0)}, "IndexError"));
  all.push_back(bad(OneHot{-1, DType::f32}, {index_arg({4}, 0, 3)}, "ShapeError"));
  all.push_back(bad(OneHot{3, DType::f32}, {arg({4}).as(DType::f32)}, "DTypeError"));
  all.push_back(bad(OneHot{3, DType::u8}, {index_arg({4}, 0, 3)}, "DTypeError"));
  return all;
}

}  // namespace tessera::op

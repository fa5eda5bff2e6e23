// SPDX-License-Identifier: Apache-2.0
// cat on CPU: row-major inputs are copied row after row of the output, which is so written in its
// order; others one by one into their ranges of it.
#include "tessera/kernels/cat/cat.h"

#include "tessera/core/message.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <cstring>

namespace tessera::op {

MetaList Cat::meta(Metas in) const {
  if (in.size() == 0) fail<UsageError>(name, "needs at least one tensor: given an empty list");
  const TensorMeta& first = in[0];
  if (first.shape.rank() == 0)
    fail<ShapeError>(name, "a 0-dim tensor has no dim to join along: given ", first);
  const int d = normalize_dim(dim, first.shape.rank(), name);
  Shape out = first.shape;
  for (size_t i = 1; i < in.size(); ++i) {
    const TensorMeta& x = in[i];
    if (x.dtype != first.dtype)
      fail<DTypeError>(name, "tensors must share one dtype: given ", first, " and tensor ", i, " ",
                       x, "; cast one");
    bool fits = x.shape.rank() == first.shape.rank();
    for (int k = 0; fits && k < first.shape.rank(); ++k)
      fits = k == d || x.shape[k] == first.shape[k];
    if (!fits)
      fail<ShapeError>(name, "shapes must be equal but for dim ", dim, ": given ", first,
                       " and tensor ", i, " ", x);
    out[d] += x.shape[d];
  }
  return {{out, first.dtype, first.device}};
}

ShardingRule Cat::sharding(Metas in) const {
  const Shape& shape = in[0].shape;
  const int d = normalize_dim(dim, shape.rank(), name);
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int k = 0; k < shape.rank(); ++k) {
    const bool free = k != d || in.size() == 1;
    dims.push_back(free ? DimFactor{static_cast<int16_t>(r.add_factor(shape[k])), 1} : DimFactor{});
  }
  for (size_t i = 0; i < in.size(); ++i) r.operand(dims);
  r.outputs_from_here().operand(dims).linear_all(0, static_cast<int>(in.size()));
  return in.size() == 1 ? r.monotone_up() : r;
}

namespace {

// The rows before `dim`, each joined from a run of bytes of every input.
void join_rows(int64_t rows, Tensors in, const Tensor& y) {
  struct Run {
    const std::byte* from;
    size_t bytes;
  };
  SmallVector<Run, 8> runs;
  int64_t width = 0;
  for (const Tensor& x : in) {
    if (x.numel() == 0) continue;
    const int64_t bytes = x.numel() / rows * item_size(x.dtype());
    runs.push_back({static_cast<const std::byte*>(x.raw_data()), static_cast<size_t>(bytes)});
    width += bytes;
  }
  auto* to = static_cast<std::byte*>(y.raw_data());
  constexpr int64_t kGrain = 65536;  // bytes
  parallel_for(rows, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
    std::byte* at = to + begin * width;
    for (int64_t row = begin; row < end; ++row) {
      for (const Run& run : runs) {
        std::memcpy(at, run.from + static_cast<size_t>(row) * run.bytes, run.bytes);
        at += run.bytes;
      }
    }
  });
}

}  // namespace

void Cat::cpu(Tensors in, Outputs y) const {
  const int d = normalize_dim(dim, y[0].rank(), name);
  int64_t rows = 1;
  for (int i = 0; i < d; ++i) rows *= y[0].shape()[i];
  bool dense = rows >= 8 && y[0].numel() > 0;
  for (const Tensor& x : in) dense = dense && x.is_contiguous();
  if (dense) return join_rows(rows, in, y[0]);
  int64_t offset = y[0].offset();
  for (const Tensor& x : in) {
    strided_copy(alias(y[0], x.shape(), y[0].strides(), offset), x);
    offset += x.shape()[d] * y[0].strides()[d];
  }
}

Grads Cat::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(s.inputs());
  int64_t at = 0;
  for (size_t i = 0; i < s.inputs(); ++i) {
    const Shape& shape = s.input_meta(i).shape;
    const int64_t size = shape[normalize_dim(dim, shape.rank(), name)];
    if (needs[i]) g[i] = slice(dy[0], dim, {at, at + size, 1});
    at += size;
  }
  return g;
}

std::vector<Sample<Cat>> Cat::samples() {
  return {
      {Cat{0}, {arg({5, 7}), arg({2, 7}), arg({3, 7})}},
      {Cat{-1}, {arg({5, 6, 3}), arg({5, 6, 4})}},
      {Cat{1}, {arg({5, 2, 7}), arg({5, 0, 7}), arg({5, 1, 7})}},
      {Cat{0}, {arg({6})}},
      known(Cat{0}, {arg({1, 2}).listed({1, 2}), arg({2, 2}).listed({3, 4, 5, 6})},
            {{1, 2, 3, 4, 5, 6}}),
      known(Cat{1}, {arg({2, 1}).listed({1, 2}), arg({2, 2}).listed({3, 4, 5, 6})},
            {{1, 3, 4, 2, 5, 6}}),
      timed(Cat{0}, {arg({512, 1024}), arg({512, 1024})}),
      timed(Cat{1}, {arg({1024, 512}), arg({1024, 512})}),
      bad(Cat{0}, {arg({3, 4}), arg({3, 5})}, "ShapeError"),
      bad(Cat{0}, {arg({3, 4}), arg({4})}, "ShapeError"),
      bad(Cat{0}, {arg({})}, "ShapeError"),
      bad(Cat{2}, {arg({3, 4})}, "IndexError"),
      bad(Cat{0}, {arg({3}).as(DType::f32), arg({3}).as(DType::bf16)}, "DTypeError"),
      bad(Cat{0}, {}, "UsageError"),
  };
}

}  // namespace tessera::op

namespace tessera {

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty()) fail<UsageError>("stack", "needs at least one tensor: given an empty list");
  const int d = normalize_dim(dim, tensors[0].rank() + 1, "stack");
  std::vector<Tensor> rows;
  rows.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!(tensors[i].shape() == tensors[0].shape()))
      fail<ShapeError>("stack", "tensors must have one shape: given ", tensors[0].meta(),
                       " and tensor ", i, " ", tensors[i].meta());
    rows.push_back(unsqueeze(tensors[i], d));
  }
  return cat(rows, d);
}

Tensor roll(const Tensor& x, int64_t shift, std::optional<int> dim) {
  if (!dim) return reshape(roll(flatten(x), shift, 0), x.shape());
  if (x.rank() == 0)
    fail<ShapeError>("roll", "a 0-dim tensor has no dim ", *dim, ": given ", x.meta());
  const int d = normalize_dim(*dim, x.rank(), "roll");
  const int64_t n = x.shape()[d];
  if (n == 0) return copy(x);
  const int64_t first = ((-shift) % n + n) % n;  // what comes to stand at 0
  if (first == 0) return copy(x);
  return cat({narrow(x, d, first, n - first), narrow(x, d, 0, first)}, d);
}

Tensor roll(const Tensor& x, const std::vector<int64_t>& shifts, Dims dims) {
  if (shifts.size() != dims.size())
    fail<ShapeError>("roll", "expected a shift for each dim: given ", shifts.size(), " shifts and ",
                     counted(dims.size(), "dim"), " for ", x.meta());
  if (dims.size() == 0) return copy(x);
  Tensor y = x;
  for (size_t i = 0; i < dims.size(); ++i) y = roll(y, shifts[i], dims.begin()[i]);
  return y;
}

}  // namespace tessera

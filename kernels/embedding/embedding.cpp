// SPDX-License-Identifier: Apache-2.0
// embedding on CPU. The gradient sorts the tokens by id first (counting, stable), so that rows are
// owned by one task each and add their tokens in order, in f32 for narrower floats.
#include "tessera/kernels/embedding/embedding.h"

#include "tessera/core/message.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <cstring>

namespace tessera::op {
namespace {

void check_ids(std::string_view name, const TensorMeta& ids) {
  if (ids.dtype != DType::i64)
    fail<DTypeError>(name, "ids must be i64: given ", ids, "; cast them");
}

void check_piece(std::string_view name, int64_t begin, int64_t rows, int64_t vocabulary) {
  if (begin < 0 || rows < 0 || vocabulary < 0 || (vocabulary > 0 && begin > vocabulary - rows)) {
    fail<ValueError>(name, counted(rows, "row"), " from ", begin,
                     " would not lie inside a vocabulary of ", vocabulary);
  }
}

// Throws before anything is written.
void check_range(std::string_view name, const int64_t* ids, int64_t n, int64_t vocabulary) {
  const auto limit = static_cast<uint64_t>(vocabulary);
  int64_t outside = 0;
  simd([&]() TESSERA_LAMBDA {
    int64_t any = 0;
    for (int64_t i = 0; i < n; ++i)
      any |= static_cast<int64_t>(static_cast<uint64_t>(ids[i]) >= limit);
    outside = any;
  });
  if (!outside) return;
  int64_t i = 0;
  while (static_cast<uint64_t>(ids[i]) < limit) ++i;
  fail<IndexError>(name, "id ", ids[i], " at position ", i, " is out of range: expected 0 to ",
                   vocabulary - 1);
}

}  // namespace

MetaList Embedding::meta(Metas in) const {
  const TensorMeta &weight = in[0], &ids = in[1];
  if (!dtypes.has(weight.dtype))
    fail<DTypeError>(name, "the weight must be of ", dtypes, ": given ", weight);
  if (weight.shape.rank() != 2) fail<ShapeError>(name, "the weight must be (V, D): given ", weight);
  check_ids(name, ids);
  check_piece(name, begin, weight.shape[0], vocabulary);
  const int64_t rows = vocabulary ? vocabulary : weight.shape[0];
  if (padding < -1 || padding >= rows)
    fail<IndexError>(name, "padding_idx ", padding, " is out of range: expected 0 to ", rows - 1,
                     " for ", weight, " (-1: none)");
  Shape out = ids.shape;
  out.push_back(weight.shape[1]);
  return {{out, weight.dtype, weight.device}};
}

ShardingRule Embedding::sharding(Metas in) const {
  return rule("v d, ... -> ... d", in).linear({0});
}

Embedding Embedding::local(const Piece& piece) const {
  const Piece::Range& rows = piece.range(0, 0);
  return {begin + rows.begin, vocabulary ? vocabulary : rows.global, padding};
}

void Embedding::cpu(Tensors in, Outputs y) const {
  const Tensor& weight = in[0];
  const Tensor ids = row_major(in[1]);
  const int64_t tokens = ids.numel(), rows = weight.shape()[0], width = weight.shape()[1];
  if (tokens == 0) return;
  const int64_t* id = ids.data<int64_t>();
  check_range(name, id, tokens, vocabulary ? vocabulary : rows);
  if (width == 0) return;
  dispatch<dtypes>(weight.dtype(), [&]<class T>() {
    const T* from = weight.data<T>();
    T* to = y[0].data<T>();
    const int64_t row_stride = weight.strides()[0], stride = weight.strides()[1];
    parallel_for(tokens, std::max<int64_t>(1, 16384 / width), [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const int64_t row = id[t] - begin;
        T* out = to + t * width;
        if (row < 0 || row >= rows) {
          std::fill_n(out, width, T{});
        } else if (stride == 1) {
          std::memcpy(static_cast<void*>(out), from + row * row_stride,
                      static_cast<size_t>(width) * sizeof(T));
        } else {
          for (int64_t i = 0; i < width; ++i) out[i] = from[row * row_stride + i * stride];
        }
      }
    });
  });
}

Grads Embedding::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  if (!needs[0]) return g;
  const Tensor& ids = s.input(1);
  const auto is_padding = [&] {
    return unsqueeze(equal(ids, full_like(ids, static_cast<double>(padding))), -1);  // (..., 1)
  };
  g[0] = call(EmbeddingBackward{s.input_meta(0).shape[0], begin, vocabulary},
              {padding < 0 ? dy[0] : masked_fill(dy[0], is_padding(), 0), ids, s.input(0)});
  return g;
}

std::vector<Sample<Embedding>> Embedding::samples() {
  return {
      {Embedding{}, {arg({7, 5}), index_arg({6, 5}, 0, 7)}},
      {Embedding{}, {arg({5, 6}), index_arg({}, 0, 5)}},
      {Embedding{4, 20}, {arg({8, 5}), index_arg({19}, 0, 20)}},
      {Embedding{0, 0, 6}, {arg({7, 5}), index_arg({9}, 0, 6)}},  // padding is not in the ids
      known(Embedding{},
            {arg({3, 2}).listed({1, 2, 3, 4, 5, 6}), arg({3}).listed({2, 0, 2}).as(DType::i64)},
            {{5, 6, 1, 2, 5, 6}}),
      known(Embedding{1, 9},
            {arg({3, 2}).listed({1, 2, 3, 4, 5, 6}), arg({3}).listed({3, 0, 8}).as(DType::i64)},
            {{5, 6, 0, 0, 0, 0}}),
      timed(Embedding{}, {arg({2048, 256}), index_arg({8, 512}, 0, 2048)}),
      bad(Embedding{}, {arg({7, 5}), index_arg({3}, 7, 9)}, "IndexError"),
      bad(Embedding{}, {arg({7, 5}), index_arg({3}, -2, 0)}, "IndexError"),
      bad(Embedding{}, {arg({7}), index_arg({3}, 0, 7)}, "ShapeError"),
      bad(Embedding{}, {arg({7, 5}), arg({3}).as(DType::f32)}, "DTypeError"),
      bad(Embedding{}, {arg({7, 5}).as(DType::i64), index_arg({3}, 0, 7)}, "DTypeError"),
      bad(Embedding{0, 0, 7}, {arg({7, 5}), index_arg({3}, 0, 7)}, "IndexError"),
      bad(Embedding{15, 20}, {arg({7, 5}), index_arg({3}, 0, 20)}, "ValueError"),
  };
}

// --- the gradient of the weight -----------------------------------------------------------------------------------

MetaList EmbeddingBackward::meta(Metas in) const {
  const TensorMeta &dy = in[0], &ids = in[1];
  if (!dtypes.has(dy.dtype)) fail<DTypeError>(name, "dy must be of ", dtypes, ": given ", dy);
  check_ids(name, ids);
  check_piece(name, begin, rows, vocabulary);
  bool fits = dy.shape.rank() == ids.shape.rank() + 1;
  for (int d = 0; fits && d < ids.shape.rank(); ++d) fits = dy.shape[d] == ids.shape[d];
  if (!fits) fail<ShapeError>(name, "dy must be (..., D) for ids (...): given ", dy, " and ", ids);
  const int64_t width = dy.shape.back();
  if (in.has(2) && (in[2].shape.rank() != 2 || in[2].shape[0] != rows || in[2].shape[1] != width ||
                    in[2].dtype != dy.dtype)) {
    fail<ShapeError>(name, "the weight must be ", dy.dtype, '[', rows, ", ", width, "] for dy ", dy,
                     ": given ", in[2]);
  }
  return {{Shape{rows, width}, dy.dtype, dy.device}};
}

ShardingRule EmbeddingBackward::sharding(Metas in) const {
  // A piece takes the ids of its own rows. Only the weight, if given, says which those are.
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dy, ids;
  for (int64_t size : in[1].shape) {
    ids.push_back({static_cast<int16_t>(r.add_factor(size)), 1});
    dy.push_back(ids.back());
  }
  const DimFactor d{static_cast<int16_t>(r.add_factor(in[0].shape.back(), 'd')), 1};
  dy.push_back(d);
  const DimFactor v{static_cast<int16_t>(r.add_factor(rows, 'v')), 1};
  r.operand(dy).operand(ids);
  if (in.has(2)) r.operand({v, d});
  else if (in.size() > 2) r.operand({});
  r.outputs_from_here().operand({v, d}).linear({0});
  return in.has(2) ? r.linear({0, 2}) : r;
}

EmbeddingBackward EmbeddingBackward::local(const Piece& piece) const {
  const Piece::Range& own = piece.operands.back()[0];
  return {own.size, begin + own.begin, vocabulary ? vocabulary : own.global};
}

void EmbeddingBackward::cpu(Tensors in, Outputs y) const {
  const Tensor dy = row_major(in[0]), ids = row_major(in[1]);
  const int64_t tokens = ids.numel(), width = dy.shape().back();
  const int64_t* id = ids.data<int64_t>();
  if (tokens > 0) check_range(name, id, tokens, vocabulary ? vocabulary : rows);
  if (y[0].numel() == 0) return;
  // order[starts[r] .. starts[r + 1]) are the tokens of row r.
  const Tensor scratch = empty({rows + 2 + tokens}, DType::i64);
  int64_t* starts = scratch.data<int64_t>();
  int64_t* order = starts + rows + 2;
  std::fill_n(starts, rows + 2, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t r = id[t] - begin;
    if (r >= 0 && r < rows) ++starts[r + 2];
  }
  for (int64_t r = 0; r < rows; ++r) starts[r + 2] += starts[r + 1];
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t r = id[t] - begin;
    if (r >= 0 && r < rows) order[starts[r + 1]++] = t;
  }
  dispatch<dtypes>(dy.dtype(), [&]<class T>() {
    using A = compute_t<T>;
    constexpr int64_t kBlock = 512;
    const T* from = tokens > 0 ? dy.data<T>() : nullptr;
    T* to = y[0].data<T>();
    const int64_t per_row = width * (1 + tokens / rows);
    parallel_for(rows, std::max<int64_t>(1, 16384 / per_row), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        if (starts[r] == starts[r + 1]) {
          std::fill_n(to + r * width, width, T{});
          continue;
        }
        for (int64_t column = 0; column < width; column += kBlock) {
          const int64_t n = std::min(kBlock, width - column);
          simd([&]() TESSERA_LAMBDA {
            A sum[kBlock];
            for (int64_t i = 0; i < n; ++i) sum[i] = 0;
            // Two tokens at a time halve the traffic of the sums; the order stays the tokens' own.
            int64_t k = starts[r];
            for (; k + 1 < starts[r + 1]; k += 2) {
              const T* one = from + order[k] * width + column;
              const T* two = from + order[k + 1] * width + column;
              for (int64_t i = 0; i < n; ++i) {
                sum[i] = (sum[i] + static_cast<A>(one[i])) + static_cast<A>(two[i]);
              }
            }
            if (k < starts[r + 1]) {
              const T* one = from + order[k] * width + column;
              for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<A>(one[i]);
            }
            T* out = to + r * width + column;
            for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sum[i]);
          });
        }
      }
    });
  });
}

Grads EmbeddingBackward::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(s.inputs());
  if (needs[0]) g[0] = call(Embedding{begin, vocabulary}, {dy[0], s.input(1)});
  return g;
}

std::vector<Sample<EmbeddingBackward>> EmbeddingBackward::samples() {
  return {
      {EmbeddingBackward{7, 0, 0}, {arg({6, 5, 8}), index_arg({6, 5}, 0, 7)}},
      {EmbeddingBackward{5, 0, 0}, {arg({6}), index_arg({}, 0, 5)}},
      {EmbeddingBackward{8, 4, 20}, {arg({19, 5}), index_arg({19}, 0, 20)}},
      {EmbeddingBackward{7, 0, 0}, {arg({9, 5}), index_arg({9}, 0, 7), arg({7, 5})}},
      {EmbeddingBackward{6, 0, 0}, {arg({5, 300}), index_arg({5}, 0, 6)}},
      known(EmbeddingBackward{3, 0, 0},
            {arg({3, 2}).listed({1, 2, 3, 4, 5, 6}), arg({3}).listed({2, 0, 2}).as(DType::i64)},
            {{3, 4, 0, 0, 6, 8}}),
      timed(EmbeddingBackward{2048, 0, 0}, {arg({8, 512, 256}), index_arg({8, 512}, 0, 2048)}),
      bad(EmbeddingBackward{7, 0, 0}, {arg({3, 5}), index_arg({3}, 7, 9)}, "IndexError"),
      bad(EmbeddingBackward{7, 0, 0}, {arg({4, 5}), index_arg({3}, 0, 7)}, "ShapeError"),
      bad(EmbeddingBackward{7, 0, 0}, {arg({3, 5}), arg({3}).as(DType::f32)}, "DTypeError"),
      bad(EmbeddingBackward{7, 0, 0}, {arg({3, 5}), index_arg({3}, 0, 7), arg({6, 5})},
          "ShapeError"),
      bad(EmbeddingBackward{7, 0, 5}, {arg({3, 5}), index_arg({3}, 0, 5)}, "ValueError"),
  };
}

}  // namespace tessera::op

namespace tessera {

Tensor embedding(const Tensor& weight, const Tensor& ids, std::optional<int64_t> padding_idx) {
  op::Embedding op;
  if (padding_idx && weight.rank() == 2) {
    const int64_t rows = weight.shape()[0];
    if (*padding_idx < -rows || *padding_idx >= rows)
      fail<IndexError>(op.name, "padding_idx ", *padding_idx, " is out of range for weight ",
                       weight.meta(), ": expected ", -rows, " to ", rows - 1);
    op.padding = *padding_idx + (*padding_idx < 0 ? rows : 0);
  }
  return call(op, {weight, as_index(ids)});
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and CPU kernels of quantize and dequantize. Long rows are shared by threads in
// chunks, whose maxima are joined.
#include "tessera/kernels/quantize/quantize.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/quantize/f8_impl.h"
#include "tessera/kernels/shared/rows_impl.h"

#include <algorithm>
#include <bit>

namespace tessera::op {
namespace {

constexpr DTypeSet kF8 = dtypes_of(DType::f8_e4m3, DType::f8_e5m2);
constexpr int64_t kChunk = 16384;

// The largest magnitude, NaN above all: magnitudes are ordered as their bits are.
template <class T> TESSERA_INLINE float largest(const T* x, int64_t n) {
  uint32_t top = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t a = std::bit_cast<uint32_t>(static_cast<float>(x[i])) & 0x7fffffffu;
    top = a > top ? a : top;
  }
  return std::bit_cast<float>(top);
}

float scale_of(float amax, DType to) {
  const float scale = amax / static_cast<float>(largest_number(to));
  return scale == 0 ? 1 : scale;
}

template <class T, class F8>
TESSERA_INLINE void round_run(const T* __restrict x, int64_t n, float scale, float limit,
                              F8* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(x[i]) / scale, low = v > limit ? limit : v;
    y[i] = narrow_finite<F8>(low < -limit ? -limit : low);
  }
}

}  // namespace

MetaList Quantize::meta(Metas in) const {
  const TensorMeta& x = in[0];
  if (!dtypes.has(x.dtype)) fail<DTypeError>(name, "x must be of ", dtypes, ": given ", x);
  if (!kF8.has(to)) fail<DTypeError>(name, "quantizes to ", kF8, ": asked for ", to, " from ", x);
  if (per_row && x.shape.rank() < 1)
    fail<ShapeError>(name, "rows are those of the last dim: x is ", x, "; quantize it as a whole");
  const Shape rows = per_row ? x.shape.without(x.shape.rank() - 1) : Shape{};
  return {{x.shape, to, x.device}, {rows, DType::f32, x.device}};
}

ShardingRule Quantize::sharding(Metas in) const {
  constexpr std::string_view kStrict = "rounding is not linear";
  if (per_row) return rule("... d -> ... d, ...", in).joins_inside('d').stricter_because(kStrict);
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> dims;
  for (int64_t size : in[0].shape) {
    const int factor = r.add_factor(size, dims.empty() ? 'r' : 0);
    if (!dims.empty()) r.replicate_factor(factor);  // one factor at most joins inside
    dims.push_back({static_cast<int16_t>(factor), 1});
  }
  r.operand(dims).outputs_from_here().operand(dims).operand({}).stricter_because(kStrict);
  return dims.empty() ? r : r.joins_inside('r');
}

void Quantize::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor x = contiguous(in[0].detach());
  const int64_t total = x.numel(), rows = y[1].numel(), n = per_row ? x.shape().back() : total;
  float* scales = y[1].data<float>();
  const float limit = static_cast<float>(largest_number(to));
  dispatch<dtypes>(x.dtype(), [&]<class T>() {
    dispatch<kF8>(to, [&]<class F8>() {
      const T* from = x.data<T>();
      F8* out = y[0].data<F8>();
      if (per_row && !joiner) {
        parallel_for(rows, std::max<int64_t>(1, kChunk / std::max<int64_t>(1, n)),
                     [&](int64_t begin, int64_t end) {
                       simd([&]() TESSERA_LAMBDA {
                         for (int64_t row = begin; row < end; ++row) {
                           scales[row] = scale_of(largest(from + row * n, n), to);
                           round_run(from + row * n, n, scales[row], limit, out + row * n);
                         }
                       });
                     });
        return;
      }
      // Maxima of chunks of each row, so that threads share a long one.
      const int64_t cuts = (n + kChunk - 1) / kChunk;
      const Tensor parts = empty({std::max<int64_t>(1, rows * cuts)}, DType::f32);
      float* part = parts.data<float>();
      const auto each_chunk = [&](auto&& f) {
        parallel_for(rows * cuts, std::max<int64_t>(1, kChunk / std::max<int64_t>(1, n)),
                     [&](int64_t begin, int64_t end) {
                       simd([&]() TESSERA_LAMBDA {
                         for (int64_t task = begin; task < end; ++task) {
                           const int64_t row = task / cuts, at = task % cuts * kChunk;
                           f(task, row, row * n + at, std::min(kChunk, n - at));
                         }
                       });
                     });
      };
      each_chunk([&](int64_t task, int64_t, int64_t at, int64_t count)
                     TESSERA_LAMBDA { part[task] = largest(from + at, count); });
      for (int64_t row = 0; row < rows; ++row) scales[row] = largest(part + row * cuts, cuts);
      if (joiner && rows > 0) {
        const Tensor joined = empty({rows}, DType::f32);
        std::copy_n(scales, rows, joined.data<float>());
        joiner->all_reduce(joined, Join::max);
        std::copy_n(joined.data<float>(), rows, scales);
      }
      for (int64_t row = 0; row < rows; ++row) scales[row] = scale_of(scales[row], to);
      each_chunk([&](int64_t, int64_t row, int64_t at, int64_t count)
                     TESSERA_LAMBDA { round_run(from + at, count, scales[row], limit, out + at); });
    });
  });
}

std::vector<Sample<Quantize>> Quantize::samples() {
  using Q = Quantize;
  const auto peak = [](const Shape& s, size_t at) {  // one element alone decides the scale
    std::vector<double> values(static_cast<size_t>(s.numel()), 0.5);
    values[at] = 7;
    return arg(s).listed(values);
  };
  return {
      {Q{}, {arg({5, 7})}},
      {Q{DType::f8_e5m2, true}, {arg({5, 7})}},
      {Q{DType::f8_e4m3, true}, {arg({2, 5, 70})}},
      {Q{DType::f8_e5m2}, {arg({6})}},
      {Q{}, {arg({})}},
      {Q{}, {peak({37}, 1)}},
      {Q{}, {peak({5, 40}, 100)}},
      {Q{}, {peak({5, 120}, 256)}},
      {Q{DType::f8_e4m3, true}, {peak({5, 300}, 256)}},
      known(Q{}, {arg({4}).listed({0.5, -3.5, 1.75, 7})}, {{32, -224, 112, 448}, {0.015625}}),
      known(Q{DType::f8_e5m2, true}, {arg({2, 2}).listed({0.5, -7, 3.5, 1.75})},
            {{4096, -57344, 57344, 28672}, {0.0001220703125, 0.00006103515625}}),
      timed(Q{}, {arg({2048, 2048})}),
      timed(Q{DType::f8_e4m3, true}, {arg({2048, 2048})}),
      bad(Q{}, {arg({5}).as(DType::f64)}, "DTypeError"),
      bad(Q{DType::bf16}, {arg({5})}, "DTypeError"),
      bad(Q{DType::f8_e4m3, true}, {arg({})}, "ShapeError"),
  };
}

MetaList Dequantize::meta(Metas in) const {
  const TensorMeta &values = in[0], &scale = in[1];
  if (!dtypes.has(values.dtype) || scale.dtype != DType::f32)
    fail<DTypeError>(name, "values must be of ", dtypes, " and scale f32: values are ", values,
                     ", scale is ", scale);
  if (!Quantize::dtypes.has(to))
    fail<DTypeError>(name, "gives ", Quantize::dtypes, ": asked for ", to, " from ", values);
  if (scale.shape.rank() > 0 && (values.shape.rank() < 1 ||
                                 !(scale.shape == values.shape.without(values.shape.rank() - 1)))) {
    fail<ShapeError>(name, "scale must be one number, or one per row of values: values are ",
                     values, ", scale is ", scale);
  }
  return {{values.shape, to, values.device}};
}

ShardingRule Dequantize::sharding(Metas in) const {
  ShardingRule r =
      in[1].shape.rank() > 0 ? rule("... d, ... -> ... d", in) : pointwise_rule(in, in[0].shape);
  return r.linear({1}).stricter_because("f8 does not hold the summands of a partial tensor");
}

void Dequantize::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor values = contiguous(in[0].detach()), scale = contiguous(in[1].detach());
  const int64_t total = values.numel(), rows = scale.numel(),
                n = rows > 0 ? total / std::max<int64_t>(1, rows) : 0;
  dispatch<dtypes>(values.dtype(), [&]<class F8>() {
    dispatch<Quantize::dtypes>(to, [&]<class T>() {
      const F8* from = values.data<F8>();
      const float* scales = scale.data<float>();
      T* out = y[0].data<T>();
      const int64_t cuts = (n + kChunk - 1) / kChunk;
      parallel_for(rows * cuts, std::max<int64_t>(1, kChunk / std::max<int64_t>(1, n)),
                   [&](int64_t begin, int64_t end) {
                     simd([&]() TESSERA_LAMBDA {
                       for (int64_t task = begin; task < end; ++task) {
                         const int64_t row = task / cuts, at = task % cuts * kChunk,
                                       count = std::min(kChunk, n - at);
                         const F8* __restrict f = from + row * n + at;
                         T* __restrict t = out + row * n + at;
                         const float s = scales[row];
                         for (int64_t i = 0; i < count; ++i) t[i] = static_cast<T>(widen(f[i]) * s);
                       }
                     });
                   });
    });
  });
}

std::vector<Sample<Dequantize>> Dequantize::samples() {
  using D = Dequantize;
  const auto scale = [](Shape s) { return arg(s).uniform(0.1, 2).as(DType::f32); };
  return {
      {D{}, {arg({5, 7}), scale({})}},
      {D{DType::bf16}, {arg({5, 7}), scale({5})}},
      {D{}, {arg({2, 5, 6}), scale({2, 5})}},
      {D{}, {arg({}), scale({})}},
      known(D{}, {arg({3}).listed({1.5, -2, 0}), arg({}).listed({0.25}).as(DType::f32)},
            {{0.375, -0.5, 0}}),
      known(D{}, {arg({2, 1}).listed({1.5, -2}), arg({2}).listed({0.25, 3}).as(DType::f32)},
            {{0.375, -6}}),
      timed(D{}, {arg({2048, 2048}).as(DType::f8_e4m3), scale({})}),
      timed(D{DType::bf16}, {arg({2048, 2048}).as(DType::f8_e4m3), scale({2048})}),
      bad(D{}, {arg({5, 7}), scale({7})}, "ShapeError"),
      bad(D{}, {arg({5, 7}).as(DType::f32), scale({})}, "DTypeError"),
      bad(D{}, {arg({5, 7}), arg({}).as(DType::bf16)}, "DTypeError"),
      bad(D{DType::i64}, {arg({5, 7}), scale({})}, "DTypeError"),
  };
}

}  // namespace tessera::op

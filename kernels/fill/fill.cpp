// SPDX-License-Identifier: Apache-2.0
// Fills on CPU. Random::element is the definition; the loops here make the same bits 64 elements at
// a time, all lanes of a block of counters in one vector.
#include "tessera/kernels/fill/fill.h"

#include "tessera/core/context.h"
#include "tessera/core/draws.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/philox_impl.h"
#include "tessera/kernels/shared/piece_index_impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>

namespace tessera::op {
namespace {

void check_no_inputs(std::string_view name, Metas in) {
  if (in.size() != 0) fail<UsageError>(name, "takes no inputs: given ", in.size());
}

constexpr int64_t kBlocks = kPhiloxBlocks, kBatch = kPhiloxBatch;

// Elements 4 * block ... of the stream, before mean, std and range.
TESSERA_INLINE void random_batch(RngKey key, uint64_t block, bool normal, float* out) {
  uint32_t bits[4][kBlocks];
  philox_batch(key, block, bits);
  float u[4][kBlocks];
  for (int64_t j = 0; j < kBlocks; ++j) {
    u[0][j] = rng::unit(bits[0][j]);
    u[1][j] = rng::unit(bits[1][j]);
    u[2][j] = rng::unit(bits[2][j]);
    u[3][j] = rng::unit(bits[3][j]);
  }
  for (int pair = 0; normal && pair < 4; pair += 2) {
    for (int64_t j = 0; j < kBlocks; ++j) {
      const float radius = rng::root(rng::mul(-2.0f, rng::log_unit(u[pair][j])));
      float c, s;
      rng::turn(u[pair + 1][j], c, s);
      u[pair][j] = rng::mul(radius, c);
      u[pair + 1][j] = rng::mul(radius, s);
    }
  }
  for (int64_t j = 0; j < kBlocks; ++j) {
    for (int64_t e = 0; e < 4; ++e) out[4 * j + e] = u[e][j];
  }
}

// Draws the elements that lie outside [low, high] again, as Random::element does one by one.
TESSERA_INLINE void redraw_batch(RngKey key, uint64_t block, float scale, float shift, float low,
                                 float high, float* x) {
  for (int redraw = 0; redraw < 64; ++redraw) {
    int outside = 0;
    for (int64_t j = 0; j < kBatch; ++j) outside |= !((x[j] >= low) & (x[j] <= high));
    if (!outside) return;
    key.stream += 0x9E3779B97F4A7C15ull;
    float again[kBatch];
    random_batch(key, block, true, again);
    for (int64_t j = 0; j < kBatch; ++j) {
      const float v = rng::fma(again[j], scale, shift);
      x[j] = (x[j] >= low) & (x[j] <= high) ? x[j] : v;
    }
  }
  for (int64_t j = 0; j < kBatch; ++j) x[j] = x[j] < low ? low : (x[j] > high ? high : x[j]);
}

// Elements first, first + 1, ... of the whole.
template <class T> void random_run(const Random& op, uint64_t first, int64_t n, T* y) {
  const auto convert = [](float x) { return static_cast<T>(x); };
  int64_t i = 0;
  for (; i < n && (first + static_cast<uint64_t>(i)) % 4 != 0; ++i)
    y[i] = convert(op.element(first + static_cast<uint64_t>(i)));
  const bool uniform = op.distribution == Distribution::uniform;
  const float scale = uniform ? static_cast<float>(op.high - op.low) : static_cast<float>(op.std);
  const float shift = uniform ? static_cast<float>(op.low) : static_cast<float>(op.mean);
  const float low = static_cast<float>(op.low), high = static_cast<float>(op.high);
  const bool truncated = op.distribution == Distribution::truncated_normal;
  simd([&]() TESSERA_LAMBDA {
    for (; i + kBatch <= n; i += kBatch) {
      const uint64_t block = (first + static_cast<uint64_t>(i)) / 4;
      float x[kBatch];
      random_batch(op.key, block, !uniform, x);
      for (int64_t j = 0; j < kBatch; ++j) x[j] = rng::fma(x[j], scale, shift);
      for (int64_t j = 0; uniform && j < kBatch; ++j) x[j] = x[j] < high ? x[j] : low;
      if (truncated) redraw_batch(op.key, block, scale, shift, low, high, x);
      for (int64_t j = 0; j < kBatch; ++j) y[i + j] = static_cast<T>(x[j]);
    }
  });
  for (; i < n; ++i) y[i] = convert(op.element(first + static_cast<uint64_t>(i)));
}

}  // namespace

// --- fill ---------------------------------------------------------------------------------------------------------

MetaList Fill::meta(Metas in) const {
  check_no_inputs(name, in);
  checked_numel(shape, item_size(dtype), name);
  return {{shape, dtype, device}};
}

ShardingRule Fill::sharding(Metas in) const { return pointwise_rule(in, shape); }

void Fill::cpu(Tensors, Outputs y) const {
  const int64_t n = y[0].numel();
  if (n == 0) return;
  dispatch<dtypes>(dtype, [&]<class T>() {
    if (value == Scalar()) {  // all bits zero in every dtype
      auto* bytes = static_cast<std::byte*>(y[0].raw_data());
      parallel_for(n * static_cast<int64_t>(sizeof(T)), 262144,
                   [bytes](int64_t begin, int64_t end) {
                     std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
                   });
      return;
    }
    const T item = element<T>();
    T* to = y[0].data<T>();
    constexpr int64_t kGrain = 262144 / static_cast<int64_t>(sizeof(T));
    parallel_for(n, kGrain,
                 [to, item](int64_t begin, int64_t end) { std::fill(to + begin, to + end, item); });
  });
}

std::vector<Sample<Fill>> Fill::samples() {
  std::vector<Sample<Fill>> all{
      {Fill{{5, 7}, DType::f32, kCpu, 1.5}, {}},
      {Fill{{}, DType::bf16, kCpu, 0.25}, {}},
      {Fill{{5}, DType::f32, kMeta, 0}, {}},
      known(Fill{{2, 1}, DType::f64, kCpu, -1.5}, {}, {{-1.5, -1.5}}),
      known(Fill{{3}, DType::i64, kCpu, 7}, {}, {{7, 7, 7}}),
      timed(Fill{{1024, 1024}, DType::f32, kCpu, 0}, {}),
      bad(Fill{{-1, 4}, DType::f32, kCpu, 0}, {}, "ShapeError"),
      bad(Fill{{4}, DType::f32, kCpu, 0}, {arg({4})}, "UsageError"),
  };
  for (int t = 0; t < kDTypes; ++t) all.push_back({Fill{{6}, static_cast<DType>(t), kCpu, 1}, {}});
  return all;
}

// --- random -------------------------------------------------------------------------------------------------------

std::ostream& operator<<(std::ostream& os, Distribution d) {
  switch (d) {
    case Distribution::uniform: return os << "uniform";
    case Distribution::normal: return os << "normal";
    default: return os << "truncated_normal";
  }
}

MetaList Random::meta(Metas in) const {
  check_no_inputs(name, in);
  if (!dtypes.has(dtype))
    fail<DTypeError>(name, "random numbers are of ", dtypes, ": given ", dtype, " for shape ",
                     shape);
  checked_numel(shape, item_size(dtype), name);
  const bool ranged = distribution != Distribution::normal;
  if (ranged && !(low < high))
    fail<ValueError>(name, "expected low < high: given low ", low, " and high ", high,
                     " for shape ", shape);
  if (distribution != Distribution::uniform && !(std >= 0))
    fail<ValueError>(name, "std must be at least 0: given ", std, " for shape ", shape);
  check_place(*this);
  return {{shape, dtype, device}};
}

ShardingRule Random::sharding(Metas in) const { return pointwise_rule(in, shape); }

Random Random::local(const Piece& piece) const { return placed(*this, piece); }

void Random::cpu(Tensors, Outputs y) const {
  if (y[0].numel() == 0) return;
  dispatch<dtypes>(dtype, [&]<class T>() {
    T* to = y[0].data<T>();
    for_each_run(place_of_output(*this), y[0].numel(), [&](uint64_t number, int64_t i, int64_t n) {
      random_run(*this, number, n, to + i);
    });
  });
}

std::vector<Sample<Random>> Random::samples() {
  const auto of = [](Shape shape, Distribution d, DType dtype) {
    Random r;
    r.shape = shape;
    r.dtype = dtype;
    r.distribution = d;
    r.key = {7, 11};
    return r;
  };
  Random scaled = of({5, 77}, Distribution::normal, DType::f32);
  scaled.mean = 1.5;
  scaled.std = 0.25;
  scaled.key = {8, 12};
  Random truncated = of({6, 80}, Distribution::truncated_normal, DType::f64);
  truncated.low = -1;
  truncated.high = 0.5;
  Random known_truncated = truncated;
  known_truncated.shape = {2};
  known_truncated.dtype = DType::f32;
  Random uniform = of({5, 6, 7}, Distribution::uniform, DType::bf16);
  uniform.low = -2;
  uniform.high = 3;
  Random meta_device = of({5}, Distribution::uniform, DType::f32);
  meta_device.device = kMeta;
  Random part = of({5, 6}, Distribution::normal, DType::f32);
  part.whole = {9, 11};
  part.start = {2, 5};
  Random negative = of({4}, Distribution::normal, DType::f32);
  negative.std = -1;
  Random empty_range = of({4}, Distribution::uniform, DType::f32);
  empty_range.high = 0;
  return {
      {of({5, 7}, Distribution::normal, DType::f32), {}},
      {part, {}},
      {of({}, Distribution::uniform, DType::f16), {}},
      {scaled, {}},
      {truncated, {}},
      {uniform, {}},
      {meta_device, {}},
      known(of({6}, Distribution::normal, DType::f32), {},
            {{-0.20721265079632828, 0.7823000315927979, 0.1645017849728728, -0.4495644555410949,
              0.0025882442151973174, 0.07742782113655594}}),
      known(of({5}, Distribution::uniform, DType::f32), {},
            {{0.7207483649253845, 0.29120999574661255, 0.8917365670204163, 0.8058285117149353,
              0.9970036149024963}}),
      known(known_truncated, {}, {{-0.20721265079632828, -0.970961407900781}}),
      timed(of({1024, 1024}, Distribution::normal, DType::f32), {}),
      bad(of({4}, Distribution::normal, DType::i64), {}, "DTypeError"),
      bad(negative, {}, "ValueError"),
      bad(empty_range, {}, "ValueError"),
      bad(of({-1}, Distribution::normal, DType::f32), {}, "ShapeError"),
  };
}

}  // namespace tessera::op

namespace tessera {
namespace {

op::Random drawn(const Shape& shape, DType dtype, Device device, op::Distribution distribution) {
  const Draw draw = next_draw();
  return at_row(op::Random{shape, dtype, device, distribution, 0, 1, 0, 1, draw.key, {}, {}},
                draw.row);
}

}  // namespace

void manual_seed(uint64_t seed) {
  Context::current().call_keys.set_seed(seed);
  begin_micro_batch(0);
}

Tensor rand(const Shape& shape, DType dtype, Device device) {
  return call(drawn(shape, dtype, device, op::Distribution::uniform), {});
}
Tensor randn(const Shape& shape, DType dtype, Device device) {
  return call(drawn(shape, dtype, device, op::Distribution::normal), {});
}
Tensor rand_like(const Tensor& x) {
  return call_like(drawn(x.shape(), x.dtype(), x.device(), op::Distribution::uniform), x);
}
Tensor randn_like(const Tensor& x) {
  return call_like(drawn(x.shape(), x.dtype(), x.device(), op::Distribution::normal), x);
}

}  // namespace tessera

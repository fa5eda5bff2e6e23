// SPDX-License-Identifier: Apache-2.0
// randint on CPU: RandInt::number is the definition; the loops make 32 numbers at a time.
// multinomial in f64: with replacement by the place of a uniform number among the sums of the
// weights, without by the largest of weight / exponential number (Efraimidis and Spirakis, 2006).
#include "tessera/kernels/sampling/sampling.h"

#include "tessera/core/context.h"
#include "tessera/core/draws.h"
#include "tessera/core/message.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/cumsum/cumsum.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/searchsorted/searchsorted.h"
#include "tessera/kernels/shared/philox_impl.h"
#include "tessera/kernels/shared/piece_index_impl.h"
#include "tessera/kernels/topk/topk.h"
#include "tessera/kernels/views/views.h"

#include <cmath>

namespace tessera {
namespace op {
namespace {

constexpr int64_t kBatch = 2 * kPhiloxBlocks;  // a counter gives two elements

// Elements first, first + 1, ... of the whole.
template <class T> void randint_run(const RandInt& op, uint64_t first, int64_t n, T* y) {
  const auto one = [&](int64_t i) {
    y[i] = static_cast<T>(op.element(first + static_cast<uint64_t>(i)));
  };
  int64_t i = 0;
  if (first % 2 != 0) one(i++);
  simd([&]() TESSERA_LAMBDA {
    for (; i + kBatch <= n; i += kBatch) {
      uint32_t bits[4][kPhiloxBlocks];
      philox_batch(op.key, (first + static_cast<uint64_t>(i)) / 2, bits);
      for (int64_t j = 0; j < kPhiloxBlocks; ++j) {
        y[i + 2 * j] = static_cast<T>(op.number(bits[0][j], bits[1][j]));
        y[i + 2 * j + 1] = static_cast<T>(op.number(bits[2][j], bits[3][j]));
      }
    }
  });
  for (; i < n; ++i) one(i);
}

}  // namespace

MetaList RandInt::meta(Metas in) const {
  if (in.size() != 0) fail<UsageError>(name, "takes no inputs: given ", in.size());
  if (!dtypes.has(dtype))
    fail<DTypeError>(name, "numbers are of ", dtypes, ": given ", dtype, " for shape ", shape);
  checked_numel(shape, item_size(dtype), name);
  if (low >= high)
    fail<ValueError>(name, "expected low < high: given low ", low, " and high ", high,
                     " for shape ", shape);
  const auto fits = [&](int64_t v) { return dtype == DType::i64 || v == static_cast<int32_t>(v); };
  if (!fits(low) || !fits(high - 1))
    fail<ValueError>(name, "numbers from ", low, " to ", high - 1, " are beyond the range of ",
                     dtype, "; ask for i64");
  check_place(*this);
  return {{shape, dtype, device}};
}

ShardingRule RandInt::sharding(Metas in) const { return pointwise_rule(in, shape); }

RandInt RandInt::local(const Piece& piece) const { return placed(*this, piece); }

void RandInt::cpu(Tensors, Outputs y) const {
  if (y[0].numel() == 0) return;
  dispatch<dtypes>(dtype, [&]<class T>() {
    T* to = y[0].data<T>();
    for_each_run(place_of_output(*this), y[0].numel(), [&](uint64_t number, int64_t i, int64_t n) {
      randint_run(*this, number, n, to + i);
    });
  });
}

std::vector<Sample<RandInt>> RandInt::samples() {
  const auto of = [](Shape shape, int64_t low, int64_t high, DType dtype = DType::i64) {
    return RandInt{shape, low, high, dtype, kCpu, {7, 11}, {}, {}};
  };
  RandInt part = of({5, 6}, -3, 4, DType::i32), other_key = of({5, 77}, 0, int64_t{1} << 40);
  part.whole = {9, 11};
  part.start = {2, 5};
  other_key.key = {8, 12};
  RandInt meta_device = of({5}, 0, 9), outside = part;
  meta_device.device = kMeta;
  outside.start = {5, 5};
  return {
      {of({5, 7}, 0, 100), {}},
      {of({6, 80}, -5, 3, DType::i32), {}},
      {part, {}},
      {of({}, 0, 2), {}},
      {other_key, {}},
      {meta_device, {}},
      timed(of({1024, 1024}, 0, 50000), {}),
      known(of({3}, 5, 6), {}, {{5, 5, 5}}),
      bad(of({4}, 0, 9, DType::f32), {}, "DTypeError"),
      bad(of({4}, 3, 3), {}, "ValueError"),
      bad(of({4}, 0, int64_t{1} << 32, DType::i32), {}, "ValueError"),
      bad(of({-1}, 0, 9), {}, "ShapeError"),
      bad(outside, {}, "ShapeError"),
      bad(of({4}, 0, 9), {arg({4})}, "UsageError"),
  };
}

}  // namespace op

namespace {

void check_weights(const Tensor& p, int64_t least) {
  constexpr std::string_view kName = "multinomial";
  const double low = amin(p).item(), high = amax(p).item();
  if (!(low >= 0) || !std::isfinite(high))
    fail<ValueError>(kName, "weights must be at least 0 and finite: given ", p.meta(), " from ",
                     low, " to ", high);
  const Tensor positive = cast(greater(p, zeros_like(p)), DType::i64);
  const double fewest = amin(sum(positive, {-1})).item();
  if (fewest < static_cast<double>(least))
    fail<ValueError>(kName, "each row needs ", least, " weights above 0: given ", p.meta(),
                     " with a row of ", fewest);
}

// In (0, 1), 52 bits and a half, which f64 holds exactly; lies as `like`, of the same shape.
Tensor uniform_like(const Tensor& like, RngKey key, int64_t row) {
  const op::RandInt bits{like.shape(), 0, int64_t{1} << 52, DType::i64, like.device(), key, {}, {}};
  return affine(cast(call_like(at_row(bits, row), like), DType::f64), 0x1p-52, 0x1p-53);
}

}  // namespace

Tensor bernoulli(const Tensor& p, RngKey key, int64_t row) {
  if (!kFloats.has(p.dtype()))
    fail<DTypeError>("bernoulli", "p must be of ", kFloats, ": given ", p.meta());
  const DType wide = compute_dtype(p.dtype());
  const op::Random draw{p.shape(), wide, p.device(), op::Distribution::uniform, 0, 1, 0, 1,
                        key,       {},   {}};
  return cast(less(call_like(at_row(draw, row), p), cast(p.detach(), wide)), p.dtype());
}

Tensor multinomial(const Tensor& p, int64_t count, RngKey key, bool replacement, int64_t row) {
  constexpr std::string_view kName = "multinomial";
  if (!kFloats.has(p.dtype()))
    fail<DTypeError>(kName, "weights must be of ", kFloats, ": given ", p.meta());
  if (p.rank() < 1 || p.rank() > 2 || p.shape().back() == 0)
    fail<ShapeError>(kName, "weights must be (n) or (B, n) with n of 1 or more: given ", p.meta());
  const int64_t n = p.shape().back();
  if (count < 1 || (!replacement && count > n))
    fail<ValueError>(kName, "cannot draw ", count, " of ", counted(n, "place"),
                     replacement ? "" : " without replacement", ": given ", p.meta());
  const Tensor weights = cast(p.detach(), DType::f64);  // (..., n)
  if (p.device() == kCpu && !p.is_distributed() && p.numel() > 0)
    check_weights(weights, replacement ? 1 : count);
  if (!replacement) {
    const Tensor exponential = neg(log(uniform_like(weights, key, row)));  // (..., n)
    return topk(div(weights, exponential), count)[1];
  }
  Shape drawn = p.shape();
  drawn[p.rank() - 1] = count;
  const Tensor sums = cumsum(weights, -1);                         // (..., n)
  const Tensor total = expand(narrow(sums, -1, n - 1, 1), drawn);  // (..., count)
  // Below the total, so that a place is found; above the sum before it, so that its weight is not
  // 0.
  return searchsorted(sums, mul(uniform_like(total, key, row), total), true);
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype, Device device) {
  const Draw draw = next_draw();
  return call(at_row(op::RandInt{shape, low, high, dtype, device, draw.key, {}, {}}, draw.row), {});
}
Tensor bernoulli(const Tensor& p) {
  const Draw draw = next_draw();
  return bernoulli(p, draw.key, draw.row);
}
Tensor multinomial(const Tensor& p, int64_t count, bool replacement) {
  const Draw draw = next_draw();
  return multinomial(p, count, draw.key, replacement, draw.row);
}

}  // namespace tessera

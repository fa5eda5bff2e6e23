// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and CPU kernel of arange: each element from its own index, so that cuts change
// no bit.
#include "tessera/kernels/arange/arange.h"

#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/integer_range_impl.h"

#include <cmath>

namespace tessera {
namespace op {

MetaList Arange::meta(Metas in) const {
  if (in.size() != 0) fail<UsageError>(name, "takes no inputs: given ", in.size());
  if (!dtypes.has(dtype)) fail<DTypeError>(name, "numbers are of ", dtypes, ": given ", dtype);
  if (count < 0 || begin < 0)
    fail<ShapeError>(name, "count and begin must not be negative: given ", count, " and ", begin);
  if (!std::isfinite(start) || !std::isfinite(step))
    fail<ValueError>(name, "start and step must be finite: given ", start, " and ", step);
  if (!is_floating(dtype) && (start != std::floor(start) || step != std::floor(step)))
    fail<ValueError>(name, "start and step must be whole for ", dtype, ": given ", start, " and ",
                     step, "; ask for a floating dtype");
  const double last = start + static_cast<double>(begin + count - 1) * step;
  const bool fits = in_range(start, dtype) && (count == 0 || in_range(last, dtype));
  if (!fits || (!is_floating(dtype) && !in_range(step, DType::i64)))
    fail<ValueError>(name, "start ", start, ", step ", step, " or the last element, ", last,
                     ", is beyond the range of ", dtype, "; ask for another dtype");
  checked_numel({count}, item_size(dtype), name);
  return {{Shape{count}, dtype, device}};
}

ShardingRule Arange::sharding(Metas) const {
  ShardingRule r;
  const DimFactor n{static_cast<int16_t>(r.add_factor(count, 'n')), 1};
  return r.outputs_from_here().operand({n});
}

Arange Arange::local(const Piece& piece) const {
  Arange a = *this;
  a.begin += piece.range(0, 0).begin;
  a.count = piece.range(0, 0).size;
  return a;
}

void Arange::cpu(Tensors, Outputs y) const {
  if (count == 0) return;
  dispatch<dtypes>(dtype, [&]<class T>() {
    T* to = y[0].data<T>();
    const Arange op = *this;
    parallel_for(count, 32768, [to, op](int64_t first, int64_t last) {
      simd([&]() TESSERA_LAMBDA {
        for (int64_t i = first; i < last; ++i) to[i] = op.element<T>(i);
      });
    });
  });
}

std::vector<Sample<Arange>> Arange::samples() {
  return {
      {Arange{0, 1, 17, 0, DType::i64, kCpu}, {}},
      {Arange{-3, 2, 9, 5, DType::i32, kCpu}, {}},
      {Arange{0.5, -0.25, 70, 0, DType::f32, kCpu}, {}},
      {Arange{1, 0.1, 9, 3, DType::f64, kCpu}, {}},
      {Arange{0, 1, 9, 0, DType::bf16, kCpu}, {}},
      {Arange{0, 1, 9, 0, DType::f16, kCpu}, {}},
      {Arange{0, 1, 9, 0, DType::f32, kMeta}, {}},
      timed(Arange{0, 1, 1 << 20, 0, DType::f32, kCpu}, {}),
      bad(Arange{0, 1, -4, 0, DType::f32, kCpu}, {}, "ShapeError"),
      bad(Arange{0.5, 1, 4, 0, DType::i64, kCpu}, {}, "ValueError"),
      bad(Arange{3e9, 1, 4, 0, DType::i32, kCpu}, {}, "ValueError"),
      bad(Arange{0, 1, 4, 0, DType::bool_, kCpu}, {}, "DTypeError"),
      bad(Arange{0, 1, 4, 0, DType::f32, kCpu}, {arg({4})}, "UsageError"),
  };
}

}  // namespace op

Tensor arange(double start, double stop, double step, DType dtype, Device device) {
  if (!std::isfinite(start) || !std::isfinite(stop) || !std::isfinite(step) || step == 0)
    fail<ValueError>("arange", "start, stop and step must be finite and step not 0: given ", start,
                     ", ", stop, " and ", step);
  if (step > 0 ? stop < start : stop > start)
    fail<ValueError>("arange", "step ", step, " leads from ", start, " away from ", stop);
  const double count = std::ceil((stop - start) / step);
  if (!(count < 0x1p62))
    fail<ValueError>("arange", count, " elements from ", start, " to ", stop, " by ", step,
                     " are too many");
  return call(op::Arange{start, step, static_cast<int64_t>(count), 0, dtype, device}, {});
}

}  // namespace tessera

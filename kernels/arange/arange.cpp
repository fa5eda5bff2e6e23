// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and CPU kernels of arange and linspace: each element from its own index, so that
// cuts change no bit.
#include "tessera/kernels/arange/arange.h"

#include "tessera/core/message.h"
#include "tessera/core/parallel.h"
#include "tessera/kernels/shared/integer_range_impl.h"

#include <cmath>
#include <limits>

namespace tessera {
namespace op {
namespace {

ShardingRule row_rule(int64_t count) {
  ShardingRule r;
  const DimFactor n{static_cast<int16_t>(r.add_factor(count, 'n')), 1};
  return r.outputs_from_here().operand({n});
}

template <class Op> Op piece_of(Op op, const Piece& piece) {
  op.begin += piece.range(0, 0).begin;
  op.count = piece.range(0, 0).size;
  return op;
}

template <class Op> void write_elements(const Op& op, const Tensor& y) {
  if (op.count == 0) return;
  dispatch<Op::dtypes>(op.dtype, [&]<class T>() {
    T* to = y.data<T>();
    parallel_for(op.count, 32768, [to, op](int64_t first, int64_t last) {
      simd([&]() TESSERA_LAMBDA {
        for (int64_t i = first; i < last; ++i) to[i] = op.template element<T>(i);
      });
    });
  });
}

}  // namespace

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

ShardingRule Arange::sharding(Metas) const { return row_rule(count); }

Arange Arange::local(const Piece& piece) const { return piece_of(*this, piece); }

void Arange::cpu(Tensors, Outputs y) const { write_elements(*this, y[0]); }

std::vector<Sample<Arange>> Arange::samples() {
  return {
      {Arange{0, 1, 17, 0, DType::i64, kCpu}, {}},
      {Arange{-3, 2, 9, 5, DType::i32, kCpu}, {}},
      {Arange{0.5, -0.25, 70, 0, DType::f32, kCpu}, {}},
      {Arange{1, 0.1, 9, 3, DType::f64, kCpu}, {}},
      {Arange{0, 1, 9, 0, DType::bf16, kCpu}, {}},
      {Arange{0, 1, 9, 0, DType::f16, kCpu}, {}},
      {Arange{0, 1, 9, 0, DType::f32, kMeta}, {}},
      known(Arange{0.5, -0.25, 4, 0, DType::f64, kCpu}, {}, {{0.5, 0.25, 0, -0.25}}),
      known(Arange{-3, 2, 4, 1, DType::i64, kCpu}, {}, {{-1, 1, 3, 5}}),
      timed(Arange{0, 1, 1 << 20, 0, DType::f32, kCpu}, {}),
      bad(Arange{0, 1, -4, 0, DType::f32, kCpu}, {}, "ShapeError"),
      bad(Arange{0.5, 1, 4, 0, DType::i64, kCpu}, {}, "ValueError"),
      bad(Arange{3e9, 1, 4, 0, DType::i32, kCpu}, {}, "ValueError"),
      bad(Arange{0, 1, 4, 0, DType::bool_, kCpu}, {}, "DTypeError"),
      bad(Arange{0, 1, 4, 0, DType::f32, kCpu}, {arg({4})}, "UsageError"),
  };
}

// --- linspace -----------------------------------------------------------------------------------------------------

MetaList Linspace::meta(Metas in) const {
  if (in.size() != 0) fail<UsageError>(name, "takes no inputs: given ", in.size());
  if (!dtypes.has(dtype)) fail<DTypeError>(name, "numbers are of ", dtypes, ": given ", dtype);
  if (steps < 0 || begin < 0 || count < 0 || begin > steps || count > steps - begin)
    fail<ShapeError>(name, counted(count, "number"), " from ", begin, " would not lie inside ",
                     steps);
  if (!std::isfinite(start) || !std::isfinite(stop))
    fail<ValueError>(name, "start and stop must be finite: given ", start, " and ", stop);
  checked_numel({count}, item_size(dtype), name);
  return {{Shape{count}, dtype, device}};
}

ShardingRule Linspace::sharding(Metas) const { return row_rule(count); }

Linspace Linspace::local(const Piece& piece) const { return piece_of(*this, piece); }

void Linspace::cpu(Tensors, Outputs y) const { write_elements(*this, y[0]); }

std::vector<Sample<Linspace>> Linspace::samples() {
  return {
      {Linspace{0, 1, 17, 0, 17, DType::f32, kCpu}, {}},
      {Linspace{2, -3, 70, 20, 40, DType::f64, kCpu}, {}},
      {Linspace{-1, 1, 9, 0, 9, DType::bf16, kCpu}, {}},
      {Linspace{5, 6, 1, 0, 1, DType::f16, kCpu}, {}},
      {Linspace{0, 1, 9, 0, 9, DType::f32, kMeta}, {}},
      timed(Linspace{0, 1, 1 << 20, 0, 1 << 20, DType::f32, kCpu}, {}),
      known(Linspace{-1, 2, 4, 0, 4, DType::f32, kCpu}, {}, {{-1, 0, 1, 2}}),
      bad(Linspace{0, 1, -4, 0, -4, DType::f32, kCpu}, {}, "ShapeError"),
      bad(Linspace{0, 1, 9, 4, 6, DType::f32, kCpu}, {}, "ShapeError"),
      bad(Linspace{0, 1, 4, 0, 4, DType::i64, kCpu}, {}, "DTypeError"),
      bad(Linspace{0, std::numeric_limits<double>::infinity(), 4, 0, 4, DType::f32, kCpu}, {},
          "ValueError"),
      bad(Linspace{0, 1, 4, 0, 4, DType::f32, kCpu}, {arg({4})}, "UsageError"),
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
    fail<ValueError>("arange", counted(count, "element"), " from ", start, " to ", stop, " by ",
                     step, " are too many");
  return call(op::Arange{start, step, static_cast<int64_t>(count), 0, dtype, device}, {});
}

}  // namespace tessera

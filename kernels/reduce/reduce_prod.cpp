// SPDX-License-Identifier: Apache-2.0
// The gradient of prod on CPU: for each output, products of the elements before and after each one.
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/reduce/reduce_family_impl.h"
#include "tessera/kernels/shared/rows_impl.h"

namespace tessera::op {

MetaList ProdBackward::meta(Metas in) const {
  const TensorMeta &x = in[0], &dy = in[1];
  check_reduced(name, dtypes, x, dims, true);
  if (dy.dtype != x.dtype)
    fail<DTypeError>(name, "x and dy must share one dtype: x is ", x, ", dy is ", dy);
  if (!(dy.shape == kept_shape(x.shape, dims, keepdim)))
    fail<ShapeError>(name, "dy must have the shape of the product of x, ",
                     kept_shape(x.shape, dims, keepdim), ": x is ", x, ", dy is ", dy);
  return {x};
}

ShardingRule ProdBackward::sharding(Metas in) const {
  ShardingRule r;
  SmallVector<DimFactor, kMaxRank> whole, kept;
  for (int d = 0; d < in[0].shape.rank(); ++d) {
    const DimFactor f{static_cast<int16_t>(r.add_factor(in[0].shape[d])), 1};
    whole.push_back(f);
    if (!reduced(dims, d)) kept.push_back(f);
    else if (keepdim) kept.push_back({});
    if (reduced(dims, d)) r.replicate_factor(f.factor);
  }
  return r.operand(whole).operand(kept).outputs_from_here().operand(whole).linear({1});
}

namespace {
// Outputs: of those that lie apart a few, so that no product waits for the one before it.
constexpr int64_t kAtOnce = 32, kApart = 8;
}  // namespace

void ProdBackward::cpu(Tensors in, Outputs dx) const {
  const Tensor& x = in[0];
  if (x.numel() == 0) return;
  // Axes of x (stride) and of dx (out), of dy (stride).
  std::array<ReduceAxis, kMaxRank> kept{}, gradient{}, inner{};
  int outer_count = 0, inner_count = 0;
  for (int d = 0, at = 0; d < x.rank(); ++d) {
    const ReduceAxis axis{x.shape()[d], x.strides()[d], dx[0].strides()[d]};
    if (reduced(dims, d)) {
      inner[static_cast<size_t>(inner_count++)] = axis;
      at += keepdim ? 1 : 0;
    } else {
      kept[static_cast<size_t>(outer_count)] = axis;
      gradient[static_cast<size_t>(outer_count++)] = {axis.size, in[1].strides()[at++], 0};
    }
  }
  const int64_t n = reduced_count(x.shape(), dims), outputs = x.numel() / n;
  const Tensor places = empty({2, n}, DType::i64);  // of an output's elements, in x and in dx
  int64_t *source = places.data<int64_t>(), *target = source + n;
  ReduceWalk walk(inner, inner_count, 0);
  for (int64_t k = 0; k < n; ++k, walk.next()) {
    source[k] = walk.offset;
    target[k] = walk.out;
  }
  // Outputs of one axis are done at once.
  const size_t last = static_cast<size_t>(std::max(0, outer_count - 1));
  const bool adjacent = outer_count > 0 && kept[last].stride == 1 && kept[last].out == 1;
  const int64_t columns = outer_count > 0 ? kept[last].size : 1, span = adjacent ? kAtOnce : kApart,
                blocks = (columns + span - 1) / span;
  const int64_t apart = kept[last].stride, apart_out = kept[last].out;
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T *from = x.data<T>(), *dy = in[1].data<T>();
    T* to = dx[0].data<T>();
    const auto run = [&]<int64_t kLanes, bool kUnit>(int64_t o, C* before) {
      const ReduceWalk at(kept, outer_count, o), g(gradient, outer_count, o);
      const int64_t step = gradient[last].stride;
      simd([&]() TESSERA_LAMBDA {
        const T* values = from + at.offset;
        T* out = to + at.out;
        const auto in_x = [&](int64_t j) TESSERA_LAMBDA { return kUnit ? j : j * apart; };
        const auto in_dx = [&](int64_t j) TESSERA_LAMBDA { return kUnit ? j : j * apart_out; };
        C product[kLanes];
        for (int64_t j = 0; j < kLanes; ++j) product[j] = static_cast<C>(dy[g.offset + j * step]);
        for (int64_t k = 0; k < n; ++k) {
          for (int64_t j = 0; j < kLanes; ++j) {
            before[k * kLanes + j] = product[j];
            product[j] *= static_cast<C>(values[source[k] + in_x(j)]);
          }
        }
        for (int64_t j = 0; j < kLanes; ++j) product[j] = 1;
        for (int64_t k = n - 1; k >= 0; --k) {
          for (int64_t j = 0; j < kLanes; ++j) {
            out[target[k] + in_dx(j)] = static_cast<T>(before[k * kLanes + j] * product[j]);
            product[j] *= static_cast<C>(values[source[k] + in_x(j)]);
          }
        }
      });
    };
    for_each_row<C>(
        outputs / columns * blocks, n * span, 1, [&](int64_t task, C* scratch, int64_t) {
          const int64_t first = task % blocks * span, count = std::min(span, columns - first),
                        o = task / blocks * columns + first;
          if (adjacent && count == kAtOnce)
            return run.template operator()<kAtOnce, true>(o, scratch);
          if (!adjacent && count == kApart)
            return run.template operator()<kApart, false>(o, scratch);
          for (int64_t j = 0; j < count; ++j) run.template operator()<1, true>(o + j, scratch);
        });
  });
}

std::vector<Sample<ProdBackward>> ProdBackward::samples() {
  return {
      {{0b10, false}, {arg({5, 7}), arg({5})}},
      {{0b01, true}, {arg({6, 5}), arg({1, 5})}},
      {{0b101, false}, {arg({5, 6, 7}), arg({6})}},
      {{0b010, true}, {arg({5, 6, 5}), arg({5, 1, 5})}},
      {{0, false}, {arg({}), arg({})}},
      {{0b01, false}, {arg({5, 37}), arg({37})}},
      {{0b10, false}, {arg({5, 70}).uniform(0.9, 1.2), arg({5})}},
      known(ProdBackward{0b10, false},
            {arg({3, 3}).listed({1, 2, 4, 3, 0, 5, 0, 0, 7}), arg({3}).listed({1, 2, 3})},
            {{8, 4, 2, 0, 30, 0, 0, 0, 0}}),
      timed(ProdBackward{0b10, false}, {arg({1024, 1024}), arg({1024})}),
      bad(ProdBackward{0b10, false}, {arg({5, 7}), arg({7})}, "ShapeError"),
      bad(ProdBackward{0b100, false}, {arg({5, 7}), arg({5, 7})}, "IndexError"),
      bad(ProdBackward{0b1, false}, {arg({3}).as(DType::f32), arg({}).as(DType::bf16)},
          "DTypeError"),
  };
}

}  // namespace tessera::op

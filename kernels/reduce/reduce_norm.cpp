// SPDX-License-Identifier: Apache-2.0
// Variance and norms: checks, sharding, gradients, samples and CPU kernels.
#include "tessera/kernels/reduce/reduce_norm.h"

#include "tessera/core/message.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/reduce/reduce_family_impl.h"

namespace tessera::op {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T> struct SquareOf : SumOf<T> {
  using A = T;
  TESSERA_INLINE static A map(A x, A shift) { return (x - shift) * (x - shift); }
};
template <class T> struct SizeOf : SumOf<T> {
  using A = T;
  TESSERA_INLINE static A map(A x, A) { return std::abs(x); }
};
template <class T> struct CountOf : SumOf<T> {
  using A = T;
  TESSERA_INLINE static A map(A x, A) { return x != A(0) ? A(1) : A(0); }
};
template <class T> struct PowerOf : SumOf<T> {  // the shift is p
  using A = T;
  TESSERA_INLINE static A map(A x, A p) {
    constexpr A kTop = std::numeric_limits<A>::infinity();
    const A a = std::abs(x), y = vmath::pow(a, p);
    const A edge = (a == A(0)) == (p > A(0)) ? A(0) : kTop;
    return a != a ? a : ((a == A(0)) | (a == kTop) ? edge : y);
  }
};
template <class T, bool kLargest> struct PeakSizeOf : PeakOf<T, kLargest> {
  using A = T;
  static A identity() { return kLargest ? A(0) : std::numeric_limits<A>::infinity(); }
  TESSERA_INLINE static A map(A x, A) { return std::abs(x); }
};

// Values whose sizes differ, well away from zero.
Arg of_sizes(const Shape& shape) {
  std::vector<double> values;
  for (int i = 0; i < 101; ++i) values.push_back((i % 2 ? -1 : 1) * (0.13 + 0.05 * (i * 37 % 101)));
  return arg(shape).listed(values);
}

Tensor zero_of(const Tensor& x) { return full({}, 0, x.dtype(), x.device()); }

}  // namespace

template struct Reduce<Var>;
template struct Reduce<Norm>;

// --- var ----------------------------------------------------------------------------------------------------------

MetaList Var::meta(Metas in) const {
  MetaList out = Reduce::meta(in);
  const int64_t n = reduced_count(in[0].shape, dims);
  if (!(static_cast<double>(n) - correction > 0) && out[0].shape.numel() > 0) {
    fail<ShapeError>(name, counted(n, "element"), " and a correction of ", correction,
                     " leave nothing to divide by: given ", in[0],
                     ", expected more elements or a smaller correction");
  }
  return out;
}

ShardingRule Var::sharding(Metas in) const {
  return reduce_rule(in[0].shape, dims, keepdim, 1, true);
}

void Var::cpu(Tensors in, Outputs y) const {
  const int64_t n = reduced_count(in[0].shape(), dims);
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using A = Sums<T>;
    T* to = y[0].data<T>();
    const Tensor means = empty({y[0].numel()}, dtype_of<A>);
    A* mean = means.data<A>();
    const A count = static_cast<A>(n),
            divisor = static_cast<A>(static_cast<double>(n) - correction);
    reduce_elements<SumOf<A>, T>(in[0], dims, nullptr,
                                 [mean, count](int64_t o, A sum) { mean[o] = sum / count; });
    reduce_elements<SquareOf<A>, T>(in[0], dims, mean, [=, this](int64_t o, A sum) {
      to[o] = static_cast<T>(root ? std::sqrt(sum / divisor) : sum / divisor);
    });
  });
}

Grads Var::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Tensor& x = s.input(0);
  const double divisor = static_cast<double>(reduced_count(x.shape(), dims)) - correction;
  Tensor scale = affine(restore(dy[0], x.shape()), (root ? 1 : 2) / divisor, 0);
  if (root) {
    const Tensor y = restore(s.output(), x.shape());
    scale = masked_fill(div(scale, y), equal(y, zero_of(y)), 0);
  }
  return {mul(sub(x, call(Mean{{dims, true}, 0}, {x})), scale)};
}

std::vector<Sample<Var>> Var::samples() {
  const auto of = [](DimMask dims, bool keepdim, double correction, bool root) {
    return Var{{dims, keepdim}, correction, root};
  };
  return {
      {of(0b10, false, 1, false), {arg({5, 37})}},
      {of(0b01, true, 0, true), {arg({6, 5})}},
      {of(0b101, false, 1, true), {arg({5, 6, 7})}},
      {of(0b010, true, 0, false), {arg({5, 6, 3})}},
      {of(0b11, false, 2.5, false), {arg({19, 5})}},
      {of(0b10, false, 1, true), {arg({5, 37})}},
      {of(0b10, false, 0, false), {arg({6, 5})}},
      known(of(0b10, false, 1, false), {arg({2, 3}).listed({1, 2, 4, 3, 3, 3})},
            {{2.3333333333333335, 0}}),
      known(of(0b10, false, 0, true), {arg({1, 4}).listed({1, 2, 3, 4})}, {{1.118033988749895}}),
      timed(of(0b10, false, 1, false), {arg({1024, 1024})}),
      timed(of(0b01, false, 1, false), {arg({1024, 1024})}),
      bad(of(0b1, false, 1, false), {arg({1, 5})}, "ShapeError"),
      bad(of(0b10, false, 0, false), {arg({3, 0})}, "ShapeError"),
      bad(of(0b100, false, 1, false), {arg({3, 4})}, "IndexError"),
      bad(of(0b1, false, 1, false), {index_arg({3}, 0, 3)}, "DTypeError"),
  };
}

// --- norm ---------------------------------------------------------------------------------------------------------

MetaList Norm::meta(Metas in) const {
  check_reduced(name, dtypes, in[0], dims, p >= 0 && p != kInf);
  if (std::isnan(p)) fail<ValueError>(name, "p is not a number, for ", in[0]);
  return Reduce::meta(in);
}

ShardingRule Norm::sharding(Metas in) const {
  const bool free = p == 0 || p == 1 || std::isinf(p);  // else a root follows the sum
  ShardingRule r = reduce_rule(in[0].shape, dims, keepdim, 1, !free);
  if (std::isinf(p)) r.join(p > 0 ? Join::max : Join::min);
  return r;
}

void Norm::cpu(Tensors in, Outputs y) const {
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using A = Sums<T>;
    T* to = y[0].data<T>();
    const auto store = [to](int64_t o, A norm) { to[o] = static_cast<T>(norm); };
    const Tensor& x = in[0];
    if (p == 2) {
      reduce_elements<SquareOf<A>, T>(
          x, dims, nullptr, [to](int64_t o, A sum) { to[o] = static_cast<T>(std::sqrt(sum)); });
    } else if (p == 1) {
      reduce_elements<SizeOf<A>, T>(x, dims, nullptr, store);
    } else if (p == 0) {
      reduce_elements<CountOf<A>, T>(x, dims, nullptr, store);
    } else if (p == kInf) {
      reduce_elements<PeakSizeOf<A, true>, T>(x, dims, nullptr, store);
    } else if (p == -kInf) {
      reduce_elements<PeakSizeOf<A, false>, T>(x, dims, nullptr, store);
    } else {
      const A power = static_cast<A>(p);
      const Tensor powers = full({y[0].numel()}, p, dtype_of<A>);
      reduce_elements<PowerOf<A>, T>(x, dims, powers.data<A>(), [to, power](int64_t o, A sum) {
        to[o] = static_cast<T>(std::pow(sum, A(1) / power));
      });
    }
  });
}

Grads Norm::vjp(const Saved& s, const Grads& dy, Needs) const {
  if (p == 0) return Grads(1);
  const Tensor& x = s.input(0);
  const Tensor g = restore(dy[0], x.shape()), y = restore(s.output(), x.shape());
  if (p == 1) return {mul(sign(x), g)};
  if (std::isinf(p)) {  // those that tie share alike
    const Tensor ties = equal(abs(x), y);
    const DType wide = compute_dtype(x.dtype());  // narrow counts overflow
    const Tensor count = call(Sum{{dims, true}}, {cast(ties, wide)});
    const Tensor share = cast(div(cast(g, wide), count), x.dtype());
    return {mul(mul(sign(x), cast(ties, x.dtype())), share)};
  }
  const Tensor nothing = equal(y, zero_of(y));
  if (p == 2) return {mul(x, masked_fill(div(g, y), nothing, 0))};
  Tensor powers = mul(sign(x), pow(abs(x), p - 1));
  if (p < 1) powers = masked_fill(powers, equal(x, zero_of(x)), 0);
  return {mul(powers, masked_fill(mul(g, pow(y, 1 - p)), nothing, 0))};
}

std::vector<Sample<Norm>> Norm::samples() {
  std::vector<Sample<Norm>> all;
  for (const double p : {2.0, 1.0, 0.0, 3.0, 0.5, kInf, -kInf}) {
    const auto of = [&](DimMask dims, bool keepdim) { return Norm{{dims, keepdim}, p}; };
    all.push_back({of(0b10, false), {of_sizes({5, 19})}});
    all.push_back({of(0b01, true), {of_sizes({6, 5})}});
    all.push_back({of(0b101, false), {of_sizes({3, 5, 6})}});
    all.push_back({of(0b11, false), {of_sizes({19, 5})}});
  }
  const auto known_row = [&](double p, double of_row) {
    all.push_back(known(Norm{{0b1, false}, p}, {arg({3}).listed({1, -2, 4})}, {{of_row}}));
  };
  known_row(2, 4.58257569495584);
  known_row(1, 7);
  known_row(0, 3);
  known_row(3, 4.179339196381232);
  known_row(kInf, 4);
  known_row(-kInf, 1);
  all.push_back(timed(Norm{{0b10, false}, 2}, {arg({1024, 1024})}));
  all.push_back(timed(Norm{{0b01, false}, 1}, {arg({1024, 1024})}));
  all.push_back(bad(Norm{{0b100, false}, 2}, {arg({3, 4})}, "IndexError"));
  all.push_back(bad(Norm{{0b10, false}, kInf}, {arg({3, 0})}, "ShapeError"));
  all.push_back(bad(Norm{{0b1, false}, std::nan("")}, {arg({3})}, "ValueError"));
  all.push_back(bad(Norm{{0b1, false}, 2}, {index_arg({3}, 0, 3)}, "DTypeError"));
  return all;
}

}  // namespace tessera::op

namespace tessera {

Tensor var(const Tensor& x, Dims dims, double correction, bool keepdim) {
  return call(op::Var{{op::mask_of(dims, x.rank(), "var"), keepdim}, correction, false}, {x});
}
Tensor stddev(const Tensor& x, Dims dims, double correction, bool keepdim) {
  return call(op::Var{{op::mask_of(dims, x.rank(), "var"), keepdim}, correction, true}, {x});
}
std::array<Tensor, 2> var_mean(const Tensor& x, Dims dims, double correction, bool keepdim) {
  return {var(x, dims, correction, keepdim), mean(x, dims, keepdim)};
}
std::array<Tensor, 2> std_mean(const Tensor& x, Dims dims, double correction, bool keepdim) {
  return {stddev(x, dims, correction, keepdim), mean(x, dims, keepdim)};
}
Tensor vector_norm(const Tensor& x, double p, Dims dims, bool keepdim) {
  return call(op::Norm{{op::mask_of(dims, x.rank(), "norm"), keepdim}, p}, {x});
}

}  // namespace tessera

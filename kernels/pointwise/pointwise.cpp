// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the pointwise family: checks, gradients and the ops with samples of their own.
#include "tessera/kernels/pointwise/pointwise.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise_family_impl.h"
#include "tessera/kernels/shared/integer_range_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"

#include <cstring>

namespace tessera::op {

void wrong_pointwise_dtypes(std::string_view name, Metas in, DTypeSet expected, int condition) {
  std::ostringstream given;
  for (size_t i = 0; i < in.size(); ++i) given << (i ? ", " : "") << in[i];
  if (condition >= 0) {
    fail<DTypeError>(name, "input ", condition, " must be bool and the rest share one dtype of ",
                     expected, ": given ", given.str(), "; cast one of them");
  }
  fail<DTypeError>(name, "inputs must share one dtype of ", expected, ": given ", given.str(),
                   "; cast one of them");
}

Shape broadcast_inputs(std::string_view name, Metas in) {
  Shape out = in[0].shape;
  for (size_t i = 1; i < in.size(); ++i) {
    if (!(in[i].shape == out)) out = broadcast_shapes(out, in[i].shape, name);
  }
  return out;
}

namespace {

bool is_whole(double v) { return v == std::floor(v) && std::abs(v) < 1e300; }

}  // namespace

template <> struct Variants<Affine> {
  static std::vector<Affine> all() { return {{{}, 2, 0}, {{}, -3, -0.0}, {{}, 1, 3}}; }
};
template <> struct Variants<PowScalar> {
  static std::vector<PowScalar> all() { return {{{}, 2}, {{}, 3}, {{}, 4}, {{}, 1}, {{}, 0}}; }
};
template <> struct Variants<Clamp> {
  static std::vector<Clamp> all() {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    return {{{}, -1, 2}, {{}, 0, kNone}, {{}, -kNone, 1}};
  }
};
template <> struct Variants<MaskedFill> {
  static std::vector<MaskedFill> all() { return {{{}, 3}, {{}, 0}}; }
};

MetaList Affine::meta(Metas in) const {
  MetaList out = Pointwise::meta(in);
  check_scalar(name, scale, in[0]);
  check_scalar(name, shift, in[0]);
  return out;
}

// --- remainder and powers -----------------------------------------------------------------------------------------

void check_divisors(std::string_view name, const Tensor& b) {
  if (is_floating(b.dtype())) return;
  const Tensor divisors = row_major(b);
  dispatch<kIntegers>(b.dtype(), [&]<class T>() {
    const T* v = divisors.data<T>();
    for (int64_t i = 0; i < divisors.numel(); ++i) {
      if (v[i] == 0)
        fail<ValueError>(name, "element ", i, " of the divisor ", b.meta(),
                         " is 0: integers cannot be divided by it");
    }
  });
}

void Remainder::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() > 0) check_divisors(name, in[1]);
  Pointwise::cpu(in, y);
}

// A quotient rounded to the dtype first may reach the next whole number.
Tensor Remainder::grad_b(const Saved& s, const Tensor& dy) {
  return neg(mul(dy, floor_divide(s.input(0), s.input(1))));
}

Tensor Pow::grad_a(const Saved& s, const Tensor& dy) {
  const Tensor &a = s.input(0), &b = s.input(1);
  // A zero power has no slope, even at a = 0, where a^(b - 1) is infinite.
  return masked_fill(mul(mul(dy, b), pow(a, affine(b, 1, -1))), b == 0, 0);
}

Tensor Pow::grad_b(const Saved& s, const Tensor& dy) {
  const Tensor &a = s.input(0), &b = s.input(1);
  const Tensor flat = logical_and(a == 0, b >= 0);  // log(0) is no slope
  return masked_fill(mul(mul(dy, s.output()), log(a)), flat, 0);
}

MetaList PowScalar::meta(Metas in) const {
  MetaList out = Pointwise::meta(in);
  if (!is_floating(in[0].dtype) && !(is_whole(exponent) && exponent >= 0)) {
    fail<DTypeError>(name, "integers take whole exponents from 0: given ", in[0], " and ", exponent,
                     "; cast the input");
  }
  if (!in_range(exponent, in[0].dtype))
    fail<ValueError>(name, "exponent ", exponent, " is beyond the range of ", in[0].dtype,
                     ": given ", in[0], "; cast the input");
  return out;
}

Tensor PowScalar::grad(const Saved& s, const Tensor& dy) const {
  if (exponent == 0) return {};
  if (exponent == 1) return dy;
  const Tensor& x = s.input(0);
  return mul(dy, affine(exponent == 2 ? x : pow(x, exponent - 1), exponent, 0));
}

// --- bounds -------------------------------------------------------------------------------------------------------

MetaList Clamp::meta(Metas in) const {
  MetaList out = Pointwise::meta(in);
  if (std::isnan(low) || std::isnan(high))
    fail<ValueError>(name, "a bound is not a number: given ", low, " and ", high, " for ", in[0]);
  const auto fits = [](double b) { return std::isinf(b) || is_whole(b); };
  if (!is_floating(in[0].dtype) && !(fits(low) && fits(high))) {
    fail<DTypeError>(name, "integers take whole bounds: given ", in[0], ", ", low, " and ", high,
                     "; cast the input");
  }
  return out;
}

Tensor Maximum::grad_a(const Saved& s, const Tensor& dy) {
  return call(MaximumBackward{}, {s.input(0), s.input(1), dy});
}
Tensor Maximum::grad_b(const Saved& s, const Tensor& dy) {
  return call(MaximumBackward{}, {s.input(1), s.input(0), dy});
}
Tensor Minimum::grad_a(const Saved& s, const Tensor& dy) {
  return call(MaximumBackward{}, {s.input(1), s.input(0), dy});
}
Tensor Minimum::grad_b(const Saved& s, const Tensor& dy) {
  return call(MaximumBackward{}, {s.input(0), s.input(1), dy});
}

Grads MaximumBackward::vjp(const Saved& s, const Grads& g, Needs needs) const {
  Grads out(3);  // steps have no slope: the gradients of a and b are zero
  if (needs[2]) out[2] = sum_to(call(*this, {s.input(0), s.input(1), g[0]}), s.input_meta(2).shape);
  return out;
}

MetaList MaskedFill::meta(Metas in) const {
  MetaList out = Pointwise::meta(in);
  check_scalar(name, value, in[0]);
  return out;
}

Grads MaskedFill::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  if (needs[0]) g[0] = sum_to(masked_fill(dy[0], s.input(1), 0), s.input_meta(0).shape);
  return g;
}

// --- what moves values unchanged ----------------------------------------------------------------------------------

MetaList Cast::meta(Metas in) const {
  if (saturate && !is_floating(to))
    fail<DTypeError>(name, "saturate is for floats: given ", in[0], " to ", to, "; clamp it first");
  return {{in[0].shape, to, in[0].device}};
}

ShardingRule Cast::sharding(Metas in) const {
  ShardingRule r = pointwise_rule(in, in[0].shape);
  if (is_floating(to)) r.monotone_up();  // integers wrap
  const DType from = in[0].dtype;        // a wider float holds every value of a narrower one
  const bool exact =
      from == to || (is_floating(from) && is_floating(to) && item_size(to) > item_size(from));
  if (exact) return r.linear({0});
  return r.stricter_because("rounding is not linear");
}

void Cast::cpu(Tensors in, Outputs y) const {
  dispatch<kAllDTypes>(in[0].dtype(), [&]<class From>() {
    dispatch<kAllDTypes>(to, [&]<class To>() {
      if constexpr (is_floating(dtype_of<To>)) {
        struct Saturate {
          TESSERA_INLINE To f(compute_t<From> x) const {
            constexpr auto kTop = static_cast<compute_t<To>>(largest_number(dtype_of<To>));
            const auto v = static_cast<compute_t<To>>(x), below = v > kTop ? kTop : v;
            return To(below < -kTop ? -kTop : below);
          }
        };
        if (saturate) return map_elements<To, From>(Saturate{}, y[0], in);
      }
      struct Convert {
        TESSERA_INLINE To f(compute_t<From> x) const { return converted<To>(x); }
      };
      map_elements<To, From>(Convert{}, y[0], in);
    });
  });
}

std::vector<Sample<Cast>> Cast::samples() {
  std::vector<Sample<Cast>> all;
  for (DType to : {DType::f32, DType::bf16, DType::f64, DType::f16, DType::f8_e4m3, DType::f8_e5m2,
                   DType::i64, DType::i32, DType::u8, DType::bool_}) {
    const bool narrow = to == DType::u8 || to == DType::bool_;
    all.push_back({Cast{{}, to}, {narrow ? arg({5, 7}).uniform(0, 2) : arg({5, 7})}});
  }
  all.push_back(known(Cast{{}, DType::i64}, {arg({3}).listed({2.75, -2.75, 3})}, {{2, -2, 3}}));
  using Double = std::numeric_limits<double>;
  constexpr double kNaN = Double::quiet_NaN(), kInf = Double::infinity();
  all.push_back(known(Cast{{}, DType::i32}, {arg({5}).listed({0x1p31, -0x1p40, kNaN, kInf, -kInf})},
                      {{0x7fffffff, -0x1p31, 0, 0x7fffffff, -0x1p31}}));
  all.push_back(known(Cast{{}, DType::u8}, {arg({5}).listed({256, -1, kNaN, 255, -0.5})},
                      {{255, 0, 0, 255, 0}}));
  all.push_back(known(Cast{{}, DType::f32}, {arg({3}).listed({1, 0, 1})}, {{1, 0, 1}}));
  all.push_back(known(Cast{{}, DType::bool_}, {arg({3}).listed({2, 0, 1})}, {{1, 0, 1}}));
  all.push_back({Cast{{}, DType::f8_e5m2, true}, {arg({5, 7})}});
  all.push_back({Cast{{}, DType::f8_e4m3, true}, {arg({5, 7}).uniform(-600, 600).as(DType::f32)}});
  all.push_back(
      known(Cast{{}, DType::f8_e4m3, true}, {arg({3}).listed({1000, -1000, 3})}, {{448, -448, 3}}));
  all.push_back(timed(Cast{{}, DType::bf16}, {arg({1024, 1024})}));
  all.push_back(bad(Cast{}, {no_arg()}, "UsageError"));
  all.push_back(bad(Cast{{}, DType::i32, true}, {arg({5})}, "DTypeError"));
  return all;
}

// Bytes alone, so that all dtypes of one size share a loop, and transposed ones go block by block.
template <> void Pointwise<Copy, 1>::cpu(Tensors in, Outputs y) const { strided_copy(y[0], in[0]); }

namespace {

// Choices among bits: g++ turns `c ? a : b` into branches, of which random conditions mispredict
// half. Truths are read as bytes.
struct Blend {
  template <class U> TESSERA_INLINE static U f(uint8_t c, U a, U b) {
    const auto mask = static_cast<U>(U{0} - static_cast<U>(c != 0));
    return static_cast<U>(b ^ ((a ^ b) & mask));
  }
};
struct BlendConstant {
  uint64_t bits;
  template <class U> TESSERA_INLINE U f(U x, uint8_t mask) const {
    return Blend::f(mask, static_cast<U>(bits), x);
  }
};

/// f.template operator()<U>() for the unsigned integer of an element's size.
template <class F> void dispatch_bits(DType t, F&& f) {
  switch (item_size(t)) {
    case 2: return f.template operator()<uint16_t>();
    case 4: return f.template operator()<uint32_t>();
    default: return f.template operator()<uint64_t>();
  }
}

}  // namespace

// The sign of a 16-bit float is its top bit: cleared in place of a way through f32.
template <> void Pointwise<Abs, 1>::cpu(Tensors in, Outputs y) const {
  struct ClearSign {
    TESSERA_INLINE static uint16_t f(uint16_t x) { return x & 0x7fffu; }
  };
  dispatch<Abs::dtypes>(y[0].dtype(), [&]<class T>() {
    if constexpr (sizeof(T) == 2) map_elements<uint16_t, uint16_t>(ClearSign{}, y[0], in);
    else map_elements<T, T>(Abs{}, y[0], in);
  });
}

template <> void Pointwise<Where, 3>::cpu(Tensors in, Outputs y) const {
  dispatch_bits(y[0].dtype(),
                [&]<class U>() { map_elements<U, uint8_t, U, U>(Blend{}, y[0], in); });
}

template <> void Pointwise<MaskedFill, 2>::cpu(Tensors in, Outputs y) const {
  uint64_t bits = 0;
  dispatch<MaskedFill::dtypes>(y[0].dtype(), [&]<class T>() {
    const T v = static_cast<T>(static_cast<const MaskedFill&>(*this).constant<compute_t<T>>());
    std::memcpy(static_cast<void*>(&bits), &v, sizeof(v));
  });
  dispatch_bits(y[0].dtype(),
                [&]<class U>() { map_elements<U, U, uint8_t>(BlendConstant{bits}, y[0], in); });
}

ShardingRule Where::sharding(Metas in) const {
  return pointwise_rule(in, broadcast_inputs(name, in)).linear({1, 2});
}

Grads Where::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  const Tensor& condition = s.input(0);
  Grads g(3);
  if (needs[1]) g[1] = sum_to(masked_fill(dy[0], logical_not(condition), 0), s.input_meta(1).shape);
  if (needs[2]) g[2] = sum_to(masked_fill(dy[0], condition, 0), s.input_meta(2).shape);
  return g;
}

std::vector<Sample<Where>> Where::samples() {
  return {
      {Where{}, {bool_arg({5, 7}), arg({5, 7}), arg({5, 7})}},
      {Where{}, {bool_arg({7}), arg({5, 1}), arg({})}},
      bad(Where{}, {arg({3}).as(DType::f32), arg({3}), arg({3})}, "DTypeError"),
      bad(Where{}, {bool_arg({2}), arg({3}), arg({3})}, "ShapeError"),
      known(Where{},
            {arg({3}).as(DType::bool_).listed({1, 0, 1}), arg({3}).listed({1, 2, 3}),
             arg({}).listed({-4})},
            {{1, -4, 3}}),
      timed(Where{}, {bool_arg({1024, 1024}), arg({1024, 1024}), arg({1024, 1024})}),
  };
}

template struct InstantiatePointwise<pointwise_arithmetic_ops>;

}  // namespace tessera::op

namespace tessera {
namespace {

// The number as a 0-dim tensor like x, which any layout takes.
Tensor constant(std::string_view name, const Scalar& v, const Tensor& x) {
  op::check_scalar(name, v, x.meta());
  return full({}, v, x.dtype(), x.device());
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, Scalar b) {
  return masked_fill(a, logical_not(condition), b);
}
Tensor div(const Tensor& x, Scalar b) {
  if (!is_floating(x.dtype()))
    fail<DTypeError>("div", x.meta(), " / ", b, ": cast to a floating dtype first");
  return affine(x, 1 / b.real(), -0.0);
}
Tensor div(Scalar a, const Tensor& x) {
  if (!is_floating(x.dtype()))
    fail<DTypeError>("div", a, " / ", x.meta(), ": cast to a floating dtype first");
  return a == Scalar(1) ? reciprocal(x) : div(constant("div", a, x), x);
}
Tensor remainder(const Tensor& x, Scalar b) { return remainder(x, constant("remainder", b, x)); }
Tensor remainder(Scalar a, const Tensor& x) { return remainder(constant("remainder", a, x), x); }
Tensor pow(Scalar a, const Tensor& x) { return pow(constant("pow", a, x), x); }

}  // namespace tessera

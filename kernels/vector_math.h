// SPDX-License-Identifier: Apache-2.0
// Elementary functions for kernel loops. The f32 ones are branch-free polynomials of explicit fma,
// so that loops over them vectorise and give the same bits on every instruction set and place in
// the vector; f64 uses libm, CUDA its own. Errors in ulp of f32: pow 1, exp, exp2, log, log2,
// log10, log1p, expm1, sin and cos 2, tanh and erf 5. What the polynomials do not cover
// (`rare_angle`, `rare_power`) is a few arguments that the caller gives to libm instead;
// `rare_logarithm`, to the whole log.
#pragma once

#include "tessera/core/api.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define TESSERA_MATH __host__ __device__ __forceinline__
#else
#define TESSERA_MATH TESSERA_INLINE
#endif

namespace tessera::vmath {

TESSERA_MATH float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TESSERA_MATH double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

TESSERA_MATH double exp(double x) { return ::exp(x); }
TESSERA_MATH double log(double x) { return ::log(x); }
TESSERA_MATH double log_of_normal(double x) { return ::log(x); }
TESSERA_MATH double exp2(double x) { return ::exp2(x); }
TESSERA_MATH double log2(double x) { return ::log2(x); }
TESSERA_MATH double log2_of_normal(double x) { return ::log2(x); }
TESSERA_MATH double log10(double x) { return ::log10(x); }
TESSERA_MATH double log10_of_normal(double x) { return ::log10(x); }
TESSERA_MATH double tanh(double x) { return ::tanh(x); }
TESSERA_MATH double log1p(double x) { return ::log1p(x); }
TESSERA_MATH double expm1(double x) { return ::expm1(x); }
TESSERA_MATH double sin(double x) { return ::sin(x); }
TESSERA_MATH double cos(double x) { return ::cos(x); }
TESSERA_MATH double erf(double x) { return ::erf(x); }
TESSERA_MATH double pow(double x, double y) { return ::pow(x, y); }

/// x within [low, high], where low < 0 < high, by its bits: comparisons of floats, which must see
/// to NaN, take seven instructions where these take two. NaN may become one of the ends.
TESSERA_MATH float within(float x, float low, float high) {
  const int32_t bits = std::bit_cast<int32_t>(x), top = std::bit_cast<int32_t>(high);
  // As signed numbers the negative floats are below all others, as unsigned ones above.
  const uint32_t below = static_cast<uint32_t>(bits > top ? top : bits),
                 bottom = std::bit_cast<uint32_t>(low);
  return std::bit_cast<float>(below > bottom ? bottom : below);
}
TESSERA_MATH double within(double x, double low, double high) {
  return x < low ? low : (x > high ? high : x);
}

#ifdef __CUDA_ARCH__
TESSERA_MATH float exp(float x) { return ::expf(x); }
TESSERA_MATH float log(float x) { return ::logf(x); }
TESSERA_MATH float log_of_normal(float x) { return ::logf(x); }
TESSERA_MATH float exp2(float x) { return ::exp2f(x); }
TESSERA_MATH float log2(float x) { return ::log2f(x); }
TESSERA_MATH float log2_of_normal(float x) { return ::log2f(x); }
TESSERA_MATH float log10(float x) { return ::log10f(x); }
TESSERA_MATH float log10_of_normal(float x) { return ::log10f(x); }
TESSERA_MATH float tanh(float x) { return ::tanhf(x); }
TESSERA_MATH float log1p(float x) { return ::log1pf(x); }
TESSERA_MATH float expm1(float x) { return ::expm1f(x); }
TESSERA_MATH float sin(float x) { return ::sinf(x); }
TESSERA_MATH float cos(float x) { return ::cosf(x); }
TESSERA_MATH float erf(float x) { return ::erff(x); }
TESSERA_MATH float pow(float x, float y) { return ::powf(x, y); }
#else

/// 2^n e^r for |r| up to log(2) / 2, where the low bits of `shifted`, 1.5 * 2^23 + 254 + n, hold
/// n and the biases of two exponents.
TESSERA_MATH float exp_from_parts(float r, float shifted) {
  float p = fma(r, 1.9875691500e-4f, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  p = fma(p, r * r, r) + 1.0f;
  // Two factors, 2^(n/2) each, reach subnormals and infinity without overflow on the way. Of
  // 0x4b400000 (no n) and of its half the shift by 23 leaves none.
  const int32_t bits = std::bit_cast<int32_t>(shifted), half = bits >> 1;
  return p * std::bit_cast<float>(half << 23) * std::bit_cast<float>((bits - half) << 23);
}

TESSERA_MATH float exp(float x) {
  // Beyond these the result is 0 or infinity; the clamp keeps the exponent arithmetic in range.
  const float c = within(x, -104.0f, 89.0f);
  // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number without a rounding
  // instruction; 254 more are the biases of two exponents.
  const float shifted = fma(c, 1.44269504f, 12583166.0f);
  const float n = shifted - 12583166.0f;
  float r = fma(n, -0.693359375f, c);
  r = fma(n, 2.12194440e-4f, r);
  const float y = exp_from_parts(r, shifted);
  return x != x ? x : y;
}

TESSERA_MATH float exp2(float x) {
  const float c = within(x, -151.0f, 129.0f);
  const float shifted = c + 12583166.0f;
  const float y = exp_from_parts((c - (shifted - 12583166.0f)) * 0.693147182f, shifted);
  return x != x ? x : y;
}

/// A positive number, neither subnormal nor infinite, as 2^k (1 + f) with 1 + f in [sqrt(1/2),
/// sqrt(2)).
struct Binary32 {
  int32_t exponent;  // k, where a float has its exponent
  float f;
  TESSERA_MATH explicit Binary32(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x) - 0x3f3504f3u;
    exponent = static_cast<int32_t>(bits & 0xff800000u);
    f = std::bit_cast<float>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  }
  [[nodiscard]] TESSERA_MATH float k() const { return static_cast<float>(exponent >> 23); }
  /// Its logarithm, where k may be another.
  [[nodiscard]] TESSERA_MATH float log(float whole) const {
    // log(1 + f) = f + f^2 (f P(f) - 1/2), P in two halves, since one chain waits for itself.
    const float z = f * f;
    const float odd = fma(fma(-0.142674863f, z, -0.16577585f), z, -0.250013381f);
    const float even =
        fma(fma(fma(0.0870043039f, z, 0.149147689f), z, 0.199630633f), z, 0.333339095f);
    const float tail = fma(z, fma(fma(f, odd, even), f, -0.5f), whole * 9.05800061e-06f);
    return fma(whole, 0.69313812f, f + tail);
  }
  [[nodiscard]] TESSERA_MATH float log2(float whole) const {
    return fma(log(0.0f), 1.44269504f, whole);
  }
  [[nodiscard]] TESSERA_MATH float log10(float whole) const {
    // log10(2) in two parts: a product of whole with the first is exact.
    const float tail = fma(whole, 2.48745664e-4f, log(0.0f) * 0.434294482f);
    return fma(whole, 0.30078125f, tail);
  }
};
TESSERA_MATH float log_at_edge(float x) {  // of zero, negative numbers, infinity and NaN
  const float y = x == 0.0f ? -std::numeric_limits<float>::infinity() : x;
  return x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
}
TESSERA_MATH bool positive_and_finite(float x) {
  return (x > 0.0f) & (x < std::numeric_limits<float>::infinity());
}

/// log, log2 or log10 of a positive number that is neither subnormal nor infinite.
template <auto kLog> TESSERA_MATH float logarithm_of_normal(float x) {
  const Binary32 parts(x);
  return (parts.*kLog)(parts.k());
}
/// The same of any number; the same bits.
template <auto kLog> TESSERA_MATH float logarithm(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const Binary32 parts(x * (subnormal ? 8388608.0f : 1.0f));
  const float y = (parts.*kLog)(parts.k() - (subnormal ? 23.0f : 0.0f));
  return positive_and_finite(x) ? y : log_at_edge(x);
}
TESSERA_MATH float log_of_normal(float x) { return logarithm_of_normal<&Binary32::log>(x); }
TESSERA_MATH float log(float x) { return logarithm<&Binary32::log>(x); }
TESSERA_MATH float log2_of_normal(float x) { return logarithm_of_normal<&Binary32::log2>(x); }
TESSERA_MATH float log2(float x) { return logarithm<&Binary32::log2>(x); }
TESSERA_MATH float log10_of_normal(float x) { return logarithm_of_normal<&Binary32::log10>(x); }
TESSERA_MATH float log10(float x) { return logarithm<&Binary32::log10>(x); }

TESSERA_MATH float tanh(float x) {
  // A quotient of polynomials up to 9.4, where it has become 1, rounded or cut.
  const float c = within(x, -9.4f, 9.4f), z = c * c;
  float p = fma(z, 1.331898644e-8f, 2.058341303e-5f);
  p = fma(p, z, 3.494030103e-3f);
  p = fma(p, z, 1.337971407e-1f);
  p = fma(p, z, 9.99999979e-1f);
  float q = fma(z, 7.761982564e-7f, 3.283085775e-4f);
  q = fma(q, z, 2.587105589e-2f);
  q = fma(q, z, 4.67130293e-1f);
  q = fma(q, z, 1.0f);
  const float y = within(c * p / q, -1.0f, 1.0f);
  return x != x ? x : y;
}

TESSERA_MATH float log1p(float x) {
  // log(u) of the rounded u = 1 + x, and the first-order effect of what the rounding dropped, over
  // u: that is small, so that 2^-k (1 - f) will do for 1 / u, which is exact where log(u) is small.
  const float u = 1.0f + x, dropped = x - (u - 1.0f);
  const Binary32 parts(u);
  // At most 2^126, whose inverse is a float; what no number gave wraps.
  const int32_t k = parts.exponent < 0x3f000000 ? parts.exponent : 0x3f000000;
  const uint32_t inverse_bits = 0x3f800000u - static_cast<uint32_t>(k);
  const float inverse = std::bit_cast<float>(inverse_bits) * (1.0f - parts.f);
  const float y = fma(dropped, inverse, parts.log(parts.k()));
  const float kept = u == 1.0f ? x : y;
  return positive_and_finite(u) ? kept : log_at_edge(u);
}

TESSERA_MATH float expm1(float x) {
  const float c = within(x, -0.5f, 0.5f);
  float p = fma(c, 1.998390369e-4f, 1.398149854e-3f);
  p = fma(p, c, 8.333111169e-3f);
  p = fma(p, c, 4.166586507e-2f);
  p = fma(p, c, 1.666666762e-1f);
  const float small = fma(fma(p, c, 0.5f) * c, c, c);
  const float a = x < 0.0f ? -x : x, kept = x == 0.0f ? x : small;  // keeps the sign of zero
  return a <= 0.5f ? kept : exp(x) - 1.0f;
}

/// sin (odd = 0) or cos (odd = 1) for |x| below 65536.
TESSERA_MATH float quarter_wave(float x, int32_t odd) {
  // x - n pi/2 by three parts of pi/2; the first difference is exact.
  const float shifted = fma(x, 0.636619772f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = fma(n, -1.57079637f, x);
  r = fma(n, 4.37113883e-8f, r);
  r = fma(n, 1.71512451e-15f, r);
  const float z = r * r;
  float s = fma(z, -1.951665603e-4f, 8.332173545e-3f);
  s = fma(s, z, -1.666665487e-1f);
  s = fma(s * z, r, r);
  float c = fma(z, 2.443772967e-5f, -1.388736145e-3f);
  c = fma(c, z, 4.166664675e-2f);
  c = fma(c * z, z, fma(z, -0.5f, 1.0f));
  const int32_t quarter = std::bit_cast<int32_t>(shifted) + odd;  // its low bits hold n
  const float y = quarter & 1 ? c : s;
  return quarter & 2 ? -y : y;
}
TESSERA_MATH float sin(float x) {
  return x == 0.0f ? x : quarter_wave(x, 0);  // keeps the sign of zero
}
TESSERA_MATH float cos(float x) { return quarter_wave(x, 1); }

/// erf(x) / x for |x| up to 3.92, beyond which erf has become 1, by t = 2 (x / 3.92)^2 - 1: in
/// [-1, 1] no term outgrows the sum. In pairs, since one chain of 14 terms waits for itself.
TESSERA_MATH float erf_slope(float t) {
  const float t2 = t * t, t4 = t2 * t2;
  const float a = fma(fma(t, -0.10915482f, 0.134082735f), t2, fma(t, -0.180109248f, 0.360736817f));
  const float b =
      fma(fma(t, -0.0420870446f, 0.0582005717f), t2, fma(t, -0.0742939413f, 0.090627946f));
  const float c =
      fma(fma(t, -0.00310304668f, 0.0133258151f), t2, fma(t, -0.0233908631f, 0.0302796774f));
  const float d = fma(t2, 0.00190461706f, fma(t, -0.00449951552f, 0.00258235866f));
  return fma(fma(d, t4, c), t4 * t4, fma(b, t4, a));
}
TESSERA_MATH float erf(float x) {
  const float c = within(x, -3.92f, 3.92f);
  const float y = within(c * erf_slope(fma(c * c, 0.130154103f, -1.0f)), -1.0f, 1.0f);
  return x != x ? x : y;
}

/// x^y for finite x other than zero and finite y, through f64: log2, a product, exp2.
TESSERA_MATH float pow(float x, float y) {
  const double a = static_cast<double>(x < 0.0f ? -x : x), exponent = static_cast<double>(y);
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd, kBias = uint64_t{1023} << 52;  // sqrt(1/2)
  // Unsigned, since infinities and NaN pass through here before they are mended: those wrap.
  const uint64_t bits = std::bit_cast<uint64_t>(a), biased = (bits - kRootHalf + kBias) >> 52;
  // In [sqrt(1/2), sqrt(2)); a = m 2^(biased - 1023).
  const double m = std::bit_cast<double>(bits - (biased << 52) + kBias);
  const double whole =
      std::bit_cast<double>(biased | 0x4330000000000000ull) - (4503599627370496.0 + 1023.0);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = fma(z, 0.28290241295219254, 0.3199055594829244);
  p = fma(p, z, 0.4122092551992203);
  p = fma(p, z, 0.5770779423429949);
  p = fma(p, z, 0.9617966941133876);
  p = fma(p, z, 2.88539008177785);
  double t = exponent * fma(s, p, whole);
  t = t < -160.0 ? -160.0 : (t > 140.0 ? 140.0 : t);
  const double shifted = t + 6755399441055744.0;  // 1.5 * 2^52: rounds to a whole number
  const double f = t - (shifted - 6755399441055744.0);
  double q = fma(f, 1.3175892815535386e-06, 1.53097379168107e-05);
  q = fma(q, f, 0.00015403851579864021);
  q = fma(q, f, 0.0013333452060401724);
  q = fma(q, f, 0.009618128543129156);
  q = fma(q, f, 0.055504109393438826);
  q = fma(q, f, 0.2402265069887895);
  q = fma(q, f, 0.693147180546513);
  q = fma(q, f, 0.9999999999997625);
  const uint64_t scaled = std::bit_cast<uint64_t>(q) + (std::bit_cast<uint64_t>(shifted) << 52);
  const float power = static_cast<float>(std::bit_cast<double>(scaled));
  // A negative x wants a whole y (else the bits of NaN are set): an odd one keeps the sign. Beyond
  // 2^23 every y is whole, from 2^24 on even.
  const float size = y < 0.0f ? -y : y, c = size < 16777216.0f ? size : 16777216.0f;
  const float half = 0.5f * c;
  const uint32_t odd = (half + 8388608.0f) - 8388608.0f != half;
  const uint32_t broken = ((c + 8388608.0f) - 8388608.0f != c) & (c < 8388608.0f);
  const uint32_t negative = std::bit_cast<uint32_t>(x) >> 31;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(power) ^ (negative & odd) << 31) |
                              ((0u - (negative & broken)) & 0x7fc00000u));
}
#endif

/// Whether sin and cos must be asked of libm.
TESSERA_MATH bool rare_angle(double) { return false; }
TESSERA_MATH bool rare_angle(float x) { return !(x < 65536.0f && x > -65536.0f); }
/// Whether log_of_normal is not log (nor log2_of_normal log2, log10_of_normal log10).
TESSERA_MATH bool rare_logarithm(double) { return false; }
TESSERA_MATH bool rare_logarithm(float x) {
  return std::bit_cast<uint32_t>(x) - 0x00800000u >= 0x7f000000u;
}
/// Whether pow must be: zeros, infinities, NaN.
TESSERA_MATH bool rare_power(double, double) { return false; }
TESSERA_MATH bool rare_power(float x, float y) {
  // x - x is zero of finite numbers only.
  return (x == 0.0f) | (x - x != 0.0f) | (y - y != 0.0f);
}

template <class T> TESSERA_MATH T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }

/// exp(-x^2 / 2) for |x| up to 1e18. What rounding drops of the square would cost the tail its
/// digits, so the result takes it in.
template <class T> TESSERA_MATH T bell(T x) {
  const T square = x * x, dropped = fma(x, x, -square), y = exp(T(-0.5) * square);
  return fma(y, T(-0.5) * dropped, y);
}

/// The normal distribution function of a number x, given bell(x): its relative error is 1e-6 down
/// to -12. Of NaN it is no NaN: who multiplies by x has that for nothing.
TESSERA_MATH double normal_cdf(double x, double) { return 0.5 * ::erfc(x * -0.70710678118654752); }
TESSERA_MATH float normal_cdf(float x, float e) {
  // The tail is the bell times a function that falls slowly from 1/2, by t = (a - 3) / (a + 3). At
  // 14.5 the bell has become 0.
  const uint32_t size = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
  const float a = std::bit_cast<float>(size < 0x41680000u ? size : 0x41680000u);
  const float t = (a - 3.0f) / (a + 3.0f), t2 = t * t, t4 = t2 * t2;
  const float low =
      fma(fma(t, -0.0462132618f, 0.123225041f), t2, fma(t, -0.206402615f, 0.121513948f));
  const float high =
      fma(fma(t, -0.000339012069f, -0.000983288744f), t2, fma(t, 0.00290438719f, 0.00613194238f));
  const float tail = e * fma(fma(t, 5.31612059e-05f, 0.000115014132f), t4 * t4, fma(high, t4, low));
  return x < 0.0f ? tail : 1.0f - tail;
}

}  // namespace tessera::vmath

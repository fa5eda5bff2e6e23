// SPDX-License-Identifier: Apache-2.0
// Elementary functions for kernel loops. The f32 ones are branch-free polynomials of explicit fma,
// so that loops over them vectorise and give the same bits on every instruction set and place in
// the vector; f64 uses libm, CUDA its own. Errors: exp and log within 2 ulp, tanh within 4 ulp of
// f32.
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
TESSERA_MATH double tanh(double x) { return ::tanh(x); }

#ifdef __CUDA_ARCH__
TESSERA_MATH float exp(float x) { return ::expf(x); }
TESSERA_MATH float log(float x) { return ::logf(x); }
TESSERA_MATH float tanh(float x) { return ::tanhf(x); }
#else

/// 2^k for k in [-126, 127].
TESSERA_MATH float power_of_two(int32_t k) { return std::bit_cast<float>((k + 127) << 23); }

TESSERA_MATH float exp(float x) {
  // Beyond these the result is 0 or infinity; the clamp keeps the exponent arithmetic in range. NaN
  // passes through.
  const float c = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number without a rounding
  // instruction.
  const float shifted = fma(c, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = fma(n, -0.693359375f, c);
  r = fma(n, 2.12194440e-4f, r);
  float p = fma(r, 1.9875691500e-4f, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  p = fma(p, r * r, r) + 1.0f;
  // The low bits of `shifted` hold n; two factors reach subnormals and infinity without overflow on
  // the way.
  const int32_t k = std::bit_cast<int32_t>(shifted) - 0x4b400000;
  const int32_t half = k >> 1;
  const float y = p * power_of_two(half) * power_of_two(k - half);
  return x != x ? x : y;
}

TESSERA_MATH float log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 8388608.0f : x;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled) - 0x3f3504f3u;
  const float k = static_cast<float>((static_cast<int32_t>(bits) >> 23) - (subnormal ? 23 : 0));
  const float m =
      std::bit_cast<float>((bits & 0x7fffffu) + 0x3f3504f3u);  // in [sqrt(1/2), sqrt(2))
  const float f = m - 1.0f, s = f / (2.0f + f), z = s * s;
  float p = fma(z, 0.1531383769f, 0.1818357216f);
  p = fma(p, z, 0.2222219843f);
  p = fma(p, z, 0.2857142874f);
  p = fma(p, z, 0.3999999940f);
  p = fma(p, z, 0.6666666667f);
  const float half_square = 0.5f * f * f;
  // log(1+f) = f - (f^2/2 - s (f^2/2 + R)), R = z p
  const float tail = fma(s, fma(p, z, half_square), k * 9.05800061e-06f) - half_square;
  float y = fma(k, 0.69313812f, f + tail);
  y = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
  y = x == 0.0f ? -std::numeric_limits<float>::infinity() : y;
  return (x != x || x == std::numeric_limits<float>::infinity()) ? x : y;
}

TESSERA_MATH float tanh(float x) {
  const float a = x < 0 ? -x : x, z = x * x;
  float p = fma(z, -5.70498872745e-3f, 2.06390887954e-2f);
  p = fma(p, z, -5.37397155531e-2f);
  p = fma(p, z, 1.33314422036e-1f);
  p = fma(p, z, -3.33332819422e-1f);
  const float small = fma(p * z, x, x);
  const float e = exp(2.0f * (a > 10.0f ? 10.0f : a));
  const float big = 1.0f - 2.0f / (e + 1.0f);
  return a < 0.625f ? small : (x != x ? x : (x < 0 ? -big : big));
}
#endif

template <class T> TESSERA_MATH T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
template <class T> TESSERA_MATH T erf(T x) { return ::erf(x); }

}  // namespace tessera::vmath

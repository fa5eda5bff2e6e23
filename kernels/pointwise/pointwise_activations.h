// SPDX-License-Identifier: Apache-2.0
// More activations of the pointwise family, with their gradients fused. None loses digits or
// overflows far out, neither in its value nor in its gradient.
#pragma once

#include "tessera/kernels/pointwise/pointwise_family.h"

namespace tessera {
namespace op {

/// x above 0, slope x below. The gradient at 0 is slope.
struct LeakyRelu : Fused<LeakyRelu> {
  double slope = 0.01;
  static constexpr std::string_view name = "leaky_relu", backward_name = "leaky_relu_backward";
  static constexpr double kKnown[][2] = {{-2, -0.02}, {-2, -0.6}, {3, 3}};
  static constexpr double kKnownBackward[][3] = {{-2, 3, 0.03}, {-2, 3, 0.9}, {1.5, 2, 2}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr auto kFirst = kSmoothPoints;
  auto attributes() const { return std::tie(slope); }
  template <class T> TESSERA_MATH T f(T x) const {
    return x > T(0) ? x : x * static_cast<T>(slope);
  }
  template <class T> TESSERA_MATH T pull(T x, T dy) const {
    return x > T(0) ? dy : dy * static_cast<T>(slope);
  }
  static Tensor bend(const Tensor&, const Tensor&, const Tensor&) { return {}; }
};

/// x above 0, alpha (exp(x) - 1) below.
struct Elu : Fused<Elu> {
  double alpha = 1;
  static constexpr std::string_view name = "elu", backward_name = "elu_backward";
  static constexpr double kKnown[][2] = {
      {-1, -0.6321205588285577}, {-1, -0.3792723352971346}, {2, 2}};
  static constexpr double kKnownBackward[][3] = {
      {-1, 2, 0.7357588823428847}, {-1, 2, 0.4414553294057308}, {2, 3, 3}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  static constexpr auto kFirst = kSmoothPoints;
  auto attributes() const { return std::tie(alpha); }
  template <class T> TESSERA_MATH T f(T x) const {
    return x > T(0) ? x : static_cast<T>(alpha) * vmath::expm1(x);
  }
  template <class T> TESSERA_MATH T pull(T x, T dy) const {
    return x > T(0) ? dy : dy * (static_cast<T>(alpha) * vmath::exp(x));
  }
  Tensor bend(const Tensor& x, const Tensor& dy, const Tensor& g) const;
};

/// x tanh(log(1 + exp(x))). With e = exp(x) and n = e (e + 2) the tanh is n / (n + 2).
struct Mish : Fused<Mish> {
  static constexpr std::string_view name = "mish", backward_name = "mish_backward";
  static constexpr double kKnown[][2] = {{1, 0.8650983882673103}, {-1, -0.30340146137410895}};
  static constexpr double kKnownBackward[][3] = {{0.5, 2, 1.7728487507154544},
                                                 {-1, 1, 0.059216755877395}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  /// Above, the tanh is 1 in every dtype and e^2 would overflow; below, it is 0.
  template <class T> TESSERA_MATH static T within(T x) {
    return vmath::within(x, sizeof(T) == 8 ? T(-750) : T(-104), T(40));
  }
  template <class T> TESSERA_MATH static T gate(T e) {
    const T n = e * (e + T(2));
    return n / (n + T(2));
  }
  template <class T> TESSERA_MATH static T f(T x) {
    const T c = within(x), y = gate(vmath::exp(c)) * (x < c ? c : x);  // no infinity times 0
    return x != x ? x : y;
  }
  template <class T> TESSERA_MATH static T pull(T x, T dy) {
    const T c = within(x), e = vmath::exp(c), w = gate(e), s = e / (T(1) + e);
    return x != x ? x : dy * (w + c * s * (T(1) - w * w));
  }
  static Tensor bend(const Tensor& x, const Tensor& dy, const Tensor& g);
};

/// log(1 / (1 + exp(-x))).
struct LogSigmoid : Fused<LogSigmoid> {
  static constexpr std::string_view name = "logsigmoid", backward_name = "logsigmoid_backward";
  static constexpr double kKnown[][2] = {{1, -0.31326168751822286}, {-2, -2.1269280110429727}};
  static constexpr double kKnownBackward[][3] = {{1, 2, 0.5378828427399902},
                                                 {-2, 1, 0.8807970779778823}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr bool kLong = true;
  template <class T> TESSERA_MATH static T f(T x) {
    return (x > T(0) ? T(0) : x) - vmath::log1p(vmath::exp(-std::abs(x)));
  }
  template <class T> TESSERA_MATH static T pull(T x, T dy) { return dy / (T(1) + vmath::exp(x)); }
  static Tensor bend(const Tensor& x, const Tensor& dy, const Tensor& g);
};

/// x within [low, high]; unlike clamp's the gradient is 0 at the bounds.
struct HardTanh : Fused<HardTanh> {
  double low = -1, high = 1;
  static constexpr std::string_view name = "hardtanh", backward_name = "hardtanh_backward";
  static constexpr double kKnown[][2] = {{-3, -1}, {-3, 0}, {0.5, 0.5}, {7, 6}};
  static constexpr double kKnownBackward[][3] = {{1, 2, 0}, {3, 2, 2}, {0.5, 3, 3}, {6, 1, 0}};
  static constexpr Saves saves = Saves::input(0);
  static constexpr int kMonotone = 1;
  static constexpr auto kFirst = kSmoothPoints;
  auto attributes() const { return std::tie(low, high); }
  template <class T> TESSERA_MATH T f(T x) const {
    const T y = x < static_cast<T>(low) ? static_cast<T>(low) : x;
    return y > static_cast<T>(high) ? static_cast<T>(high) : y;
  }
  template <class T> TESSERA_MATH T pull(T x, T dy) const {
    return (x > static_cast<T>(low)) & (x < static_cast<T>(high)) ? dy : T(0);
  }
  static Tensor bend(const Tensor&, const Tensor&, const Tensor&) { return {}; }
};

using pointwise_activations_ops =
    OpList<LeakyRelu, Backward<LeakyRelu>, Elu, Backward<Elu>, Mish, Backward<Mish>, LogSigmoid,
           Backward<LogSigmoid>, HardTanh, Backward<HardTanh>>;

}  // namespace op

/// x where x > 0, else negative_slope * x.
inline Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01) {
  return call(op::LeakyRelu{{}, negative_slope}, {x});
}
/// x where x > 0, else alpha * (exp(x) - 1).
inline Tensor elu(const Tensor& x, double alpha = 1) { return call(op::Elu{{}, alpha}, {x}); }
/// x * tanh(softplus(x)).
inline Tensor mish(const Tensor& x) { return call(op::Mish{}, {x}); }
/// log(sigmoid(x)), without the loss of digits.
inline Tensor logsigmoid(const Tensor& x) { return call(op::LogSigmoid{}, {x}); }
/// x within [min, max]; the gradient is 0 at the bounds, where clamp's is 1.
inline Tensor hardtanh(const Tensor& x, double min = -1, double max = 1) {
  return call(op::HardTanh{{}, min, max}, {x});
}
/// x within [0, 6].
inline Tensor relu6(const Tensor& x) { return hardtanh(x, 0, 6); }

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Losses of pairs of elements, with their gradients fused: (input, target) -> the loss of each.
// Their functions, with means and sums, are in cross_entropy/losses.h.
#pragma once

#include "tessera/kernels/pointwise/pointwise_arithmetic.h"

namespace tessera {
namespace op {

/// dx = Of::slope(x, target) dy. Its own gradient by x is Of::bend, by the target
/// Of::bend_target, both written with ops and given dy times the cotangent.
template <class Of> struct LossBackward : Pointwise<LossBackward<Of>, 3> {
  Of of;
  static constexpr std::string_view name = Of::backward_name;
  static constexpr Saves saves = Saves::inputs();
  static constexpr int kLinear = 4;
  static constexpr bool kLong = Of::kLong;
  static constexpr auto kFirst = Of::kFirst;
  static constexpr auto kSecond = Of::kSecond;
  static constexpr auto& kKnown = Of::kKnownBackward;
  auto attributes() const {
    if constexpr (requires { of.attributes(); }) return of.attributes();
    else return std::tuple<>();
  }
  ShardingRule sharding(Metas in) const {
    ShardingRule r = Pointwise<LossBackward, 3>::sharding(in);
    if constexpr (requires { of.slope_is_linear_in_target(); }) {
      if (of.slope_is_linear_in_target()) r.linear({1});
    }
    return r;
  }
  template <class T> TESSERA_MATH T f(T x, T target, T dy) const {
    return of.slope(x, target) * dy;
  }
  Grads vjp(const Saved& s, const Grads& g, Needs needs) const {
    const Tensor &x = s.input(0), &target = s.input(1), &dy = s.input(2);
    Grads out(3);
    const auto to = [&](const Tensor& t, size_t i) {
      return t.defined() ? sum_to(t, s.input_meta(i).shape) : t;
    };
    const Tensor weight = needs[0] || needs[1] ? mul(dy, g[0]) : Tensor();
    if (needs[0]) out[0] = to(of.bend(x, target, weight), 0);
    if (needs[1]) out[1] = to(of.bend_target(x, target, weight), 1);
    if (needs[2]) out[2] = to(call(*this, {x, target, g[0]}), 2);
    return out;
  }
};

/// A loss of each pair of elements: f(x, target), slope(x, target) by x, and by_target in ops.
template <class Op> struct Loss : Pointwise<Op, 2> {
  static constexpr Saves saves = Saves::inputs();
  static constexpr bool kOfDifference = false;  // by the target it is the negative of that by x
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const {
    const Op& self = static_cast<const Op&>(*this);
    Grads g(2);
    Tensor by_x;
    if (needs[0] || Op::kOfDifference)
      by_x = call(LossBackward<Op>{{}, self}, {s.input(0), s.input(1), dy[0]});
    if (needs[0]) g[0] = sum_to(by_x, s.input_meta(0).shape);
    if (needs[1]) {
      const Shape& shape = s.input_meta(1).shape;
      if constexpr (Op::kOfDifference) g[1] = affine(sum_to(by_x, shape), -1, 0);
      else g[1] = sum_to(self.by_target(s, dy[0]), shape);
    }
    return g;
  }
};
/// A loss of x - target.
template <class Op> struct DifferenceLoss : Loss<Op> {
  static constexpr bool kOfDifference = true;
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr auto kSecond = Maximum::kSecond;  // no difference is near 0
  Tensor bend_target(const Tensor& x, const Tensor& target, const Tensor& weight) const {
    const Tensor by_x = static_cast<const Op&>(*this).bend(x, target, weight);
    return by_x.defined() ? affine(by_x, -1, 0) : by_x;
  }
};

struct MseLoss : DifferenceLoss<MseLoss> {
  static constexpr std::string_view name = "mse_loss", backward_name = "mse_loss_backward";
  static constexpr double kKnown[][3] = {{3, 1, 4}, {-0.5, 1, 2.25}};
  static constexpr double kKnownBackward[][4] = {{3, 1, 2, 8}, {-0.5, 1, 1, -3}};
  template <class T> TESSERA_MATH static T f(T x, T target) { return (x - target) * (x - target); }
  template <class T> TESSERA_MATH static T slope(T x, T target) { return T(2) * (x - target); }
  static Tensor bend(const Tensor&, const Tensor&, const Tensor& weight) {
    return affine(weight, 2, 0);
  }
};

struct L1Loss : DifferenceLoss<L1Loss> {
  static constexpr std::string_view name = "l1_loss", backward_name = "l1_loss_backward";
  static constexpr double kKnown[][3] = {{3, 1, 2}, {-0.5, 1, 1.5}};
  static constexpr double kKnownBackward[][4] = {{3, 1, 2, 2}, {-0.5, 1, 3, -3}, {1, 1, 2, 0}};
  template <class T> TESSERA_MATH static T f(T x, T target) { return std::abs(x - target); }
  template <class T> TESSERA_MATH static T slope(T x, T target) {
    return x > target ? T(1) : (x < target ? T(-1) : x - target);  // 0, or NaN
  }
  static Tensor bend(const Tensor&, const Tensor&, const Tensor&) { return {}; }
};

/// d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2); over delta where `unit` (smooth_l1).
struct HuberLoss : DifferenceLoss<HuberLoss> {
  double delta = 1;
  bool unit = false;
  static constexpr std::string_view name = "huber_loss", backward_name = "huber_loss_backward";
  // In turn of a delta of 0.875 and, as a unit, of 0.72.
  static constexpr double kKnown[][3] = {
      {0.5, 0, 0.125}, {0.4375, 0, 0.13292100694444445}, {3, 1, 1.3671875}, {-1, 1, 1.64}};
  static constexpr double kKnownBackward[][4] = {
      {0.5, 0, 2, 1}, {0.4375, 0, 2, 1.215277777777778}, {3, 1, 2, 1.75}, {-1, 1, 3, -3}};
  auto attributes() const { return std::tie(delta, unit); }
  MetaList meta(Metas in) const;
  template <class T> TESSERA_MATH T f(T x, T target) const {
    const T size = std::abs(x - target), d = static_cast<T>(delta);
    return (size <= d ? T(0.5) * size * size : d * (size - T(0.5) * d)) / (unit ? d : T(1));
  }
  template <class T> TESSERA_MATH T slope(T x, T target) const {
    const T d = static_cast<T>(delta), gap = x - target;
    return (gap > d ? d : (gap < -d ? -d : gap)) / (unit ? d : T(1));
  }
  Tensor bend(const Tensor& x, const Tensor& target, const Tensor& weight) const;
};

/// -(target log s + (1 - target) log(1 - s)) with s = sigmoid(x), stable for any x.
struct BceWithLogits : Loss<BceWithLogits> {
  static constexpr std::string_view name = "bce_with_logits",
                                    backward_name = "bce_with_logits_backward";
  static constexpr bool kLong = true;
  static constexpr double kKnown[][3] = {{1, 0.25, 1.0632616875182228},
                                         {-2, 1, 2.1269280110429727}};
  static constexpr double kKnownBackward[][4] = {{1, 0.25, 2, 0.9621171572600098},
                                                 {-2, 1, 1, -0.8807970779778823}};
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr std::array<double, 7> kSecond{0.1, 0.9, 0.35, 0, 0.6, 1, 0.5};
  template <class T> TESSERA_MATH static T f(T x, T target) {
    return (x > T(0) ? x : T(0)) - x * target + vmath::log1p(vmath::exp(-std::abs(x)));
  }
  template <class T> TESSERA_MATH static T slope(T x, T target) {
    return vmath::sigmoid(x) - target;
  }
  static Tensor by_target(const Saved& s, const Tensor& dy) {
    return affine(mul(s.input(0), dy), -1, 0);
  }
  static Tensor bend(const Tensor& x, const Tensor& target, const Tensor& weight);
  static Tensor bend_target(const Tensor&, const Tensor&, const Tensor& weight) {
    return affine(weight, -1, 0);
  }
};

/// target (log(target) - x), 0 where the target is; exp(target) (target - x) of a target that is a
/// logarithm.
struct KlDiv : Loss<KlDiv> {
  bool log_target = false;
  static constexpr std::string_view name = "kl_div", backward_name = "kl_div_backward";
  static constexpr bool kLong = true;
  static constexpr double kKnown[][3] = {
      {-1, 0.5, 0.15342640972002736}, {-1, 0.5, 2.473081906050192}, {-3, 0, 0}};
  static constexpr double kKnownBackward[][4] = {{-1, 0.5, 2, -1},
                                                 {-1, 0.5, 2, -3.2974425414002564}};
  static constexpr auto kFirst = kSmoothPoints;
  static constexpr std::array<double, 7> kSecond{0.1, 0.9, 0.35, 0.25, 0.6, 0.75, 0.5};
  auto attributes() const { return std::tie(log_target); }
  template <class T> TESSERA_MATH T f(T x, T target) const {
    if (log_target) return vmath::exp(target) * (target - x);
    return target == T(0) ? T(0) : target * (vmath::log(target) - x);
  }
  [[nodiscard]] bool slope_is_linear_in_target() const { return !log_target; }
  template <class T> TESSERA_MATH T slope(T, T target) const {
    return log_target ? -vmath::exp(target) : -target;
  }
  Tensor by_target(const Saved& s, const Tensor& dy) const;
  static Tensor bend(const Tensor&, const Tensor&, const Tensor&) { return {}; }
  Tensor bend_target(const Tensor& x, const Tensor& target, const Tensor& weight) const;
};

using pointwise_losses_ops = OpList<MseLoss, LossBackward<MseLoss>, L1Loss, LossBackward<L1Loss>,
                                    HuberLoss, LossBackward<HuberLoss>, BceWithLogits,
                                    LossBackward<BceWithLogits>, KlDiv, LossBackward<KlDiv>>;

}  // namespace op
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// What the pointwise family gives an op: meta, sharding, loops, CUDA launch and samples, for a
// name, `f`, what it saves and its gradient in ops. f computes in f32 for narrower floats. A
// gradient that would take more passes than one is fused: `pull`, in an op of its own (Backward).
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/scalar.h"
#include "tessera/kernels/vector_math.h"

#include <array>
#include <cmath>

namespace tessera {

// What gradients are written with.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor affine(const Tensor& x, Scalar scale, Scalar shift);
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor cast(const Tensor& x, DType dtype);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor greater(const Tensor& a, const Tensor& b);
/// Sums `g` over the dims in which `shape` was broadcast to it; `g` itself when the shapes are
/// equal. Defined in the reduce room, which stands on this one: so it is declared here, below all
/// that differentiate a broadcast.
TESSERA_API Tensor sum_to(const Tensor& g, const Shape& shape);

namespace op {

/// What the family's kernels need to know of an op: its input count and dtypes. Its results at a
/// few points, from a source that is not this code, stand in
///   static constexpr double kKnown[][2] = {{1, 2.718281828459045}};   // inputs, then the result
/// and row i is of the attributes Variants<Op>::all()[i % size]; those of Backward<Op>, (saved, dy,
/// dx), in Op::kKnownBackward.
template <class Op, int N> struct Pointwise {
  static constexpr int kInputs = N;
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr bool kBoolOutput = false;  // comparisons
  static constexpr int kBoolInput = -1;       // the input that is a condition
  static constexpr int kLinear = 0;  // bit i: linear in input i alone; kLinearAll: in all jointly
  static constexpr int kLinearAll = 1 << 30;
  static constexpr int kMonotone = 0;   // +1: never falls, -1: never rises (of its one input)
  static constexpr bool kLong = false;  // f has more than a few steps
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  static std::vector<Sample<Op>> samples();
};

template <class Op> struct Unary : Pointwise<Op, 1> {
  Grads vjp(const Saved& s, const Grads& dy, Needs) const {
    return {static_cast<const Op*>(this)->grad(s, dy[0])};
  }
};

// grad_a and grad_b have the output's shape; the family sums them to the operands'.
template <class Op> struct Binary : Pointwise<Op, 2> {
  Grads vjp(const Saved& s, const Grads& dy, Needs needs) const {
    Grads g(2);
    if (needs[0]) g[0] = sum_to(Op::grad_a(s, dy[0]), s.input_meta(0).shape);
    if (needs[1]) g[1] = sum_to(Op::grad_b(s, dy[0]), s.input_meta(1).shape);
    return g;
  }
};

/// The function of Backward for one formula of an op.
template <class Formula> struct Pull {
  Formula of;
  static constexpr bool kSameShape = true;
  template <class T> TESSERA_MATH T f(T saved, T dy) const { return of.pull(saved, dy); }
};

/// (saved, dy) -> dx of one shape, where dx = Of::pull(saved, dy); saved is the input of Of or its
/// output. Named Of::backward_name. Its own gradient is Of::bend, written with ops.
template <class Of> struct Backward : Pointwise<Backward<Of>, 2> {
  Of of;
  static constexpr std::string_view name = Of::backward_name;
  static constexpr Saves saves = Saves::inputs();
  static constexpr int kLinear = 2;
  static constexpr bool kSameShape = true;
  auto attributes() const {
    if constexpr (requires { of.attributes(); }) return of.attributes();
    else return std::tuple<>();
  }
  template <class T> TESSERA_MATH T f(T saved, T dy) const { return of.pull(saved, dy); }
  template <class Run, class Formulas = Of>
  requires requires(const Formulas& o, Run& r) { o.visit(r); }
  void visit(Run&& run) const {
    of.visit([&](const auto& formula) { run(Pull<std::decay_t<decltype(formula)>>{formula}); });
  }
  Grads vjp(const Saved& s, const Grads& g, Needs needs) const {
    Grads out(2);
    if (needs[0]) out[0] = of.bend(s.input(0), s.input(1), g[0]);
    if (needs[1]) out[1] = call(*this, {s.input(0), g[0]});
    return out;
  }
};

/// A unary op whose gradient is Backward of what it saves.
template <class Op> struct Fused : Unary<Op> {
  Tensor grad(const Saved& s, const Tensor& dy) const {
    const Tensor& saved = Op::saves.saves_output(0) ? s.output() : s.input(0);
    return call(Backward<Op>{{}, static_cast<const Op&>(*this)}, {saved, dy});
  }
};

/// Values for samples of ops with steps or kinks at whole numbers and halves: none is near one.
inline constexpr std::array<double, 13> kSmoothPoints{-2.7, 1.3,  -0.8, 0.3, -0.2, 0.6, 1.4,
                                                      1.9,  -1.7, 2.2,  0.9, -1.1, -0.4};

}  // namespace op
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// sgd_: one call steps a list of parameters in one pass over their bytes, with momentum as in
// Sutskever et al. (2013) where asked for. As adamw_: the learning rate, the step number, a
// factor of the gradients and whether to step at all are 0-dim inputs; bf16 is stepped in f32 and
// rounded to the nearest.
#pragma once

#include "tessera/core/op.h"

#include <vector>

namespace tessera {
namespace op {

/// Inputs: lr () f64, skip () bool, grad_factor () f64 (optional), then n parameters and n
/// gradients. Where `skip` is true nothing is written. Each gradient counts times grad_factor,
/// rounded to its dtype.
///   g = gradient (negative where `maximize`) + weight_decay p;  p -= lr g
struct Sgd {
  double weight_decay = 0;
  bool maximize = false;
  static constexpr std::string_view name = "sgd_";
  static constexpr DTypeSet dtypes = dtypes_of(DType::f64, DType::f32, DType::bf16);
  static constexpr NotDifferentiable vjp{"an optimizer step ends the graph"};
  auto attributes() const { return std::tie(weight_decay, maximize); }
  static constexpr size_t first_list = 3;  // the place of the first parameter among the inputs
  static constexpr bool writes(size_t i, size_t n) {
    return i >= first_list && i - first_list < (n - first_list) / 2;
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<Sgd>> samples();
};

/// Inputs: lr () f64, skip () bool, step () f64 counting from 1, grad_factor () f64 (optional),
/// then n parameters, n gradients, n buffers. Where `skip` is true nothing is written. Each
/// gradient counts times grad_factor, rounded to its dtype; g is made of it as in sgd_.
///   b = g in step 1, momentum b + (1 - dampening) g after;  p -= lr b, lr (g + momentum b) where
/// `nesterov`
struct SgdMomentum {
  double momentum = 0.9, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  static constexpr std::string_view name = "sgd_momentum_";
  static constexpr DTypeSet dtypes = dtypes_of(DType::f64, DType::f32, DType::bf16);
  static constexpr NotDifferentiable vjp{"an optimizer step ends the graph"};
  auto attributes() const {
    return std::tie(momentum, dampening, weight_decay, nesterov, maximize);
  }
  static constexpr size_t first_list = 4;
  static constexpr bool writes(size_t i, size_t n) {
    const size_t tensors = (n - first_list) / 3, at = i - first_list;
    return i >= first_list && (at < tensors || at >= 2 * tensors);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<SgdMomentum>> samples();
};

using sgd_ops = OpList<Sgd, SgdMomentum>;

}  // namespace op

struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;  ///< needs momentum > 0 and no dampening
  bool maximize = false;
  /// () bool: where true the step changes nothing, without the host knowing; undefined: false.
  Tensor skip = {};
  /// () f64: what the gradients are multiplied by, to the bits of scale_ before the step, but
  /// without writing them; undefined: 1.
  Tensor grad_factor = {};
};
/// Steps every parameter in place; lists of equal length, tensors of one entry alike in shape.
/// `buffers` hold the momentum and are read from step 2 on; an empty list without momentum.
/// Parameters are f64, f32 or bf16, gradients of the parameter's dtype or f32, buffers f64 where
/// the parameter is, else f32 or bf16.
TESSERA_API void sgd_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
                      const std::vector<Tensor>& buffers, int64_t step, const SgdOptions& options);

}  // namespace tessera

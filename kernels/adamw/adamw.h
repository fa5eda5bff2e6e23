// SPDX-License-Identifier: Apache-2.0
// adamw_ (Loshchilov and Hutter, 2019): one call steps a list of parameters in one pass over their
// bytes. What changes from step to step (learning rate, step number, factor of the gradients,
// whether to step at all) is a 0-dim input, so that plans and graphs can be kept and no value is
// read on the host. Parameters and moments may be bf16, stepped in f32 and rounded to the nearest
// or stochastically (by key, step and global element index).
#pragma once

#include "tessera/core/op.h"
#include "tessera/core/rng.h"

#include <ostream>
#include <vector>

namespace tessera {
namespace op {

/// Random streams, one per tensor of a list; prints as [1,2].
struct Streams {
  std::vector<uint64_t> of;
  bool operator==(const Streams&) const = default;
  [[nodiscard]] auto begin() const { return of.begin(); }
  [[nodiscard]] auto end() const { return of.end(); }
};
TESSERA_API std::ostream& operator<<(std::ostream&, const Streams&);

/// Where a rank's part of a tensor lies in the whole.
struct PiecePlace {
  Shape start, whole;
};

/// Inputs: lr () f64, step () f64 counting from 1, skip () bool, grad_factor () f64 (optional),
/// then n parameters, n gradients, n first and n second moments. Where `skip` is true nothing is
/// written. Each gradient counts times grad_factor, rounded to its dtype. With streams, one per
/// parameter, what is bf16 is rounded stochastically.
struct AdamW {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  uint64_t seed = 0;
  Streams streams = {};
  std::vector<PiecePlace> places = {};  // of pieces, one per parameter; none: wholes
  static constexpr std::string_view name = "adamw_";
  static constexpr DTypeSet dtypes = dtypes_of(DType::f64, DType::f32, DType::bf16);
  static constexpr NotDifferentiable vjp{"an optimizer step ends the graph"};
  auto attributes() const { return std::tie(beta1, beta2, eps, weight_decay, seed, streams); }
  static constexpr size_t first_list = 4;  // the place of the first parameter among the inputs
  static constexpr bool writes(size_t i, size_t n) {
    const size_t tensors = (n - first_list) / 4, at = i - first_list;
    return i >= first_list && (at < tensors || at >= 2 * tensors);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  AdamW local(const Piece& piece) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<AdamW>> samples();
};

using adamw_ops = OpList<AdamW>;

}  // namespace op

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  /// Stochastic rounding of what is stored in bf16: one stream per parameter (`stream_of` its
  /// name); none: to the nearest. The moments of a long run need it in bf16: a step changes the
  /// second one by less than half a unit of its last place.
  uint64_t seed = 0;
  std::vector<uint64_t> streams = {};
  /// () bool: where true the step changes nothing, without the host knowing; undefined: false.
  Tensor skip = {};
  /// () f64: what the gradients are multiplied by, to the bits of scale_ before the step, but
  /// without writing them; undefined: 1.
  Tensor grad_factor = {};
};
/// Steps every parameter in place; lists of equal length, tensors of one entry alike in shape.
/// Parameters are f64, f32 or bf16, gradients of the parameter's dtype or f32; moments are f64
/// where the parameter is, else both f32 or both bf16. Arithmetic is f32 (f64 for f64).
TESSERA_API void adamw_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
                        const std::vector<Tensor>& first, const std::vector<Tensor>& second,
                        int64_t step, const AdamWOptions& options);
/// The same with a learning rate and a step that the parameters' device holds, both () f64, so that
/// a CUDA graph can hold the call; `options.lr` is not read.
TESSERA_API void adamw_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
                        const std::vector<Tensor>& first, const std::vector<Tensor>& second,
                        const Tensor& lr, const Tensor& step, const AdamWOptions& options);

}  // namespace tessera

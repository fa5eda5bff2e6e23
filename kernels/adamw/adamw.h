// SPDX-License-Identifier: Apache-2.0
// adamw_ (Loshchilov and Hutter, 2019): one call steps a list of parameters in one pass over their
// bytes. What changes from step to step (learning rate, step number) is a 0-dim input, so that
// plans and graphs can be kept.
#pragma once

#include "tessera/core/op.h"

namespace tessera {
namespace op {

/// Inputs: lr () f64, step () f64 counting from 1, then n parameters, n gradients, n first and n
/// second moments.
struct AdamW {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  static constexpr std::string_view name = "adamw_";
  static constexpr DTypeSet dtypes = dtypes_of(DType::f64, DType::f32);
  static constexpr NotDifferentiable vjp{"an optimizer step ends the graph"};
  auto attributes() const { return std::tie(beta1, beta2, eps, weight_decay); }
  static constexpr bool writes(size_t i, size_t n) {
    const size_t tensors = (n - 2) / 4;
    return i >= 2 && (i - 2 < tensors || i - 2 >= 2 * tensors);
  }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs written) const;
  void cuda(Tensors in, Outputs written, Stream stream) const;
  static std::vector<Sample<AdamW>> samples();
};

using adamw_ops = OpList<AdamW>;

}  // namespace op

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};
/// Steps every parameter in place; lists of equal length, tensors of one list entry alike in shape
/// and dtype.
TESSERA_API void adamw_(const std::vector<Tensor>& parameters, const std::vector<Tensor>& grads,
                        const std::vector<Tensor>& first, const std::vector<Tensor>& second,
                        int64_t step, const AdamWOptions& options);

}  // namespace tessera

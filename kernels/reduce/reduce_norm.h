// SPDX-License-Identifier: Apache-2.0
// Variance and norms over any dims. Variances take two passes on the CPU (the mean, then squared
// distances from it) and joined pairs of both on CUDA, so that a large mean costs no digits.
#pragma once

#include "tessera/kernels/reduce/reduce_family.h"

#include <array>

namespace tessera {
namespace op {

/// Sum of squared distances from the mean over n - correction; its root where `root`. The gradient
/// of a root of 0 is 0.
struct Var : Reduce<Var> {
  double correction = 1;
  bool root = false;
  static constexpr std::string_view name = "var";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(0) | Saves::output();
  auto attributes() const { return std::tie(dims, keepdim, correction, root); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Var>> samples();
};

/// (sum |x|^p)^(1/p); p = 0 counts what is not zero, p = inf (-inf) takes the largest (smallest)
/// size. The gradient of a norm of 0 is 0.
struct Norm : Reduce<Norm> {
  double p = 2;
  static constexpr std::string_view name = "norm";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(0) | Saves::output();
  auto attributes() const { return std::tie(dims, keepdim, p); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
  static std::vector<Sample<Norm>> samples();
};

using norm_ops = OpList<Var, Norm>;

}  // namespace op

/// Over `dims` (all when empty). ShapeError where n - correction is not above 0.
TESSERA_API Tensor var(const Tensor& x, Dims dims = {}, double correction = 1,
                       bool keepdim = false);
/// The standard deviation: the root of var.
TESSERA_API Tensor stddev(const Tensor& x, Dims dims = {}, double correction = 1,
                          bool keepdim = false);
/// {var, mean} and {stddev, mean} of the same dims.
TESSERA_API std::array<Tensor, 2> var_mean(const Tensor& x, Dims dims = {}, double correction = 1,
                                           bool keepdim = false);
TESSERA_API std::array<Tensor, 2> std_mean(const Tensor& x, Dims dims = {}, double correction = 1,
                                           bool keepdim = false);
/// The vector norm over `dims` (all when empty), e.g. `vector_norm(x, 2, {-1})`. ValueError of a p
/// that is NaN, ShapeError of nothing where p < 0 or infinite.
TESSERA_API Tensor vector_norm(const Tensor& x, double p = 2, Dims dims = {}, bool keepdim = false);

}  // namespace tessera

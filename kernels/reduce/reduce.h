// SPDX-License-Identifier: Apache-2.0
// The reduce family: sum, mean, logsumexp, prod, amax, any, var, norm and their kin over any dims,
// max and min with an index over one. Sums are f32 for narrower floats, in chunks that do not
// depend on the thread count. To add one: a struct, its public function, its name in a list, and a
// kernel of a few lines over reduce_elements on each device.
#pragma once

#include "tessera/kernels/reduce/reduce_count.h"
#include "tessera/kernels/reduce/reduce_extreme.h"
#include "tessera/kernels/reduce/reduce_family.h"
#include "tessera/kernels/reduce/reduce_norm.h"

namespace tessera {
namespace op {

/// Sum of the elements; 0 of nothing. Narrow floats are summed in f32.
struct Sum : Reduce<Sum> {
  static constexpr std::string_view name = "sum";
  static constexpr double kKnown[] = {7, 8, 0};
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};

/// Sum divided by the number of elements. `count` is the global number when the op runs on a piece;
/// 0: its own.
struct Mean : Reduce<Mean> {
  int64_t count = 0;
  static constexpr std::string_view name = "mean";
  static constexpr double kKnown[] = {2.3333333333333335, 2.6666666666666665, 0};
  static constexpr DTypeSet dtypes = kFloats;
  auto attributes() const { return std::tie(dims, keepdim, count); }
  ShardingRule sharding(Metas in) const;
  Mean local(const Piece& piece) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  [[nodiscard]] int64_t divisor(const Shape& input) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};

/// log(sum(exp(x))), stable; minus infinity where every x is.
struct LogSumExp : Reduce<LogSumExp> {
  static constexpr std::string_view name = "logsumexp";
  static constexpr double kKnown[] = {4.169846019556285, 5.132845233727576, 1.0986122886681098};
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr Saves saves = Saves::input(0) | Saves::output();
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};

/// Product; integers wrap around.
struct Prod : Reduce<Prod> {
  static constexpr std::string_view name = "prod";
  static constexpr double kKnown[] = {8, 0, 0};
  static Arg fill(const Shape& s) { return arg(s).uniform(0.5, 1.6); }
  static constexpr Saves saves = Saves::input(0);
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};

/// x, dy -> dx of prod: dy times the product of all other elements, by products from both ends, so
/// that zeros need no case of their own.
struct ProdBackward {
  DimMask dims = 0;
  bool keepdim = false;
  static constexpr std::string_view name = "prod_backward";
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotDifferentiable vjp{
      "the fused gradient of prod is differentiated once only; exp(sum(log(x))) more often"};
  auto attributes() const { return std::tie(dims, keepdim); }
  MetaList meta(Metas in) const;
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs dx) const;
  void cuda(Tensors in, Outputs dx, Stream stream) const;
  static std::vector<Sample<ProdBackward>> samples();
};

/// Largest (smallest) element; NaN if any is. Elements that tie share the gradient equally.
template <class Op> struct Peak : Reduce<Op> {
  static constexpr Saves saves = Saves::input(0) | Saves::output();
  static constexpr bool kOfNothing = false;
  static Arg fill(const Shape& s) { return arg(s).distinct(); }
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
  Grads vjp(const Saved& s, const Grads& dy, Needs) const;
};
struct AMax : Peak<AMax> {
  static constexpr std::string_view name = "amax";
  static constexpr double kKnown[] = {4, 5, 0};
  static constexpr bool kLargest = true;
};
struct AMin : Peak<AMin> {
  static constexpr std::string_view name = "amin";
  static constexpr double kKnown[] = {1, 0, 0};
  static constexpr bool kLargest = false;
};

/// Whether any (all) of bool elements are true; false (true) of nothing.
template <class Op> struct Truth : Reduce<Op> {
  static constexpr DTypeSet dtypes = dtypes_of(DType::bool_);
  static constexpr bool kBoolOutput = true;
  static constexpr NotDifferentiable vjp{"the output is a truth value"};
  ShardingRule sharding(Metas in) const;
  void cpu(Tensors in, Outputs y) const;
  void cuda(Tensors in, Outputs y, Stream stream) const;
};
struct Any : Truth<Any> {
  static constexpr std::string_view name = "any";
  static constexpr double kKnown[] = {1, 1, 0};
  static constexpr bool kLargest = true;
};
struct All : Truth<All> {
  static constexpr std::string_view name = "all";
  static constexpr double kKnown[] = {1, 0, 0};
  static constexpr bool kLargest = false;
};

using reduce_ops = ConcatOps<OpList<Sum, Mean, LogSumExp, Prod, ProdBackward, AMax, AMin, Any, All>,
                             count_ops, extreme_ops, norm_ops>;

}  // namespace op

/// Over `dims` (all when empty); dims may count from the end. Empty sums are 0; the mean of nothing
/// is a ShapeError; of bool it is f32, the share of true elements.
TESSERA_API Tensor sum(const Tensor& x, Dims dims = {}, bool keepdim = false);
TESSERA_API Tensor mean(const Tensor& x, Dims dims = {}, bool keepdim = false);
TESSERA_API Tensor logsumexp(const Tensor& x, Dims dims, bool keepdim = false);
/// The product; 1 of nothing. Its gradient is right with any number of zeros.
TESSERA_API Tensor prod(const Tensor& x, Dims dims = {}, bool keepdim = false);
/// The largest (smallest) value over `dims`, NaN if any is; ties share the gradient. ShapeError of
/// nothing.
TESSERA_API Tensor amax(const Tensor& x, Dims dims = {}, bool keepdim = false);
TESSERA_API Tensor amin(const Tensor& x, Dims dims = {}, bool keepdim = false);
/// bool -> bool, over `dims`. DTypeError for anything else: compare first.
TESSERA_API Tensor any(const Tensor& x, Dims dims = {}, bool keepdim = false);
TESSERA_API Tensor all(const Tensor& x, Dims dims = {}, bool keepdim = false);

}  // namespace tessera

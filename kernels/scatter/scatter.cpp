// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradients, samples and CPU kernels of scatter and scatter_reduce. Places that
// no index reaches are copied; narrow floats are joined in f32 and rounded once.
#include "tessera/kernels/scatter/scatter.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/index_lines_impl.h"
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <limits>
#include <ostream>

namespace tessera {
namespace op {
namespace {

template <class Op> MetaList meta_of(const Op& op, Metas in) {
  check_index(op.name, op.dim, in[0], in[1], op.dtypes);
  if (in[2].dtype != in[0].dtype)
    fail<DTypeError>(op.name, "input and src must share one dtype: given ", in[0], " and ", in[2]);
  if (!(in[2].shape == in[1].shape))
    fail<ShapeError>(op.name, "src must have the index's shape: given src ", in[2], " and index ",
                     in[1]);
  return {in[0]};
}

ShardingRule rule_of(std::string_view name, int dim, Metas in, std::string_view whole = "n m") {
  const Shape &shape = in[0].shape, &index = in[1].shape;
  const int d = normalize_dim(dim, shape.rank(), name);
  const DimFactor n{0, 1}, m{1, 1};
  return line_rule(shape, index, d, whole_lines(shape, index, d, whole), {n, m, m, n}, 3);
}

// Operands of a scatter whose index is `places`.
std::vector<Arg> operands(Shape x, Shape index, int64_t places) {
  return {arg(x), index_arg(index, 0, places), arg(index)};
}

std::vector<Arg> listed(std::vector<double> x, std::vector<double> index, std::vector<double> src) {
  const Shape n{static_cast<int64_t>(x.size())}, m{static_cast<int64_t>(index.size())};
  return {arg(n).listed(std::move(x)), arg(m).listed(std::move(index)).as(DType::i64),
          arg(m).listed(std::move(src))};
}

// A long index whose places in a line all differ.
std::vector<Arg> apart() {
  std::vector<double> index(40);
  for (size_t j = 0; j < index.size(); ++j) index[j] = static_cast<double>(j * 7 % 48);
  return {arg({8, 48}), arg({8, 40}).listed(std::move(index)).as(DType::i64), arg({8, 40})};
}

// What every op of the room refuses.
template <class Op> void add_bad(std::vector<Sample<Op>>& all, Op op) {
  op.dim = 1;
  all.push_back(bad(op, operands({5, 7}, {6, 2}, 7), "ShapeError"));
  all.push_back(bad(op, {arg({5, 7}), index_arg({5, 2}, 7, 9), arg({5, 2})}, "IndexError"));
  all.push_back(bad(op, {arg({5, 7}), index_arg({5, 2}, 0, 7), arg({5, 3})}, "ShapeError"));
  all.push_back(bad(op, {arg({5, 7}), arg({5, 2}).as(DType::f32), arg({5, 2})}, "DTypeError"));
  op.dim = 0;
  all.push_back(bad(op, {arg({5}).as(DType::f32), index_arg({5}, 0, 5), arg({5}).as(DType::f64)},
                    "DTypeError"));
}

}  // namespace

// --- scatter ------------------------------------------------------------------------------------------------------

MetaList Scatter::meta(Metas in) const { return meta_of(*this, in); }

ShardingRule Scatter::sharding(Metas in) const { return rule_of(name, dim, in).linear({0, 2}); }

void Scatter::cpu(Tensors in, Outputs y) const {
  const Tensor &index = in[1], &src = in[2];
  const int d = normalize_dim(dim, y[0].rank(), name);
  check_index_range(name, index, y[0].shape()[d]);
  strided_copy(y[0], in[0]);
  if (index.numel() == 0) return;
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    T* to = y[0].data<T>();
    const T* from = src.data<T>();
    const int64_t* indices = index.data<int64_t>();
    const int64_t move = y[0].strides()[d];
    IndexLines(y[0], index, src, d).each([=](int64_t line, int64_t i, int64_t j) TESSERA_LAMBDA {
      to[line + indices[i] * move] = from[j];
    });
  });
}

Grads Scatter::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(3);
  auto [dx, dsrc] = call(ScatterBackward{dim}, {dy[0], s.input(1)});
  if (needs[0]) g[0] = dx;
  if (needs[2]) g[2] = dsrc;
  return g;
}

std::vector<Sample<Scatter>> Scatter::samples() {
  std::vector<Sample<Scatter>> all{
      {Scatter{1}, operands({5, 7}, {5, 6}, 7)},
      {Scatter{0}, operands({7, 5}, {9, 5}, 7)},
      {Scatter{-2}, operands({5, 6, 7}, {5, 8, 7}, 6)},
      {Scatter{1}, operands({6, 7, 5}, {5, 8, 5}, 7)},
      {Scatter{0}, operands({19}, {37}, 19)},
      {Scatter{1}, operands({5, 6}, {5, 70}, 6)},
      {Scatter{0}, operands({5, 9}, {37, 7}, 5)},
      {Scatter{1}, apart()},
      timed(Scatter{1}, operands({1024, 1024}, {1024, 1024}, 1024)),
      timed(Scatter{0}, operands({1024, 1024}, {1024, 1024}, 1024)),
      known(Scatter{0}, listed({1, 2, 3, 4}, {2, 0, 2}, {7, 8, 9}), {{8, 2, 9, 4}}),
  };
  add_bad(all, Scatter{});
  return all;
}

// --- its gradient -------------------------------------------------------------------------------------------------

MetaList ScatterBackward::meta(Metas in) const {
  check_index(name, dim, in[0], in[1], dtypes);
  return {in[0], {in[1].shape, in[0].dtype, in[0].device}};
}

ShardingRule ScatterBackward::sharding(Metas in) const {
  const Shape &shape = in[0].shape, &index = in[1].shape;
  const int d = normalize_dim(dim, shape.rank(), name);
  const DimFactor n{0, 1}, m{1, 1};
  return line_rule(shape, index, d, whole_lines(shape, index, d), {n, m, n, m}, 2).linear({0});
}

void ScatterBackward::cpu(Tensors in, Outputs y) const {
  const Tensor &index = in[1], &dx = y[0], &dsrc = y[1];
  const int d = normalize_dim(dim, dx.rank(), name);
  check_index_range(name, index, dx.shape()[d]);
  strided_copy(dx, in[0]);
  if (index.numel() == 0) return;
  dispatch<dtypes>(dx.dtype(), [&]<class T>() {
    T *x = dx.data<T>(), *src = dsrc.data<T>();
    const int64_t* indices = index.data<int64_t>();
    const int64_t move = dx.strides()[d];
    // From the last index on: what comes before it for the same place finds the gradient taken.
    IndexLines(dx, index, dsrc, d)
        .each<true>([=](int64_t line, int64_t i, int64_t j) TESSERA_LAMBDA {
          T& place = x[line + indices[i] * move];
          src[j] = place;
          place = T{};
        });
  });
}

Grads ScatterBackward::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads g(2);
  if (!needs[0]) return g;
  const Tensor x = dy[0].defined() ? dy[0] : zeros_like(s.input(0));
  g[0] = dy[1].defined() ? scatter(x, dim, s.input(1), dy[1]) : scatter(x, dim, s.input(1), 0.0);
  return g;
}

std::vector<Sample<ScatterBackward>> ScatterBackward::samples() {
  return {
      {ScatterBackward{1}, {arg({5, 7}), index_arg({5, 6}, 0, 7)}},
      {ScatterBackward{0}, {arg({7, 5}), index_arg({9, 5}, 0, 7)}},
      {ScatterBackward{-2}, {arg({5, 6, 7}), index_arg({5, 8, 7}, 0, 6)}},
      {ScatterBackward{1}, {arg({6, 7, 5}), index_arg({5, 8, 5}, 0, 7)}},
      {ScatterBackward{1}, {arg({5, 6}), index_arg({5, 70}, 0, 6)}},
      {ScatterBackward{0}, {arg({5, 9}), index_arg({37, 7}, 0, 5)}},
      {ScatterBackward{1}, {apart()[0], apart()[1]}},
      timed(ScatterBackward{1}, {arg({1024, 1024}), index_arg({1024, 1024}, 0, 1024)}),
      known(ScatterBackward{0},
            {arg({4}).listed({1, 2, 3, 4}), arg({3}).listed({2, 0, 2}).as(DType::i64)},
            {{0, 2, 0, 4}, {0, 1, 3}}),
      bad(ScatterBackward{1}, {arg({5, 7}), index_arg({5, 2}, 7, 9)}, "IndexError"),
      bad(ScatterBackward{1}, {arg({5, 7}), index_arg({6, 2}, 0, 7)}, "ShapeError"),
      bad(ScatterBackward{0}, {arg({5}), arg({5}).as(DType::f32)}, "DTypeError"),
      bad(ScatterBackward{0}, {arg({5}).as(DType::i64), index_arg({5}, 0, 5)}, "DTypeError"),
  };
}

// --- scatter_reduce -----------------------------------------------------------------------------------------------

std::ostream& operator<<(std::ostream& os, ScatterJoin join) {
  switch (join) {
    case ScatterJoin::prod: return os << "prod";
    case ScatterJoin::amax: return os << "amax";
    default: return os << "amin";
  }
}

MetaList ScatterReduce::meta(Metas in) const { return meta_of(*this, in); }

ShardingRule ScatterReduce::sharding(Metas in) const {
  if (join == ScatterJoin::prod) return rule_of(name, dim, in).linear({0});
  // That x counts once for each piece of the index changes no extreme.
  return rule_of(name, dim, in, "n").join(join == ScatterJoin::amax ? Join::max : Join::min);
}

void ScatterReduce::cpu(Tensors in, Outputs y) const {
  const Tensor &index = in[1], &src = in[2];
  const int d = normalize_dim(dim, y[0].rank(), name);
  check_index_range(name, index, y[0].shape()[d]);
  if (index.numel() == 0) return strided_copy(y[0], in[0]);
  dispatch<dtypes>(src.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    constexpr bool kNarrow = !std::is_same_v<C, T>;
    Tensor all = kNarrow ? empty(y[0].shape(), dtype_of<C>) : y[0];
    if constexpr (kNarrow) Cast{{}, dtype_of<C>}.cpu(in.first(1), Outputs(&all, 1));
    else strided_copy(all, in[0]);
    C* to = all.data<C>();
    const T* from = src.data<T>();
    const int64_t* indices = index.data<int64_t>();
    const int64_t move = all.strides()[d];
    const auto run = [&](auto op) {  // a loop for each join
      IndexLines(all, index, src, d).each([=](int64_t line, int64_t i, int64_t j) TESSERA_LAMBDA {
        C& place = to[line + indices[i] * move];
        place = op(place, static_cast<C>(from[j]));
      });
    };
    const auto with = [&]<ScatterJoin kJoin>() {
      run([](C a, C b) TESSERA_LAMBDA { return ScatterReduce{0, kJoin}.joined(a, b); });
    };
    if (join == ScatterJoin::prod) with.template operator()<ScatterJoin::prod>();
    else if (join == ScatterJoin::amax) with.template operator()<ScatterJoin::amax>();
    else with.template operator()<ScatterJoin::amin>();
    if constexpr (kNarrow) Cast{{}, dtype_of<T>}.cpu(Tensors(&all, 1), y);
  });
}

namespace {

// The elements that are y's share dy alike.
Grads peak_gradient(int d, const Saved& s, const Tensor& dy, Needs needs) {
  const Tensor &x = s.input(0), &index = s.input(1), &src = s.input(2), &y = s.output();
  const Tensor x_is = cast(equal(x, y), x.dtype());
  const Tensor src_is = cast(equal(src, gather(y, d, index)), x.dtype());
  const Tensor share = div(dy, scatter_add(x_is, d, index, src_is));
  Grads g(3);
  if (needs[0]) g[0] = mul(x_is, share);
  if (needs[2]) g[2] = mul(src_is, gather(share, d, index));
  return g;
}

// dy times the product of all other factors: y divided by the own one, or where that is zero the
// product with a one in its stead.
Grads prod_gradient(const ScatterReduce& op, const Saved& s, const Tensor& dy, Needs needs) {
  const Tensor &x = s.input(0), &index = s.input(1), &src = s.input(2), &y = s.output();
  const auto is_zero = [](const Tensor& t) { return equal(t, zeros_like(t)); };
  Grads g(3);
  if (needs[0]) {
    const Tensor own = masked_fill(x, is_zero(x), 1);
    g[0] = div(mul(dy, call(op, {own, index, src})), own);
  }
  if (needs[2]) {
    const Tensor zero = is_zero(src);
    const Tensor zeros = scatter_add(zeros_like(x), op.dim, index, cast(zero, x.dtype()));
    const Tensor counts = gather(zeros, op.dim, index);
    const Tensor only = logical_and(zero, equal(counts, full_like(counts, 1)));
    const Tensor others = call(op, {x, index, masked_fill(src, only, 1)});
    g[2] = where(only, gather(mul(dy, others), op.dim, index),
                 div(gather(mul(dy, y), op.dim, index), masked_fill(src, zero, 1)));
  }
  return g;
}

}  // namespace

Grads ScatterReduce::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  return join == ScatterJoin::prod ? prod_gradient(*this, s, dy[0], needs)
                                   : peak_gradient(dim, s, dy[0], needs);
}

std::vector<Sample<ScatterReduce>> ScatterReduce::samples() {
  using J = ScatterJoin;
  const auto untied = [](std::vector<Arg> in) {  // no ties, no products near zero
    in[0] = in[0].listed({-7.0625, 3.1875, 0.9375, -2.8125, 6.0625, -0.3125, 1.6875});
    in[2] = in[2].distinct();
    return in;
  };
  const auto factors = [](std::vector<Arg> in) {
    in[0] = in[0].uniform(0.5, 1.6);
    in[2] = in[2].uniform(0.5, 1.6);
    return in;
  };
  std::vector<Sample<ScatterReduce>> all{
      {ScatterReduce{1, J::prod}, factors(operands({5, 7}, {5, 6}, 7))},
      {ScatterReduce{-2, J::prod}, factors(operands({5, 6, 7}, {5, 8, 7}, 6))},
      {ScatterReduce{0, J::amax}, untied(operands({7, 5}, {9, 5}, 7))},
      {ScatterReduce{1, J::amin}, untied(operands({6, 7, 5}, {5, 8, 5}, 7))},
      {ScatterReduce{0, J::prod}, factors(operands({5, 9}, {37, 7}, 5))},
      {ScatterReduce{1, J::prod}, factors(apart())},
      {ScatterReduce{1, J::amax}, untied(operands({5, 6}, {5, 70}, 6))},
      timed(ScatterReduce{1, J::prod}, operands({1024, 1024}, {1024, 1024}, 1024)),
      timed(ScatterReduce{1, J::amax}, operands({1024, 1024}, {1024, 1024}, 1024)),
      known(ScatterReduce{0, J::prod}, listed({1, 2, 3}, {2, 0, 2}, {7, 4, 2}), {{4, 2, 42}}),
      known(ScatterReduce{0, J::amax}, listed({1, 2, 3}, {2, 0, 2}, {7, 4, 2}), {{4, 2, 7}}),
      known(ScatterReduce{0, J::amin}, listed({1, 2, 3}, {2, 0, 2}, {7, 4, 2}), {{1, 2, 2}}),
  };
  add_bad(all, ScatterReduce{});
  return all;
}

}  // namespace op

// --- functions ----------------------------------------------------------------------------------------------------

Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
  if (x.rank() == 0 && index.rank() == 0 && src.rank() == 0)
    return reshape(scatter(reshape(x, {1}), dim, reshape(index, {1}), reshape(src, {1})), {});
  return call(op::Scatter{dim}, {x, as_index(index), detail::first_elements(src, index.shape())});
}

Tensor scatter(const Tensor& x, int dim, const Tensor& index, double value) {
  return scatter(x, dim, index,
                 call_like(op::Fill{index.shape(), x.dtype(), x.device(), value}, index));
}

namespace {

// x with what `reduce` leaves as it is in the places where the index points.
Tensor cleared(const Tensor& x, int dim, const Tensor& index, const Tensor& src,
               ScatterReduction reduce) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (reduce) {
    case ScatterReduction::sum:
    case ScatterReduction::mean: return scatter(x, dim, index, 0.0);
    case ScatterReduction::prod: return scatter(x, dim, index, 1.0);
    default: break;
  }
  // An integer that is joined with itself stays.
  if (!is_floating(x.dtype())) return scatter(x, dim, index, src);
  return scatter(x, dim, index, reduce == ScatterReduction::amax ? -kInfinity : kInfinity);
}

}  // namespace

Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& src,
                      ScatterReduction reduce, bool include_self) {
  using R = ScatterReduction;
  if (x.rank() == 0 && index.rank() == 0 && src.rank() == 0) {
    return reshape(scatter_reduce(reshape(x, {1}), dim, reshape(index, {1}), reshape(src, {1}),
                                  reduce, include_self),
                   {});
  }
  const bool mean = reduce == R::mean;
  if (mean && !is_floating(x.dtype()))
    fail<DTypeError>(op::ScatterReduce::name, "the mean is of floats: given ", x.meta(),
                     "; cast it");
  const Tensor at = as_index(index), values = detail::first_elements(src, at.shape());
  const Tensor base = include_self ? x : cleared(x, dim, at, values, reduce);
  if (reduce == R::sum || mean) {
    const Tensor sums = scatter_add(base, dim, at, values);
    if (!mean) return sums;
    // A place that no index reaches is divided by 1.
    const Tensor own = full_like(x, 1);
    const Tensor counts =
        scatter_add(include_self ? own : scatter(own, dim, at, 0.0), dim, at, full_like(values, 1));
    return div(sums, counts);
  }
  const op::ScatterJoin join = reduce == R::prod   ? op::ScatterJoin::prod
                               : reduce == R::amax ? op::ScatterJoin::amax
                                                   : op::ScatterJoin::amin;
  return call(op::ScatterReduce{dim, join}, {base, at, values});
}

}  // namespace tessera

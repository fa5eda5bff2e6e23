// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradients and CPU kernels of cross_entropy: a thread takes whole rows; the loss
// is summed in f64, row after row.
#include "tessera/kernels/cross_entropy/cross_entropy.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/loss_impl.h"
#include "tessera/kernels/shared/rows_impl.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tessera::op {
namespace {

void check(std::string_view name, DTypeSet dtypes, Metas in) {
  const auto &logits = in[0], &targets = in[1];
  if (!dtypes.has(logits.dtype) || targets.dtype != DType::i64) {
    fail<DTypeError>(name, "logits must be of ", dtypes, " and targets i64: logits are ", logits,
                     ", targets are ", targets);
  }
  if (logits.shape.rank() < 1 ||
      !(targets.shape == logits.shape.without(logits.shape.rank() - 1))) {
    fail<ShapeError>(name, "targets must hold one class per row of logits (..., V): logits are ",
                     logits, ", targets are ", targets);
  }
}

void check_weights(std::string_view name, Metas in, size_t i) {
  if (!in.has(i)) return;
  const DType wide = compute_dtype(in[0].dtype);
  if (in[i].dtype != wide)
    fail<DTypeError>(name, "the weight of the classes must be ", wide, " for logits ", in[0],
                     ": given ", in[i], "; cast it");
  if (!(in[i].shape == Shape{in[0].shape.back()}))
    fail<ShapeError>(name, "expected one weight per class: given ", in[i], " for logits ", in[0]);
}

/// The sum of all weights, also where `weights` are a piece.
template <class C> C sum_of_weights(const Tensor& weights, Joiner* joiner) {
  const Tensor total = empty({1}, dtype_of<C>);
  C* sum = total.data<C>();
  *sum = rows::sum(weights.data<C>(), weights.numel());
  if (joiner) joiner->all_reduce(total, Join::sum);
  return *sum;
}

}  // namespace

MetaList CrossEntropy::meta(Metas in) const {
  check(name, dtypes, in);
  check_loss_options(name, label_smoothing, z_loss);
  check_class_piece(name, begin, in[0].shape.back(), vocabulary, in[0]);
  if (!joiner && vocabulary && vocabulary != in[0].shape.back()) {
    fail<ValueError>(name, "logits ", in[0], " are a piece of a vocabulary of ", vocabulary,
                     ", and nothing joins it to the others");
  }
  check_weights(name, in, 2);
  const DType wide = compute_dtype(in[0].dtype);
  const TensorMeta row{in[1].shape, wide, in[0].device};
  return {{{}, wide, in[0].device}, {{}, DType::i64, in[0].device}, row, row, row};
}

ShardingRule CrossEntropy::sharding(Metas in) const {
  return (in.size() < 3 ? rule("... v, ... -> , , ..., ..., ...", in)
                        : rule("... v, ..., v -> , , ..., ..., ...", in))
      .joins_inside('v');
}

CrossEntropy CrossEntropy::local(const Piece& piece) const {
  const Piece::Range& own = piece.operands[0].back();
  CrossEntropy op = *this;
  op.begin = begin + own.begin;
  op.vocabulary = vocabulary ? vocabulary : own.global;
  op.joiner = piece.joiner;
  return op;
}

void CrossEntropy::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor& logits = in[0];
  const Tensor targets = contiguous(in[1]);
  const int64_t classes = logits.shape().back(), all_classes = vocabulary ? vocabulary : classes;
  check_targets(name, targets, all_classes, ignore_index);
  dispatch<kFloats>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(logits, logits.rank() - 1);
    const int64_t n = from.count;
    const T* src = logits.data<T>();
    const int64_t* target = targets.data<int64_t>();
    const RowLoss<C> shares(label_smoothing, z_loss, all_classes);
    const bool smooth = label_smoothing > 0, weighted = in.size() > 2 && in[2].defined();
    const Tensor weights = weighted ? contiguous(in[2].detach()) : Tensor();
    const C* weight = weighted ? weights.data<C>() : nullptr;
    // Of each row: its maximum, the sum of exp(x - maximum), x - maximum of the target, and the sum
    // of x - maximum where labels are smoothed; these two count by the weight of their class.
    const Tensor maxima = empty({n}, dtype_of<C>), sums = empty({smooth ? 3 : 2, n}, dtype_of<C>);
    C *top = maxima.data<C>(), *sum = sums.data<C>(), *picked = sum + n, *totals = picked + n;
    C *lse = y[2].data<C>(), *losses = y[3].data<C>(), *hits = y[4].data<C>();
    for_each_row<C>(n, classes, 2, [&](int64_t row, C* scratch, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* e = scratch + padded;
        const C* x = rows::read(src + from.offset(row), from.stride, classes, scratch);
        const C m = rows::max(x, classes), base = base_of(m);
        top[row] = m;
        const int64_t at = target[row] - begin;
        const bool counts = target[row] != ignore_index, here = counts && at >= 0 && at < classes;
        picked[row] = here ? (weighted ? weight[at] * (x[at] - base) : x[at] - base) : C(0);
        hits[row] = weighted ? (here ? weight[at] : C(0)) : C(counts);
        if (smooth) {
          for (int64_t i = 0; i < classes; ++i) e[i] = x[i] - base;
          totals[row] = weighted ? rows::dot(weight, e, classes) : rows::sum(e, classes);
        }
#pragma GCC ivdep
        for (int64_t i = 0; i < classes; ++i) e[i] = vmath::exp(x[i] - base);
        sum[row] = rows::sum(e, classes);
      });
    });
    if (joiner && n > 0) {
      const Tensor whole = empty({n}, dtype_of<C>);
      std::copy_n(top, n, whole.data<C>());
      joiner->all_reduce(whole, Join::max);
      const C own_weights = weighted ? rows::sum(weight, classes) : static_cast<C>(classes);
      for (int64_t row = 0; row < n; ++row) {
        const C m = std::exchange(top[row], whole.data<C>()[row]), shift = base_of(m) - top[row];
        if (sum[row] != C(0)) sum[row] *= static_cast<C>(std::exp(shift));
        const int64_t at = target[row] - begin;
        if (at >= 0 && at < classes) picked[row] += hits[row] * shift;
        if (smooth && classes > 0) totals[row] += own_weights * shift;
      }
      joiner->all_reduce(sums, Join::sum);
      if (weighted) joiner->all_reduce(y[4], Join::sum);
    }
    const C all = weighted && smooth ? sum_of_weights<C>(weights, joiner.get()) : C(0);
    double total = 0;
    int64_t count = 0;
    for (int64_t row = 0; row < n; ++row) {
      const C log_sum = static_cast<C>(std::log(sum[row]));
      lse[row] = top[row] + log_sum;
      losses[row] = 0;
      if (target[row] == ignore_index) continue;
      losses[row] = shares.value(top[row], log_sum, picked[row], smooth ? totals[row] : C(0),
                                 weighted ? shares.share(hits[row], all) : C(1));
      total += losses[row];
      ++count;
    }
    *y[0].data<C>() = static_cast<C>(total);
    *y[1].data<int64_t>() = count;
  });
}

Grads CrossEntropy::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  const bool weighted = s.has_input(2);
  if (weighted && needs[2])
    fail<AutogradError>(name,
                        "the weight of the classes is a constant without a gradient; detach it");
  Grads g(s.inputs());
  if (dy[0].defined() || dy[2].defined() || dy[3].defined()) {
    const Tensor none;
    g[0] = call(CrossEntropyBackward{ignore_index, label_smoothing, z_loss, begin, vocabulary},
                {s.input(0), s.input(1), s.output(2), dy[0], dy[2], dy[3],
                 weighted ? s.input(2) : none, weighted ? s.output(4) : none});
  }
  return g;
}

std::vector<Sample<CrossEntropy>> CrossEntropy::samples() {
  Arg weights = arg({7}).uniform(0.5, 2).statistic(),
      classes = arg({3}).listed({2, 1, 4}).statistic();
  weights.differentiable = classes.differentiable = false;
  const Arg three = arg({3, 3}).listed({1, 0.5, -1, 2, 0, 0, 0.5, 0.25, -1}),
            few = arg({6}).statistic();
  const std::vector<double> three_lse{1.5549569196419908, 2.2395447662218846, 1.1941121864019142};
  const Arg logits = arg({2, 3}).listed({1, 2, 3, 0.5, -1, 2}),
            targets = arg({2}).listed({2, 0}).as(DType::i64);
  const std::vector<double> lse{3.4076059644443806, 2.241311296657157};
  return {
      {CrossEntropy{}, {arg({5, 7}), index_arg({5}, 0, 7)}},
      {CrossEntropy{.ignore_index = 2}, {arg({2, 5, 6}), index_arg({2, 5}, 0, 6)}},
      {CrossEntropy{}, {arg({5}), index_arg({}, 0, 5)}},
      {CrossEntropy{}, {arg({3, 520}), index_arg({3}, 0, 520)}},
      {CrossEntropy{-100, 0.2, 0.01}, {arg({5, 7}), index_arg({5}, 0, 7)}},
      {CrossEntropy{}, {arg({5, 7}), index_arg({5}, 0, 7), weights}},
      {CrossEntropy{2, 0.2, 0.01}, {arg({5, 7}), index_arg({5}, 0, 7), weights}},
      // -sum(w_c q_c log p_c) of the smoothed targets q.
      known(CrossEntropy{1, 0.25}, {three, arg({3}).listed({0, 1, 2}).as(DType::i64), classes},
            {{9.372562250527674},
             {2},
             three_lse,
             {1.8644935825874809, 0, 7.508068667940193},
             {2, 0, 4}}),
      known(CrossEntropy{}, {logits, targets},
            {{2.1489172611015377}, {2}, lse, {0.4076059644443806, 1.7413112966571571}, {1, 1}}),
      known(CrossEntropy{-100, 0.25, 0.5}, {logits, targets},
            {{10.71654462982149}, {2}, lse, {6.463495168902839, 4.253049460918651}, {1, 1}}),
      known(CrossEntropy{.ignore_index = 1}, {logits, arg({2}).listed({1, 0}).as(DType::i64)},
            {{1.7413112966571571}, {1}, lse, {0, 1.7413112966571571}, {0, 1}}),
      timed(CrossEntropy{}, {arg({8, 512, 2048}), index_arg({8, 512}, 0, 2048)}),
      bad(CrossEntropy{}, {arg({5, 7}), index_arg({4}, 0, 7)}, "ShapeError"),
      bad(CrossEntropy{}, {arg({5, 7}), arg({5})}, "DTypeError"),
      bad(CrossEntropy{}, {arg({5, 7}), index_arg({5}, 0, 7), few}, "ShapeError"),
      bad(CrossEntropy{}, {arg({5, 7}), index_arg({5}, 0, 7), index_arg({7}, 0, 3)}, "DTypeError"),
      bad(CrossEntropy{}, {arg({5, 7}), index_arg({5}, 7, 9)}, "IndexError"),
      bad(CrossEntropy{.vocabulary = 20}, {arg({5, 7}), index_arg({5}, 0, 7)}, "ValueError"),
      bad(CrossEntropy{.label_smoothing = 1}, {arg({5, 7}), index_arg({5}, 0, 7)}, "ValueError"),
      bad(CrossEntropy{.begin = 1, .vocabulary = 7}, {arg({5, 7}), index_arg({5}, 0, 7)},
          "ValueError"),
  };
}

MetaList CrossEntropyBackward::meta(Metas in) const {
  check(name, dtypes, in);
  check_loss_options(name, label_smoothing, z_loss);
  check_class_piece(name, begin, in[0].shape.back(), vocabulary, in[0]);
  const DType wide = compute_dtype(in[0].dtype);
  const auto expect = [&](size_t i, const char* what, const Shape& shape) {
    if (in.has(i) && (!(in[i].shape == shape) || in[i].dtype != wide)) {
      fail<ShapeError>(name, what, " must be ", wide, shape, " for logits ", in[0], ": given ",
                       in[i]);
    }
  };
  expect(2, "lse", in[1].shape);
  expect(3, "dsum", {});
  expect(4, "dlse", in[1].shape);
  expect(5, "dloss", in[1].shape);
  check_weights(name, in, 6);
  if (in.has(6) != in.has(7))
    fail<UsageError>(name, "expected the weight of the classes and of the targets, or neither");
  expect(7, "the targets' weight", in[1].shape);
  if (in.has(6) && label_smoothing > 0 && !joiner && vocabulary && vocabulary != in[0].shape.back())
    fail<ValueError>(name, "weights ", in[6], " are a piece of a vocabulary of ", vocabulary,
                     ", and nothing joins it to the others");
  return {in[0]};
}

ShardingRule CrossEntropyBackward::sharding(Metas in) const {
  ShardingRule r = in.size() < 6 ? rule("... v, ..., ..., , ... -> ... v", in)
                                 : rule("... v, ..., ..., , ..., ..., v, ... -> ... v", in);
  if (in.has(6) && label_smoothing > 0) r.joins_inside('v');
  std::vector<int> gradients;
  for (int i = 3; i <= 5; ++i) {
    if (in.has(static_cast<size_t>(i))) gradients.push_back(i);
  }
  return r.linear(gradients);
}

CrossEntropyBackward CrossEntropyBackward::local(const Piece& piece) const {
  const Piece::Range& own = piece.operands[0].back();
  CrossEntropyBackward op = *this;
  op.begin = begin + own.begin;
  op.vocabulary = vocabulary ? vocabulary : own.global;
  op.joiner = piece.joiner;
  return op;
}

void CrossEntropyBackward::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor& logits = in[0];
  const Tensor targets = contiguous(in[1]), saved = contiguous(in[2].detach());
  const auto given = [&](size_t i) { return in.size() > i && in[i].defined(); };
  const auto packed = [&](size_t i) { return given(i) ? contiguous(in[i].detach()) : Tensor(); };
  const Tensor dlses = packed(4), dlosses = packed(5), weights = packed(6),
               target_weights = packed(7);
  const int64_t classes = logits.shape().back(), all_classes = vocabulary ? vocabulary : classes;
  check_targets(name, targets, all_classes, ignore_index);
  dispatch<kFloats>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(logits, logits.rank() - 1), to(y[0], logits.rank() - 1);
    const T* src = logits.data<T>();
    T* dst = y[0].data<T>();
    const int64_t* target = targets.data<int64_t>();
    const auto pointer = [](const Tensor& t) -> const C* {
      return t.defined() ? t.data<C>() : nullptr;
    };
    const C *lse = saved.data<C>(), *dlse = pointer(dlses), *dloss = pointer(dlosses),
            *weight = pointer(weights), *hits = pointer(target_weights);
    const C dsum = given(3) ? *in[3].data<C>() : C(0);
    const C all_weights =
        weight && label_smoothing > 0 ? sum_of_weights<C>(weights, joiner.get()) : C(0);
    const RowLoss<C> shares(label_smoothing, z_loss, all_classes);
    constexpr C kLeast = kLeastExponent<C>;
    for_each_row<C>(from.count, classes, 1, [&](int64_t row, C* x, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        const bool counts = target[row] != ignore_index;
        const C hit = counts ? (dloss ? dsum + dloss[row] : dsum) : C(0), shift = lse[row],
                each = hit * shares.each, like = weight ? C(0) : each,
                share = weight ? shares.share(hits[row], all_weights) : C(1),
                all = (counts ? hit * shares.softmax_share(shift, share) : C(0)) +
                      (dlse ? dlse[row] : C(0));
        const C* values = rows::read(src + from.offset(row), from.stride, classes, x);
#pragma GCC ivdep
        for (int64_t i = 0; i < classes; ++i) {
          const C d = values[i] - shift, p = vmath::exp(d < kLeast ? kLeast : d);
          x[i] = (all == C(0) ? C(0) : (d < kLeast ? C(0) : p * all)) - like;
        }
        if (weight && each != C(0)) {
          for (int64_t i = 0; i < classes; ++i) x[i] -= each * weight[i];
        }
        const int64_t at = target[row] - begin;
        if (counts && at >= 0 && at < classes)
          x[at] -= hit * shares.hit * (hits ? hits[row] : C(1));
        rows::store(x, classes, dst + to.offset(row), to.stride);
      });
    });
  });
}

std::vector<Sample<CrossEntropyBackward>> CrossEntropyBackward::samples() {
  const auto operands = [](Shape rows, int64_t classes, bool dlse) {
    Shape logits = rows;
    logits.push_back(classes);
    return std::vector<Arg>{arg(logits), index_arg(rows, 0, classes),
                            arg(rows).uniform(2, 3).statistic(), arg({}).statistic(),
                            dlse ? arg(rows).statistic() : no_arg()};
  };
  auto wrong = operands({5}, 7, false);
  wrong[2] = arg({4}).statistic();
  auto piece = operands({19}, 8, true);
  piece[1] = index_arg({19}, 0, 20);
  auto rows = operands({5}, 7, false);  // a gradient of each row's loss, and weights
  rows[3] = no_arg();
  rows.push_back(arg({5}).statistic());
  auto weighted = rows;
  weighted[4] = arg({5}).statistic();
  weighted.push_back(arg({7}).uniform(0.5, 2).statistic());
  weighted.push_back(arg({5}).uniform(0.5, 2).statistic());
  auto lone = weighted;
  lone.back() = no_arg();
  rows.insert(rows.end(), 2, no_arg());
  const Arg logits = arg({2, 3}).listed({1, 2, 3, 0.5, -1, 2}),
            targets = arg({2}).listed({2, 0}).as(DType::i64),
            lse = arg({2}).listed({3.4076059644443806, 2.241311296657157}).statistic(),
            dsum = arg({}).listed({1.5}).statistic(), dlse = arg({2}).listed({0.5, -2}).statistic();
  return {
      {CrossEntropyBackward{}, operands({5}, 7, false)},
      {CrossEntropyBackward{.ignore_index = 2}, operands({2, 5}, 6, true)},
      {CrossEntropyBackward{-100, 0, 0, 4, 20}, piece},
      {CrossEntropyBackward{-100, 0.2, 0.01}, operands({5}, 7, true)},
      {CrossEntropyBackward{}, rows},
      {CrossEntropyBackward{}, weighted},
      {CrossEntropyBackward{2, 0.2, 0.01}, weighted},
      known(CrossEntropyBackward{}, {logits, targets, lse, dsum, dlse},
            {{0.18006114634076087, 0.4894569421095952, -0.16951808845035649, -1.5876451960700184,
              -0.019556286635343728, -0.3927985172946378}}),
      known(CrossEntropyBackward{-100, 0.25, 0.5}, {logits, targets, lse, dsum, dlse},
            {{0.5152442235173627, 1.6153642385631186, 3.4808004845860876, -0.7483246919216275,
              -0.0130611081659599, 2.1233527450733227}}),
      timed(CrossEntropyBackward{}, operands({8, 512}, 2048, false)),
      bad(CrossEntropyBackward{}, wrong, "ShapeError"),
      bad(CrossEntropyBackward{-100, 0, 0, 15, 20}, piece, "ValueError"),
      bad(CrossEntropyBackward{}, lone, "UsageError"),
      bad(CrossEntropyBackward{-100, 0.2, 0, 0, 20}, weighted, "ValueError"),
  };
}

}  // namespace tessera::op

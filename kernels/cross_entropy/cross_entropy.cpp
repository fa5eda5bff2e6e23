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

}  // namespace

MetaList CrossEntropy::meta(Metas in) const {
  check(name, dtypes, in);
  check_loss_options(name, label_smoothing, z_loss);
  check_class_piece(name, begin, in[0].shape.back(), vocabulary, in[0]);
  if (!joiner && vocabulary && vocabulary != in[0].shape.back()) {
    fail<ValueError>(name, "logits ", in[0], " are a piece of a vocabulary of ", vocabulary,
                     ", and nothing joins it to the others");
  }
  const DType wide = compute_dtype(in[0].dtype);
  return {
      {{}, wide, in[0].device}, {{}, DType::i64, in[0].device}, {in[1].shape, wide, in[0].device}};
}

ShardingRule CrossEntropy::sharding(Metas in) const {
  return rule("... v, ... -> , , ...", in).joins_inside('v');
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
    const bool smooth = label_smoothing > 0;
    // Of each row: its maximum, the sum of exp(x - maximum), the target's logit, and the sum of all
    // logits where labels are smoothed.
    const Tensor maxima = empty({n}, dtype_of<C>), sums = empty({smooth ? 3 : 2, n}, dtype_of<C>);
    C *top = maxima.data<C>(), *sum = sums.data<C>(), *picked = sum + n, *totals = picked + n;
    for_each_row<C>(n, classes, 2, [&](int64_t row, C* scratch, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* e = scratch + padded;
        const C* x = rows::read(src + from.offset(row), from.stride, classes, scratch);
        const C m = rows::max(x, classes);
#pragma GCC ivdep
        for (int64_t i = 0; i < classes; ++i) e[i] = vmath::exp(x[i] - m);
        top[row] = m;
        // A piece of nothing but -inf adds nothing to the row.
        sum[row] = m == -std::numeric_limits<C>::infinity() ? C(0) : rows::sum(e, classes);
        const int64_t at = target[row] - begin;
        picked[row] = target[row] == ignore_index || at < 0 || at >= classes ? C(0) : x[at];
        if (smooth) totals[row] = rows::sum(x, classes);
      });
    });
    if (joiner && n > 0) {
      const Tensor whole = empty({n}, dtype_of<C>);
      std::copy_n(top, n, whole.data<C>());
      joiner->all_reduce(whole, Join::max);
      for (int64_t row = 0; row < n; ++row) {
        const C m = std::exchange(top[row], whole.data<C>()[row]);
        if (sum[row] != C(0)) sum[row] *= static_cast<C>(std::exp(m - top[row]));
      }
      joiner->all_reduce(sums, Join::sum);
    }
    C* lse = y[2].data<C>();
    double total = 0;
    int64_t count = 0;
    for (int64_t row = 0; row < n; ++row) {
      lse[row] = top[row] + static_cast<C>(std::log(sum[row]));
      if (target[row] == ignore_index) continue;
      total += shares.value(lse[row], picked[row], smooth ? totals[row] : C(0));
      ++count;
    }
    *y[0].data<C>() = static_cast<C>(total);
    *y[1].data<int64_t>() = count;
  });
}

Grads CrossEntropy::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {call(CrossEntropyBackward{ignore_index, label_smoothing, z_loss, begin, vocabulary},
               {s.input(0), s.input(1), s.output(2), dy[0], dy[2]}),
          Tensor()};
}

std::vector<Sample<CrossEntropy>> CrossEntropy::samples() {
  return {
      {CrossEntropy{}, {arg({5, 7}), index_arg({5}, 0, 7)}},
      {CrossEntropy{.ignore_index = 2}, {arg({2, 5, 6}), index_arg({2, 5}, 0, 6)}},
      {CrossEntropy{}, {arg({5}), index_arg({}, 0, 5)}},
      {CrossEntropy{-100, 0.2, 0.01}, {arg({5, 7}), index_arg({5}, 0, 7)}},
      timed(CrossEntropy{}, {arg({8, 512, 2048}), index_arg({8, 512}, 0, 2048)}),
      bad(CrossEntropy{}, {arg({5, 7}), index_arg({4}, 0, 7)}, "ShapeError"),
      bad(CrossEntropy{}, {arg({5, 7}), arg({5})}, "DTypeError"),
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
  return {in[0]};
}

ShardingRule CrossEntropyBackward::sharding(Metas in) const {
  ShardingRule r = rule("... v, ..., ..., , ... -> ... v", in);
  if (in.has(3) && in.has(4)) return r.linear({3, 4});
  return in.has(3) ? r.linear({3}) : r.linear({4});
}

CrossEntropyBackward CrossEntropyBackward::local(const Piece& piece) const {
  const Piece::Range& own = piece.operands[0].back();
  CrossEntropyBackward op = *this;
  op.begin = begin + own.begin;
  op.vocabulary = vocabulary ? vocabulary : own.global;
  return op;
}

void CrossEntropyBackward::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor& logits = in[0];
  const Tensor targets = contiguous(in[1]), saved = contiguous(in[2].detach());
  const bool has_sum = in.size() > 3 && in[3].defined(), has_lse = in.size() > 4 && in[4].defined();
  const Tensor dlses = has_lse ? contiguous(in[4].detach()) : saved;
  const int64_t classes = logits.shape().back(), all_classes = vocabulary ? vocabulary : classes;
  check_targets(name, targets, all_classes, ignore_index);
  dispatch<kFloats>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(logits, logits.rank() - 1), to(y[0], logits.rank() - 1);
    const T* src = logits.data<T>();
    T* dst = y[0].data<T>();
    const int64_t* target = targets.data<int64_t>();
    const C *lse = saved.data<C>(), *dlse = dlses.data<C>();
    const C dsum = has_sum ? *in[3].data<C>() : C(0);
    const RowLoss<C> shares(label_smoothing, z_loss, all_classes);
    constexpr C kLeast = kLeastExponent<C>;
    for_each_row<C>(from.count, classes, 1, [&](int64_t row, C* x, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        const bool counts = target[row] != ignore_index;
        const C hit = counts ? dsum : C(0), shift = lse[row], each = hit * shares.each,
                all = (counts ? hit * shares.softmax_share(shift) : C(0)) +
                      (has_lse ? dlse[row] : C(0));
        const C* values = rows::read(src + from.offset(row), from.stride, classes, x);
#pragma GCC ivdep
        for (int64_t i = 0; i < classes; ++i) {
          const C d = values[i] - shift, p = vmath::exp(d < kLeast ? kLeast : d);
          x[i] = (all == C(0) ? C(0) : (d < kLeast ? C(0) : p * all)) - each;
        }
        const int64_t at = target[row] - begin;
        if (counts && at >= 0 && at < classes) x[at] -= hit * shares.hit;
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
  return {
      {CrossEntropyBackward{}, operands({5}, 7, false)},
      {CrossEntropyBackward{.ignore_index = 2}, operands({2, 5}, 6, true)},
      {CrossEntropyBackward{-100, 0, 0, 4, 20}, piece},
      {CrossEntropyBackward{-100, 0.2, 0.01}, operands({5}, 7, true)},
      timed(CrossEntropyBackward{}, operands({8, 512}, 2048, false)),
      bad(CrossEntropyBackward{}, wrong, "ShapeError"),
      bad(CrossEntropyBackward{-100, 0, 0, 15, 20}, piece, "ValueError"),
  };
}

}  // namespace tessera::op

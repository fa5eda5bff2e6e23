// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cross_entropy/cross_entropy.h"

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/rows_impl.h"
#include "tessera/kernels/statistics_impl.h"

#include <cmath>

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

void check_targets(std::string_view name, const Tensor& targets, int64_t classes,
                   int64_t ignore_index) {
  const int64_t* t = targets.data<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (t[i] != ignore_index && (t[i] < 0 || t[i] >= classes)) {
      fail<IndexError>(name, "target ", t[i], " at row ", i, " is out of range: expected 0 to ",
                       classes - 1, ", or ", ignore_index, " to ignore the row");
    }
  }
}

}  // namespace

MetaList CrossEntropy::meta(Metas in) const {
  check(name, dtypes, in);
  const DType wide = statistics(in[0].dtype);
  return {
      {{}, wide, in[0].device}, {{}, DType::i64, in[0].device}, {in[1].shape, wide, in[0].device}};
}

ShardingRule CrossEntropy::sharding(Metas in) const {
  return rule("... v, ... -> , , ...", in).replicate("v");
}

void CrossEntropy::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor& logits = in[0];
  const Tensor targets = contiguous(in[1]);
  const int64_t classes = logits.shape().back();
  check_targets(name, targets, classes, ignore_index);
  dispatch<kFloats>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(logits, logits.rank() - 1);
    const T* src = logits.data<T>();
    const int64_t* target = targets.data<int64_t>();
    const Tensor losses = empty({std::max<int64_t>(from.count, 1)}, dtype_of<C>);
    C *loss = losses.data<C>(), *lse = y[2].data<C>();
    for_each_row<C>(from.count, classes, 2, [&](int64_t row, C* x, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* e = x + padded;
        rows::load(src + from.offset(row), from.stride, classes, x);
        const C top = rows::max(x, classes);
#pragma GCC ivdep
        for (int64_t i = 0; i < classes; ++i) e[i] = vmath::exp(x[i] - top);
        lse[row] = top + static_cast<C>(std::log(rows::sum(e, classes)));
        loss[row] = target[row] == ignore_index ? C(0) : lse[row] - x[target[row]];
      });
    });
    double sum = 0;
    int64_t count = 0;
    for (int64_t row = 0; row < from.count; ++row) {
      sum += loss[row];
      count += target[row] != ignore_index;
    }
    *y[0].data<C>() = static_cast<C>(sum);
    *y[1].data<int64_t>() = count;
  });
}

Grads CrossEntropy::vjp(const Saved& s, const Grads& dy, Needs) const {
  return {
      call(CrossEntropyBackward{ignore_index}, {s.input(0), s.input(1), s.output(2), dy[0], dy[2]}),
      Tensor()};
}

std::vector<Sample<CrossEntropy>> CrossEntropy::samples() {
  return {
      {{-100}, {arg({5, 7}), index_arg({5}, 0, 7)}},
      {{2}, {arg({2, 5, 6}), index_arg({2, 5}, 0, 6)}},
      {{-100}, {arg({5}), index_arg({}, 0, 5)}},
      timed(CrossEntropy{}, {arg({8, 512, 2048}), index_arg({8, 512}, 0, 2048)}),
      bad(CrossEntropy{}, {arg({5, 7}), index_arg({4}, 0, 7)}, "ShapeError"),
      bad(CrossEntropy{}, {arg({5, 7}), arg({5})}, "DTypeError"),
      bad(CrossEntropy{}, {arg({5, 7}), index_arg({5}, 7, 9)}, "IndexError"),
  };
}

MetaList CrossEntropyBackward::meta(Metas in) const {
  check(name, dtypes, in);
  const DType wide = statistics(in[0].dtype);
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
  ShardingRule r = rule("... v, ..., ..., , ... -> ... v", in).replicate("v");
  if (in.has(3) && in.has(4)) return r.linear({3, 4});
  return in.has(3) ? r.linear({3}) : r.linear({4});
}

void CrossEntropyBackward::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor& logits = in[0];
  const Tensor targets = contiguous(in[1]), saved = contiguous(in[2].detach());
  const bool has_sum = in.size() > 3 && in[3].defined(), has_lse = in.size() > 4 && in[4].defined();
  const Tensor dlses = has_lse ? contiguous(in[4].detach()) : saved;
  const int64_t classes = logits.shape().back();
  check_targets(name, targets, classes, ignore_index);
  dispatch<kFloats>(logits.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Rows from(logits, logits.rank() - 1), to(y[0], logits.rank() - 1);
    const T* src = logits.data<T>();
    T* dst = y[0].data<T>();
    const int64_t* target = targets.data<int64_t>();
    const C *lse = saved.data<C>(), *dlse = dlses.data<C>();
    const C dsum = has_sum ? *in[3].data<C>() : C(0);
    for_each_row<C>(from.count, classes, 1, [&](int64_t row, C* x, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        const bool counts = target[row] != ignore_index;
        const C hit = counts ? dsum : C(0), all = hit + (has_lse ? dlse[row] : C(0)),
                shift = lse[row];
        rows::load(src + from.offset(row), from.stride, classes, x);
#pragma GCC ivdep
        for (int64_t i = 0; i < classes; ++i)
          x[i] = all == C(0) ? C(0) : vmath::exp(x[i] - shift) * all;
        if (counts) x[target[row]] -= hit;
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
  return {
      {{-100}, operands({5}, 7, false)},
      {{2}, operands({2, 5}, 6, true)},
      timed(CrossEntropyBackward{}, operands({8, 512}, 2048, false)),
      bad(CrossEntropyBackward{}, wrong, "ShapeError"),
  };
}

}  // namespace tessera::op

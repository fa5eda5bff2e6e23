// SPDX-License-Identifier: Apache-2.0
// Checks, rule and CPU kernel of linear_cross_entropy. Per chunk of tokens: logits by one product,
// row statistics and the gradient in their place, then one product for each gradient. The weight's
// gradient is summed in f32 also where the products are of bf16.
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "tessera/core/context.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/linear_cross_entropy/chunks_impl.h"
#include "tessera/kernels/pointwise/cast_in_kernel.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/products/gemm_impl.h"
#include "tessera/kernels/shared/loss_impl.h"
#include "tessera/kernels/shared/rows_impl.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace tessera::op {
namespace {

// A chunk's rows of logits, which their gradients replace, and what is kept of each row.
template <class C, class P, class T> struct Chunk {
  P* logits = nullptr;
  C *top = nullptr, *sum = nullptr, *picked = nullptr, *total = nullptr;  // total: may be null
  const int64_t* targets = nullptr;
  int64_t classes = 0, stride = 0, begin = 0, ignore_index = 0;

  [[nodiscard]] TESSERA_INLINE bool holds_target(int64_t row) const {
    const int64_t at = targets[row] - begin;
    return targets[row] != ignore_index && at >= 0 && at < classes;
  }
};

// A row as C. Logits are rounded to T also where the products run on something wider, so that
// machines agree.
template <class C, class P, class T>
TESSERA_INLINE void load_row(const Chunk<C, P, T>& chunk, int64_t row, C* e) {
  const int64_t n = chunk.classes;
  rows::load(chunk.logits + row * chunk.stride, 1, n, e);
  if constexpr (!std::is_same_v<P, T>) {
    for (int64_t i = 0; i < n; ++i) e[i] = static_cast<C>(static_cast<T>(e[i]));
  }
}

// e becomes exp(e - top), 0 where that is below any effect.
template <class C> TESSERA_INLINE void exponentials(C* e, int64_t n, C top) {
  constexpr C kLeast = kLeastExponent<C>;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const C x = e[i] - top;
    const C y = vmath::exp(x < kLeast ? kLeast : x);
    e[i] = x < kLeast ? C(0) : y;
  }
}

// Statistics of a row, as cross_entropy's; `e` becomes exp(x - maximum).
template <class C, class P, class T>
TESSERA_INLINE void statistics_of(const Chunk<C, P, T>& chunk, int64_t row, C* e) {
  const int64_t n = chunk.classes, at = chunk.targets[row] - chunk.begin;
  load_row(chunk, row, e);
  const C m = rows::max(e, n);
  C base = base_of(m);
  chunk.top[row] = m;
  chunk.picked[row] = chunk.holds_target(row) ? e[at] - base : C(0);
  if (chunk.total) {
    for (int64_t i = 0; i < n; ++i) e[i] -= base;
    chunk.total[row] = rows::sum(e, n);
    base = C(0);
  }
  exponentials(e, n, base);
  chunk.sum[row] = rows::sum(e, n);
}

// Writes the gradient of a row over its logits: e is the softmax but for the factor `scale`.
template <class C, class P, class T>
TESSERA_INLINE void gradient_of(const Chunk<C, P, T>& chunk, int64_t row, const C* e, C scale,
                                const RowLoss<C>& loss) {
  const int64_t n = chunk.classes, at = chunk.targets[row] - chunk.begin;
  P* x = chunk.logits + row * chunk.stride;
  if (chunk.targets[row] == chunk.ignore_index) {
    for (int64_t i = 0; i < n; ++i) x[i] = P(0);
    return;
  }
  const C each = loss.each;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<P>(e[i] * scale - each);
  if (at >= 0 && at < n) x[at] = static_cast<P>(e[at] * scale - each - loss.hit);
}

template <class C> C lse_of(C top, C sum) { return top + static_cast<C>(std::log(sum)); }

// Tokens of a chunk.
int64_t step_of(const LinearCrossEntropy& op, int64_t tokens, int64_t classes, int64_t d,
                DType dtype) {
  return chunk_tokens(tokens, op.vocabulary ? op.vocabulary : classes, op.weight_gradient ? d : 0,
                      item_size(dtype));
}

// Rows of logits start on cache lines, and not all on the same few of a cache.
int64_t row_stride(int64_t classes) {
  const int64_t padded = (classes + 31) / 32 * 32;
  return padded % 1024 ? padded : padded + 32;
}

// Operands are T; products run on P, everything else on C.
template <class C, class P, class T> void run(const LinearCrossEntropy& op, Tensors in, Outputs y) {
  const DType type = in[0].dtype(), product = dtype_of<P>;
  const bool wide = sizeof(C) > sizeof(P);
  const Tensor targets = contiguous(in[2].detach());
  const Tensor hidden = contiguous(cast_in_kernel(in[0], product)),  // (tokens, d)
      weight = contiguous(cast_in_kernel(in[1], product));           // (classes, d)
  const int64_t tokens = targets.numel(), classes = in[1].shape()[0], d = in[1].shape()[1],
                vocabulary = op.vocabulary ? op.vocabulary : classes;
  check_targets(op.name, targets, vocabulary, op.ignore_index);
  const RowLoss<C> loss(op.label_smoothing, op.z_loss, vocabulary);
  const int64_t step = step_of(op, tokens, classes, d, type);
  const bool smooth = op.label_smoothing > 0, gradient = op.hidden_gradient || op.weight_gradient;
  const int64_t kinds = smooth ? 3 : 2;

  // Gradients are written where they go if their dtype is the products'; pieces of one are joined
  // before they are rounded.
  Tensor d_hidden = y[2], d_weight = y[3];
  const bool hidden_aside = op.hidden_gradient && (op.joiner || product != type),
             weight_aside = op.weight_gradient && (step < tokens ? dtype_of<C> : product) != type;
  if (hidden_aside) d_hidden = empty({tokens, d}, dtype_of<C>);
  if (weight_aside) d_weight = empty({classes, d}, dtype_of<C>);
  if (!op.hidden_gradient) std::memset(y[2].raw_data(), 0, static_cast<size_t>(item_size(type)));
  if (!op.weight_gradient) std::memset(y[3].raw_data(), 0, static_cast<size_t>(item_size(type)));

  const int64_t stride = row_stride(classes);
  const Tensor logits = empty({step, stride}, product), tops = empty({2, step}, dtype_of<C>);
  double total = 0;
  int64_t count = 0;
  Gemm into_weight;  // sums over all chunks
  into_weight.dtype = product;
  into_weight.m = classes;
  into_weight.n = d;
  into_weight.a = logits.raw_data();
  into_weight.a_row = 1;
  into_weight.a_col = stride;
  into_weight.b_row = d;
  into_weight.c = d_weight.raw_data();
  into_weight.c_row = d;
  into_weight.wide = wide && weight_aside;
  for (int64_t from = 0; from < tokens; from += step) {
    const int64_t rows = std::min(step, tokens - from);
    Gemm g;
    g.dtype = product;
    g.m = rows;
    g.n = classes;
    g.k = d;
    g.a = hidden.data<P>() + from * d;
    g.a_row = d;
    g.b = weight.raw_data();
    g.b_row = 1;
    g.b_col = d;
    g.c = logits.raw_data();
    g.c_row = stride;
    gemm(g);

    const Tensor sums = empty({kinds, rows}, dtype_of<C>);
    Chunk<C, P, T> chunk{logits.data<P>(), tops.data<C>(), sums.data<C>(), sums.data<C>() + rows};
    if (smooth) chunk.total = chunk.picked + rows;
    chunk.targets = targets.data<int64_t>() + from;
    chunk.classes = classes;
    chunk.stride = stride;
    chunk.begin = op.begin;
    chunk.ignore_index = op.ignore_index;
    for_each_row<C>(rows, classes, 1, [&](int64_t row, C* e, int64_t) {
      simd([&]() TESSERA_LAMBDA {
        statistics_of(chunk, row, e);
        if (op.joiner || !gradient) return;
        const C lse = lse_of(chunk.top[row], chunk.sum[row]);
        gradient_of(chunk, row, e, loss.softmax_share(lse) / chunk.sum[row], loss);
      });
    });
    if (op.joiner) {
      C* own_top = chunk.top + step;
      std::copy_n(chunk.top, rows, own_top);
      op.joiner->all_reduce(alias(tops, {rows}, {1}, tops.offset()), Join::max);
      for (int64_t row = 0; row < rows; ++row) {
        const C shift = base_of(own_top[row]) - chunk.top[row];
        if (chunk.sum[row] != C(0)) chunk.sum[row] *= static_cast<C>(std::exp(shift));
        if (chunk.holds_target(row)) chunk.picked[row] += shift;
        if (smooth && classes > 0) chunk.total[row] += static_cast<C>(classes) * shift;
      }
      op.joiner->all_reduce(sums, Join::sum);
      for_each_row<C>(gradient ? rows : 0, classes, 1, [&](int64_t row, C* e, int64_t) {
        simd([&]() TESSERA_LAMBDA {
          const C lse = lse_of(chunk.top[row], chunk.sum[row]);
          load_row(chunk, row, e);
          exponentials(e, classes, base_of(chunk.top[row]));
          gradient_of(chunk, row, e, loss.softmax_share(lse) / chunk.sum[row], loss);
        });
      });
    }
    for (int64_t row = 0; row < rows; ++row) {
      if (chunk.targets[row] == op.ignore_index) continue;
      total += loss.value(chunk.top[row], static_cast<C>(std::log(chunk.sum[row])),
                          chunk.picked[row], smooth ? chunk.total[row] : C(0));
      ++count;
    }

    if (op.hidden_gradient) {
      Gemm h;
      h.dtype = product;
      h.m = rows;
      h.n = d;
      h.k = classes;
      h.a = logits.raw_data();
      h.a_row = stride;
      h.b = weight.raw_data();
      h.b_row = d;
      h.c = static_cast<std::byte*>(d_hidden.raw_data()) + from * d * item_size(d_hidden.dtype());
      h.c_row = d;
      h.wide = wide && hidden_aside;
      gemm(h);
    }
    if (op.weight_gradient) {
      into_weight.k = rows;
      into_weight.b = g.a;
      into_weight.accumulate = from > 0;
      gemm(into_weight);
    }
  }
  if (op.hidden_gradient && op.joiner && tokens > 0) op.joiner->all_reduce(d_hidden, Join::sum);
  if (hidden_aside) {
    const Tensor shaped = alias(d_hidden, y[2].shape(), y[2].strides(), d_hidden.offset());
    Cast{{}, type}.cpu(Tensors(&shaped, 1), y.subspan(2, 1));
  }
  if (op.weight_gradient && tokens == 0)
    std::memset(d_weight.raw_data(), 0,
                static_cast<size_t>(classes * d * item_size(d_weight.dtype())));
  if (weight_aside) Cast{{}, type}.cpu(Tensors(&d_weight, 1), y.subspan(3, 1));
  *y[0].data<C>() = static_cast<C>(total);
  *y[1].data<int64_t>() = count;
}

}  // namespace

MetaList LinearCrossEntropy::meta(Metas in) const {
  const auto &hidden = in[0], &weight = in[1], &targets = in[2];
  if (!dtypes.has(hidden.dtype) || weight.dtype != hidden.dtype || targets.dtype != DType::i64) {
    fail<DTypeError>(name, "hidden and weight must share one dtype of ", dtypes,
                     ", targets be i64: hidden is ", hidden, ", weight ", weight, ", targets ",
                     targets);
  }
  if (hidden.shape.rank() < 1 || weight.shape.rank() != 2 ||
      weight.shape[1] != hidden.shape.back()) {
    fail<ShapeError>(name, "weight must be (V, D) for hidden (..., D): hidden is ", hidden,
                     ", weight is ", weight);
  }
  if (!(targets.shape == hidden.shape.without(hidden.shape.rank() - 1))) {
    fail<ShapeError>(name, "targets must hold one class per row of hidden (..., D): hidden is ",
                     hidden, ", targets are ", targets);
  }
  check_loss_options(name, label_smoothing, z_loss);
  check_class_piece(name, begin, weight.shape[0], vocabulary, weight);
  if (!joiner && vocabulary && vocabulary != weight.shape[0]) {
    fail<ValueError>(name, "weight ", weight, " is a piece of a vocabulary of ", vocabulary,
                     ", and nothing joins it to the others");
  }
  const TensorMeta none{{}, hidden.dtype, hidden.device};
  return {{{}, compute_dtype(hidden.dtype), hidden.device},
          {{}, DType::i64, hidden.device},
          hidden_gradient ? hidden : none,
          weight_gradient ? weight : none};
}

ShardingRule LinearCrossEntropy::sharding(Metas in) const {
  const auto text = [&]() -> RuleText {
    if (hidden_gradient)
      return weight_gradient ? RuleText("... d, v d, ... -> , , ... d, v d")
                             : RuleText("... d, v d, ... -> , , ... d, ");
    return weight_gradient ? RuleText("... d, v d, ... -> , , , v d")
                           : RuleText("... d, v d, ... -> , , , ");
  }();
  return rule(text, in).replicate("d").joins_inside('v');
}

LinearCrossEntropy LinearCrossEntropy::local(const Piece& piece) const {
  const Piece::Range& own = piece.range(1, 0);
  LinearCrossEntropy op = *this;
  op.begin = begin + own.begin;
  op.vocabulary = vocabulary ? vocabulary : own.global;
  op.joiner = piece.joiner;
  return op;
}

void LinearCrossEntropy::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  dispatch<kFloats>(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    if constexpr (sizeof(T) < sizeof(C)) {
      if (gemm_takes(dtype_of<T>)) return run<C, T, T>(*this, in, y);
    }
    run<C, C, T>(*this, in, y);
  });
}

Grads LinearCrossEntropy::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  Grads out(3);
  for (size_t i = 2; i < 4; ++i) {
    if (dy[i].defined())
      fail<AutogradError>(name, LinearCrossEntropyBackward::vjp.why, ": given dy of ",
                          dy[i].meta());
  }
  if (!dy[0].defined()) return out;
  const bool made[] = {hidden_gradient, weight_gradient};
  for (size_t i = 0; i < 2; ++i) {
    if (!needs[i]) continue;
    if (!made[i])
      fail<AutogradError>(name, "the gradient of ", i ? "weight" : "hidden",
                          " was not made in the forward pass: set ",
                          i ? "weight_gradient" : "hidden_gradient");
    out[i] = call(LinearCrossEntropyBackward{}, {s.output(2 + i), dy[0]});
  }
  return out;
}

Cost LinearCrossEntropy::cost(Metas in, Metas out) const {
  Cost c = detail::bytes_moved(in, out);
  c.flops = 2.0 * (1 + hidden_gradient + weight_gradient) *
            static_cast<double>(in[0].shape.numel()) * static_cast<double>(in[1].shape[0]);
  return c;
}

int64_t LinearCrossEntropy::workspace(Metas in, Device device) const {
  const DType type = in[0].dtype, wide = compute_dtype(type);
  const bool cast = type != wide && !gemm_takes(type);
  const int64_t product = item_size(cast ? wide : type), sum = item_size(wide);
  const int64_t hidden = in[0].shape.numel(), weight = in[1].shape.numel(),
                tokens = in[2].shape.numel(), classes = in[1].shape[0];
  if (device.is_cuda()) {
    const int64_t item = item_size(type),
                  step = device_chunk_tokens(tokens, vocabulary ? vocabulary : classes, item);
    int64_t bytes = step * device_row_stride(classes) * item;
    if (hidden_gradient && joiner && type != wide) bytes += hidden * sum;
    if (weight_gradient && type != wide && step < tokens) bytes += weight * sum;
    return bytes;
  }
  const int64_t step = step_of(*this, tokens, classes, in[1].shape[1], type);
  int64_t bytes = step * row_stride(classes) * product;
  if (cast) bytes += (hidden + weight) * product;
  if (hidden_gradient && (joiner || cast)) bytes += hidden * sum;
  if (weight_gradient && type != wide && (cast || step < tokens)) bytes += weight * sum;
  return bytes;
}

std::vector<Sample<LinearCrossEntropy>> LinearCrossEntropy::samples() {
  const auto operands = [](Shape tokens, int64_t d, int64_t classes) {
    Shape hidden = tokens;
    hidden.push_back(d);
    return std::vector<Arg>{arg(hidden), arg({classes, d}), index_arg(tokens, 0, classes)};
  };
  using L = LinearCrossEntropy;
  const Arg hidden = arg({2, 2}).listed({1, 0.5, -1, 2}),
            weight = arg({3, 2}).listed({1, -1, 0.5, 2, 0, 1}),
            targets = arg({2}).listed({0, 2}).as(DType::i64);
  return {
      {L{}, operands({6}, 5, 7)},
      {L{.ignore_index = 2}, operands({2, 5}, 6, 8)},
      {L{.label_smoothing = 0.2, .z_loss = 0.01}, operands({5}, 8, 6)},
      {L{.hidden_gradient = false}, operands({5}, 6, 7)},
      {L{.weight_gradient = false}, operands({5}, 6, 7)},
      {L{.hidden_gradient = false, .weight_gradient = false}, operands({5}, 6, 7)},
      {L{}, operands({}, 5, 6)},
      {L{}, operands({70}, 6, 40)},
      {L{}, operands({3}, 2, 520)},
      {L{.z_loss = 0.01}, operands({1030}, 2, 3)},  // two chunks
      known(L{}, {hidden, weight, targets},
            {{3.254086410610201},
             {2},
             {-0.5, 2.1522337695316582, 0.40951304901537877, 0.8141154400387307},
             {-0.7892861068809213, -0.3915738921954439, -0.24045388426891512, 1.921199980452403,
              1.0297399911498366, -1.5296260882569594}}),
      known(L{.label_smoothing = 0.25, .z_loss = 0.5}, {hidden, weight, targets},
            {{12.421410218093236},
             {2},
             {0.6507223569660254, 4.099310978584713, 1.8007931396335235, 7.6144682442470994},
             {-0.10904532060467707, -0.2484228279910278, -2.082050924125642, 8.350740571482175,
              0.53989926198422, 0.32868800683117805}}),
      timed(L{}, operands({8, 512}, 256, 2048)),
      timed(L{}, operands({2, 512}, 768, 50257)),
      bad(L{}, {arg({5, 6}), arg({7, 5}), index_arg({5}, 0, 7)}, "ShapeError"),
      bad(L{}, {arg({5, 6}), arg({7, 6}), index_arg({4}, 0, 7)}, "ShapeError"),
      bad(L{}, {arg({5, 6}), arg({7, 6}), arg({5})}, "DTypeError"),
      bad(L{}, {arg({5, 6}).as(DType::f32), arg({7, 6}).as(DType::bf16), index_arg({5}, 0, 7)},
          "DTypeError"),
      bad(L{}, {arg({5, 6}), arg({7, 6}), index_arg({5}, 7, 9)}, "IndexError"),
      bad(L{.label_smoothing = -0.1}, operands({5}, 6, 7), "ValueError"),
      bad(L{.begin = 1, .vocabulary = 7}, operands({5}, 6, 7), "ValueError"),
      bad(L{.vocabulary = 20}, operands({5}, 6, 7), "ValueError"),
  };
}

MetaList LinearCrossEntropyBackward::meta(Metas in) const {
  if (!dtypes.has(in[0].dtype) || in[1].dtype != compute_dtype(in[0].dtype)) {
    fail<DTypeError>(name, "the gradient must be of ", dtypes, ", dsum f32 (f64 for f64): given ",
                     in[0], " and ", in[1]);
  }
  if (in[1].shape.rank() != 0)
    fail<ShapeError>(name, "dsum must be 0-dim: given ", in[1], " for the gradient ", in[0]);
  return {in[0]};
}

ShardingRule LinearCrossEntropyBackward::sharding(Metas in) const {
  return pointwise_rule(in, in[0].shape).linear({0}).linear({1});
}

void LinearCrossEntropyBackward::cpu(Tensors in, Outputs y) const {
  const NoGrad guard;
  const Tensor x = contiguous(in[0].detach());
  dispatch<kFloats>(x.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const T* from = x.data<T>();
    T* to = y[0].data<T>();
    const C factor = *in[1].data<C>();
    parallel_for(x.numel(), 16384, [&](int64_t begin, int64_t end) {
      simd([&]() TESSERA_LAMBDA {
        const T* __restrict f = from;
        T* __restrict t = to;
        for (int64_t i = begin; i < end; ++i) t[i] = static_cast<T>(static_cast<C>(f[i]) * factor);
      });
    });
  });
}

std::vector<Sample<LinearCrossEntropyBackward>> LinearCrossEntropyBackward::samples() {
  using B = LinearCrossEntropyBackward;
  const auto scalar = arg({}).statistic();
  return {
      {B{}, {arg({5, 7}), scalar}},
      {B{}, {arg({2, 5, 6}), scalar}},
      {B{}, {arg({}), scalar}},
      known(B{}, {arg({2, 2}).listed({1, -2, 0.5, 3}), arg({}).listed({2}).statistic()},
            {{2, -4, 1, 6}}),
      timed(B{}, {arg({2048, 256}), scalar}),
      bad(B{}, {arg({5, 7}), arg({1}).statistic()}, "ShapeError"),
      bad(B{}, {arg({5, 7}), arg({}).as(DType::bf16)}, "DTypeError"),
  };
}

}  // namespace tessera::op

namespace tessera {

CrossEntropyResult linear_cross_entropy(const Tensor& hidden, const Tensor& weight,
                                        const Tensor& targets, const CrossEntropyOptions& options) {
  const Context& context = Context::current();
  const bool records = context.grad_enabled && context.recorder;
  const auto wants = [&](const Tensor& x) { return records && x.defined() && x.requires_grad(); };
  auto [sum, count, d_hidden, d_weight] =
      call(op::LinearCrossEntropy{options.ignore_index, options.label_smoothing, options.z_loss,
                                  wants(hidden), wants(weight)},
           {hidden, weight, as_index(targets)});
  return {sum, count};
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Checks, sharding, gradients and CPU kernels of attention sinks: a gate for each row, a batch of
// gates at a time.
#include "tessera/kernels/attention/sink.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/attention/sink_impl.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/shared/rows_impl.h"

namespace tessera::op {
namespace {

void check(std::string_view name, DTypeSet dtypes, bool heads_inner, Metas in) {
  const TensorMeta &o = in[0], &lse = in[1], &sink = in[2];
  const auto all = [&] { return concat("o is ", o, ", lse is ", lse, ", sink is ", sink); };
  if (!dtypes.has(o.dtype)) fail<DTypeError>(name, "o must be of ", dtypes, ": ", all());
  const DType wide = compute_dtype(o.dtype);
  if (lse.dtype != wide || sink.dtype != wide)
    fail<DTypeError>(name, "lse and sink must be ", wide, " for o of ", o.dtype, ": ", all());
  const int head = heads_inner ? 2 : 1, time = heads_inner ? 1 : 2;
  Shape rows, heads;
  if (o.shape.rank() == 4) {
    rows = {o.shape[0], o.shape[head], o.shape[time]};
    heads = {o.shape[head]};
  }
  if (o.shape.rank() != 4 || lse.shape != rows || sink.shape != heads) {
    fail<ShapeError>(name, "expected o ", heads_inner ? "(B, T, H, D)" : "(B, H, T, D)",
                     ", lse (B, H, T) and sink (H): ", all());
  }
}

// The factors of a few rows at once: the exponential of one alone takes longer than its row.
constexpr int64_t kGates = 16;
template <class C>
TESSERA_INLINE void gates_of_rows(const Gates<C>& gates, int64_t row, int64_t n, C* to) {
  alignas(64) C lse[kGates] = {}, sink[kGates] = {};
  const bool inner = gates.heads_inner;
  const int64_t columns = inner ? gates.heads : gates.times,
                rows = inner ? gates.times : gates.heads;
  int64_t column = row % columns, line = row / columns % rows, batch = row / columns / rows;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t head = inner ? column : line, time = inner ? line : column;
    lse[i] = gates.lse[(batch * gates.heads + head) * gates.times + time];
    sink[i] = gates.sink[head];
    if (++column < columns) continue;
    column = 0;
    if (++line < rows) continue;
    line = 0;
    ++batch;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < kGates; ++i) to[i] = Gates<C>::of(lse[i], sink[i]);
}

int64_t rows_at_a_time(int64_t d) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(d, 1)); }

std::vector<Arg> operands(bool inner, int64_t b, int64_t h, int64_t t, int64_t d) {
  return {inner ? arg({b, t, h, d}) : arg({b, h, t, d}), arg({b, h, t}).statistic(),
          arg({h}).statistic()};
}
std::vector<Arg> with_dy(std::vector<Arg> in) {
  in.push_back(in[0]);
  return in;
}

}  // namespace

MetaList AttentionSink::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  return {in[0]};
}

ShardingRule AttentionSink::sharding(Metas in) const {
  ShardingRule r = heads_inner ? rule("b t h d, b h t, h -> b t h d", in)
                               : rule("b h t d, b h t, h -> b h t d", in);
  return r.linear({0});
}

void AttentionSink::cpu(Tensors in, Outputs y) const {
  if (y[0].numel() == 0) return;
  const NoGrad guard;
  const Tensor o = contiguous(in[0].detach()), lse = contiguous(in[1].detach()),
               sink = contiguous(in[2].detach());
  dispatch<kFloats>(o.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Gates<C> gates(o, lse, sink, heads_inner);
    const int64_t d = o.shape()[3];
    const T* from = o.data<T>();
    T* to = y[0].data<T>();
    parallel_for(o.numel() / d, rows_at_a_time(d), [&](int64_t begin, int64_t end) {
      simd([&]() TESSERA_LAMBDA {
        alignas(64) C some[kGates];
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = (row - begin) % kGates;
          if (at == 0) gates_of_rows(gates, row, std::min(kGates, end - row), some);
          const C gate = some[at];
          const T* __restrict x = from + row * d;
          T* __restrict out = to + row * d;
#pragma GCC ivdep
          for (int64_t i = 0; i < d; ++i) out[i] = static_cast<T>(static_cast<C>(x[i]) * gate);
        }
      });
    });
  });
}

Grads AttentionSink::vjp(const Saved& s, const Grads& dy, Needs needs) const {
  auto [d_o, dlse] =
      call(AttentionSinkBackward{heads_inner}, {s.input(0), s.input(1), s.input(2), dy[0]});
  return {d_o, dlse, needs[2] ? neg(sum(dlse, {0, 2})) : Tensor()};
}

std::vector<Sample<AttentionSink>> AttentionSink::samples() {
  auto heads = operands(false, 2, 5, 6, 8);
  heads[2] = arg({6}).statistic();
  auto narrow = operands(false, 2, 5, 6, 8);
  narrow[1] = arg({2, 5, 6}).as(DType::f16);
  return {
      {{false}, operands(false, 5, 6, 7, 5)},
      {{true}, operands(true, 5, 6, 7, 5)},
      {{true}, operands(true, 2, 3, 1, 40)},
      known(AttentionSink{false},
            {arg({1, 2, 1, 2}).listed({1, 2, -1, 0.5}), arg({1, 2, 1}).listed({0.5, 2}).statistic(),
             arg({2}).listed({1, -1}).statistic()},
            {{0.3775406687981454, 0.7550813375962908, -0.9525741268224334, 0.4762870634112167}}),
      timed(AttentionSink{true}, operands(true, 1, 64, 1024, 64)),
      bad(AttentionSink{false}, heads, "ShapeError"),
      bad(AttentionSink{true}, operands(false, 2, 5, 6, 8), "ShapeError"),
      bad(AttentionSink{false}, narrow, "DTypeError"),
  };
}

MetaList AttentionSinkBackward::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  if (!(in[3].shape == in[0].shape))
    fail<ShapeError>(name, "dy must be like o, ", in[0], ": given ", in[3]);
  if (in[3].dtype != in[0].dtype)
    fail<DTypeError>(name, "dy must be like o, ", in[0], ": given ", in[3]);
  return {in[0], in[1]};
}

ShardingRule AttentionSinkBackward::sharding(Metas in) const {
  ShardingRule r = heads_inner ? rule("b t h d, b h t, h, b t h d -> b t h d, b h t", in)
                               : rule("b h t d, b h t, h, b h t d -> b h t d, b h t", in);
  return r.linear({3});
}

void AttentionSinkBackward::cpu(Tensors in, Outputs y) const {
  if (y[1].numel() == 0) return;
  const NoGrad guard;
  const Tensor o = contiguous(in[0].detach()), lse = contiguous(in[1].detach()),
               sink = contiguous(in[2].detach()), dy = contiguous(in[3].detach());
  dispatch<kFloats>(o.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Gates<C> gates(o, lse, sink, heads_inner);
    const int64_t d = o.shape()[3];
    const T *o_data = o.data<T>(), *dy_data = dy.data<T>();
    T* do_data = y[0].data<T>();
    C* dlse = y[1].data<C>();
    for_each_row<C>(lse.numel(), d, 2, [&](int64_t row, C* x, int64_t padded) {
      simd([&]() TESSERA_LAMBDA {
        C* g = x + padded;
        const int64_t place = gates.place(row);
        const C gate = gates.of(place);
        rows::load<C>(o_data + row * d, 1, d, x);
        rows::load<C>(dy_data + row * d, 1, d, g);
        dlse[place] = rows::dot(x, g, d) * gate * (C(1) - gate);
        for (int64_t i = 0; i < d; ++i) g[i] *= gate;
        rows::store(g, d, do_data + row * d, 1);
      });
    });
  });
}

std::vector<Sample<AttentionSinkBackward>> AttentionSinkBackward::samples() {
  auto wrong = with_dy(operands(false, 2, 5, 6, 8));
  wrong[3] = arg({2, 5, 6, 7});
  return {
      {{false}, with_dy(operands(false, 5, 6, 7, 5))},
      {{true}, with_dy(operands(true, 5, 6, 7, 5))},
      {{true}, with_dy(operands(true, 2, 3, 1, 40))},
      {{true}, with_dy(operands(true, 2, 5, 2, 40))},
      known(AttentionSinkBackward{false},
            {arg({1, 2, 1, 2}).listed({1, 2, -1, 0.5}), arg({1, 2, 1}).listed({0.5, 2}).statistic(),
             arg({2}).listed({1, -1}).statistic(), arg({1, 2, 1, 2}).listed({1, -2, 0.5, 3})},
            {{0.3775406687981454, -0.7550813375962908, 0.4762870634112167, 2.8577223804673},
             {-0.7050111366047835, 0.045176659730912}}),
      timed(AttentionSinkBackward{true}, with_dy(operands(true, 1, 64, 1024, 64))),
      bad(AttentionSinkBackward{false}, wrong, "ShapeError"),
  };
}

}  // namespace tessera::op

namespace tessera {

Tensor attention_sink(const Tensor& o, const Tensor& lse, const Tensor& sink, bool heads_inner) {
  const bool other = is_floating(sink.dtype()) && sink.dtype() != lse.dtype();
  return call(op::AttentionSink{heads_inner},
              {o, lse, other ? cast(sink, compute_dtype(o.dtype())) : sink});
}

}  // namespace tessera

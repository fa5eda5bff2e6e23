// SPDX-License-Identifier: Apache-2.0
#include "tessera/kernels/cudnn/attention_graphs_impl.h"

#include <limits>

namespace tessera::cudnn {
namespace {

using Id = Graph::Id;

// A slice of heads begins anywhere in it.
constexpr int64_t kLseAlignment = 4;

// The part of the graph that both directions share.
struct Builder : Graph {
  const AttentionGraph& c;
  Layout scores, rows;  // (B, H, T, S), (B, H, T, 1)
  Id q, k, v;           // k as (B, Hkv, D, S)
  Id scale;

  Builder(const Library& library, const AttentionGraph& given, bool v_transposed)
      : Graph(library), c(given) {
    const auto& [b, h, t, d] = c.q.dims;
    scores = Layout::row_major({b, h, t, c.k.dims[2]});
    rows = Layout::row_major({b, h, t, 1});
    q = tensor(c.type, c.q);
    k = tensor(c.type, c.k.transposed());
    v = tensor(c.type, v_transposed ? c.v.transposed() : c.v);
    scale = value(static_cast<float>(c.scale));
  }
  Id apply(Pointwise how, std::initializer_list<Id> x, const Layout& layout) {
    const Id y = inner(DataType::f32, layout);
    pointwise(how, x, y);
    return y;
  }
  Id product(Id a, Id b, const Layout& layout) {
    const Id y = inner(DataType::f32, layout);
    matmul(a, b, y);
    return y;
  }
  Id scaled_scores() { return apply(Pointwise::multiply, {product(q, k, scores), scale}, scores); }
  // -inf at what a query does not see.
  Id masked(Id x) {
    if (!c.causal) return x;
    const auto place = [&](int64_t axis) {
      const Id y = inner(DataType::i32, scores);
      index(axis, x, y);
      return y;
    };
    const auto seen = [&](Pointwise compare, Id a, Id b) {
      const Id y = inner(DataType::boolean, scores);
      pointwise(compare, {a, b}, y, DataType::boolean);
      const Id z = inner(DataType::f32, scores);
      pointwise(Pointwise::select, {x, value(-std::numeric_limits<float>::infinity()), y}, z);
      x = z;
    };
    const Id query = place(2), key = place(3);
    seen(Pointwise::greater_equal, query, key);
    if (c.window == 0) return x;
    const Id query2 = place(2), key2 = place(3), last = inner(DataType::i32, scores);
    pointwise(Pointwise::add, {key2, value(static_cast<int32_t>(c.window))}, last, DataType::i32);
    seen(Pointwise::greater, last, query2);
    return x;
  }
};

}  // namespace

AttentionPlan attention_plan(const Library& library, const Graph::Target& target,
                             const AttentionGraph& c) {
  Builder g(library, c, false);
  const Id x = g.masked(g.scaled_scores());
  const Id top = g.inner(DataType::f32, g.rows), sum = g.inner(DataType::f32, g.rows);
  g.reduce(Reduction::max, x, top);
  const Id e =
      g.apply(Pointwise::exp, {g.apply(Pointwise::subtract, {x, top}, g.scores)}, g.scores);
  g.reduce(Reduction::add, e, sum);
  const Id lse = g.tensor(DataType::f32, g.rows);
  g.pointwise(Pointwise::add, {top, g.apply(Pointwise::log, {sum}, g.rows)}, lse);
  const Id p = g.inner(c.type, g.scores);
  g.pointwise(Pointwise::divide, {e, sum}, p);
  const Id o = g.tensor(c.type, c.o);
  g.matmul(p, g.v, o);
  return {std::move(g).finalize(target), g.q, g.k, g.v, o, lse};
}

AttentionBackwardPlan attention_backward_plan(const Library& library, const Graph::Target& target,
                                              const AttentionBackwardGraph& c) {
  Builder g(library, c, true);
  const Id o = g.tensor(c.type, c.o), dout = g.tensor(c.type, c.dout);
  const Id lse = g.tensor(DataType::f32, g.rows, kLseAlignment);
  const Id dq = g.tensor(c.type, c.dq), dk = g.tensor(c.type, c.dk), dv = g.tensor(c.type, c.dv);

  const Id terms = g.apply(Pointwise::multiply, {dout, o}, Layout::row_major(c.o.dims));
  const Id sum = g.inner(DataType::f32, g.rows), delta = g.tensor(DataType::f32, g.rows);
  g.reduce(Reduction::add, terms, sum);
  g.pointwise(Pointwise::multiply, {sum, g.value(1.0F)}, delta);

  // Sums over the query heads of a key head.
  const auto sum_group = [&](Id left, Id right, Id y, const Layout& layout) {
    std::array<int64_t, 4> dims = layout.dims;
    if (dims[1] == c.q.dims[1]) return g.matmul(left, right, y);
    dims[1] = c.q.dims[1];
    const Id whole = g.inner(c.type, Layout::row_major(dims));
    g.matmul(left, right, whole);
    g.reduce(Reduction::add, whole, y);
  };
  const auto turned = [&](Id x) {  // (B, H, S, T) of (B, H, T, S), in the operands' type
    const Id y = g.inner(c.type, g.scores.transposed());
    g.reshape(x, y);
    return y;
  };
  const Id shifted = g.apply(Pointwise::subtract, {g.scaled_scores(), lse}, g.scores);
  const Id p = g.apply(Pointwise::exp, {g.masked(shifted)}, g.scores);
  sum_group(turned(p), dout, dv, c.dv);

  const Id dp = g.product(dout, g.v, g.scores);
  const Id centered = g.apply(Pointwise::subtract, {dp, delta}, g.scores);
  const Id ds = g.apply(Pointwise::multiply,
                        {g.apply(Pointwise::multiply, {centered, p}, g.scores), g.scale}, g.scores);
  sum_group(turned(ds), g.q, dk, c.dk);

  const Id keys = g.inner(c.type, c.k);
  g.reshape(g.k, keys);
  Id sums = 0;
  if (c.deterministic) {
    g.matmul(ds, keys, dq);
  } else {
    sums = g.tensor(DataType::f32, Layout::row_major(c.q.dims));
    g.matmul(ds, keys, sums);
    g.pointwise(Pointwise::identity, {sums}, dq);
  }
  return {std::move(g).finalize(target), g.q, g.k, g.v, o, lse, dout, dq, dk, dv, delta, sums};
}

}  // namespace tessera::cudnn

// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and gradients of attention; its CPU kernels are in attention_cpu.cpp.
#include "tessera/kernels/attention/attention.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/statistics_impl.h"

namespace tessera::op {
namespace {

struct Sizes {
  int64_t b, h, t, d, h_kv, s;
};
Sizes sizes_of(bool heads_inner, Metas in) {
  const Shape &q = in[0].shape, &k = in[1].shape;
  const int head = heads_inner ? 2 : 1, time = heads_inner ? 1 : 2;
  return {q[0], q[head], q[time], q[3], k[head], k[time]};
}

void check(std::string_view name, DTypeSet dtypes, bool heads_inner, Metas in) {
  const char* order = heads_inner ? "(B, T, H, D)" : "(B, H, T, D)";
  const auto all = [&] { return concat("q is ", in[0], ", k is ", in[1], ", v is ", in[2]); };
  for (size_t i = 0; i < 3; ++i) {
    if (in[i].shape.rank() != 4) fail<ShapeError>(name, "operands must be ", order, ": ", all());
    if (in[i].dtype != in[0].dtype || !dtypes.has(in[i].dtype)) {
      fail<DTypeError>(name, "operands must share one dtype of ", dtypes, ": ", all(),
                       "; cast one");
    }
  }
  if (!(in[1].shape == in[2].shape))
    fail<ShapeError>(name, "k and v must have one shape ", order, ": ", all());
  const Sizes z = sizes_of(heads_inner, in);
  if (in[1].shape[0] != z.b || in[1].shape[3] != z.d)
    fail<ShapeError>(name, "batch and head size must be equal, ", order, ": ", all());
  if (z.h_kv == 0 ? z.h != 0 : z.h % z.h_kv != 0) {
    fail<ShapeError>(name, "the ", z.h, " query heads must be a multiple of the ", z.h_kv,
                     " key heads, ", order, ": ", all());
  }
}

// Factors: batch, key heads (a group of query heads each), queries; head size stays whole, and keys
// in the forward op.
struct Factors {
  DimFactor b, h, h_kv, t, s, d;
  [[nodiscard]] std::array<DimFactor, 4> queries(bool inner) const {
    return inner ? std::array{b, t, h, d} : std::array{b, h, t, d};
  }
  [[nodiscard]] std::array<DimFactor, 4> keys(bool inner) const {
    return inner ? std::array{b, s, h_kv, d} : std::array{b, h_kv, s, d};
  }
  [[nodiscard]] std::array<DimFactor, 3> rows() const { return {b, h, t}; }
};
Factors add_factors(ShardingRule& r, const Sizes& z, std::string_view whole) {
  const auto f = [&](int64_t size, char letter, int64_t scale = 1) {
    return DimFactor{static_cast<int16_t>(r.add_factor(size, letter)), scale};
  };
  Factors x{f(z.b, 'b'), {}, f(z.h_kv, 'h'), f(z.t, 't'), f(z.s, 's'), f(z.d, 'd')};
  x.h = {x.h_kv.factor, z.h_kv ? z.h / z.h_kv : 1};
  r.replicate(whole);
  return x;
}

// A piece of the queries starts later among the keys, and earlier among a piece of the keys.
int64_t local_offset(int64_t offset, bool heads_inner, const Piece& piece) {
  const int time = heads_inner ? 1 : 2;
  return offset + piece.range(0, time).begin - piece.range(1, time).begin;
}

template <class Op> std::vector<Op> variants() {
  return {{true, false, 0, 0}, {false, false, 0.3, 0}, {true, true, 0, 2}, {false, true, 0, 0}};
}
std::vector<Arg> qkv(bool inner, int64_t b, int64_t h, int64_t hkv, int64_t t, int64_t s,
                     int64_t d) {
  if (inner) return {arg({b, t, h, d}), arg({b, s, hkv, d}), arg({b, s, hkv, d})};
  return {arg({b, h, t, d}), arg({b, hkv, s, d}), arg({b, hkv, s, d})};
}

}  // namespace

MetaList Attention::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  const Sizes z = sizes_of(heads_inner, in);
  return {in[0], {{z.b, z.h, z.t}, statistics(in[0].dtype), in[0].device}};
}

ShardingRule Attention::sharding(Metas in) const {
  ShardingRule r;
  const Factors f = add_factors(r, sizes_of(heads_inner, in), "sd");
  return r.operand(f.queries(heads_inner))
      .operand(f.keys(heads_inner))
      .operand(f.keys(heads_inner))
      .outputs_from_here()
      .operand(f.queries(heads_inner))
      .operand(f.rows());
}

Attention Attention::local(const Piece& piece) const {
  Attention op = *this;
  op.offset = local_offset(offset, heads_inner, piece);
  return op;
}

Grads Attention::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Tensor dout = dy[0].defined() ? dy[0] : zeros_like(s.output(0));
  auto [dq, dk, dv] =
      call(AttentionBackward{causal, heads_inner, scale, offset},
           {s.input(0), s.input(1), s.input(2), s.output(0), s.output(1), dout, dy[1]});
  return {dq, dk, dv};
}

Cost Attention::cost(Metas in, Metas out) const {
  const Sizes z = sizes_of(heads_inner, in);
  Cost c = detail::bytes_moved(in, out);
  c.flops = 4.0 * static_cast<double>(z.b * z.h * z.t) * static_cast<double>(z.s * z.d) *
            (causal ? 0.5 : 1);
  return c;
}

std::vector<Sample<Attention>> Attention::samples() {
  std::vector<Sample<Attention>> all;
  for (const Attention& v : variants<Attention>()) {
    all.push_back({v, qkv(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 6, 8)});
    all.push_back({v, qkv(v.heads_inner, 5, 2, 2, 5, 5, 5)});
  }
  all.push_back({Attention{true, false, 0, 0}, qkv(false, 1, 2, 1, 131, 131, 24)});
  all.push_back(
      {Attention{true, false, 0, -2}, qkv(false, 1, 1, 1, 5, 5, 4)});  // the first rows see nothing
  all.push_back(timed(Attention{true, true, 0, 0}, qkv(true, 8, 16, 16, 512, 512, 16)));
  all.push_back(timed(Attention{true, true, 0, 0}, qkv(true, 1, 16, 4, 1024, 1024, 64)));
  all.push_back(
      bad(Attention{}, {arg({2, 3, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError"));
  all.push_back(
      bad(Attention{}, {arg({2, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError"));
  all.push_back(bad(Attention{},
                    {arg({2, 2, 5, 8}).as(DType::f32), arg({2, 2, 5, 8}).as(DType::bf16),
                     arg({2, 2, 5, 8}).as(DType::f32)},
                    "DTypeError"));
  return all;
}

MetaList AttentionBackward::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  const Sizes z = sizes_of(heads_inner, in);
  if (!(in[3].shape == in[0].shape) || !(in[5].shape == in[0].shape)) {
    fail<ShapeError>(name, "o and dout must be like q, ", in[0], ": o is ", in[3], ", dout is ",
                     in[5]);
  }
  if (in[3].dtype != in[0].dtype || in[5].dtype != in[0].dtype) {
    fail<DTypeError>(name, "o and dout must be like q, ", in[0], ": o is ", in[3], ", dout is ",
                     in[5]);
  }
  for (size_t i : {4, 6}) {
    if (i == 6 && !in.has(i)) continue;
    if (!(in[i].shape == Shape{z.b, z.h, z.t}) || in[i].dtype != statistics(in[0].dtype)) {
      fail<ShapeError>(name, i == 4 ? "lse" : "dlse", " must be ", statistics(in[0].dtype),
                       Shape{z.b, z.h, z.t}, ": given ", in[i]);
    }
  }
  return {in[0], in[1], in[2]};
}

ShardingRule AttentionBackward::sharding(Metas in) const {
  ShardingRule r;
  // With lse known, keys no longer depend on each other: dq is a sum over them.
  const Factors f = add_factors(r, sizes_of(heads_inner, in), "d");
  const auto q = f.queries(heads_inner);
  const auto k = f.keys(heads_inner);
  r.operand(q).operand(k).operand(k).operand(q).operand(f.rows()).operand(q);
  if (in.size() > 6) {
    if (in.has(6)) r.operand(f.rows());
    else r.operand(std::span<const DimFactor>{});
  }
  r.outputs_from_here().operand(q).operand(k).operand(k);
  if (in.has(6)) return r.linear({5, 6});
  return r.linear({5});
}

AttentionBackward AttentionBackward::local(const Piece& piece) const {
  AttentionBackward op = *this;
  op.offset = local_offset(offset, heads_inner, piece);
  return op;
}

Cost AttentionBackward::cost(Metas in, Metas out) const {
  const Sizes z = sizes_of(heads_inner, in);
  Cost c = detail::bytes_moved(in, out);
  c.flops = 10.0 * static_cast<double>(z.b * z.h * z.t) * static_cast<double>(z.s * z.d) *
            (causal ? 0.5 : 1);
  return c;
}

std::vector<Sample<AttentionBackward>> AttentionBackward::samples() {
  std::vector<Sample<AttentionBackward>> all;
  // An lse from 4 on keeps the probabilities below one for such scores.
  const auto operands = [](bool inner, int64_t b, int64_t h, int64_t hkv, int64_t t, int64_t s,
                           int64_t d, bool dlse) {
    auto in = qkv(inner, b, h, hkv, t, s, d);
    in.push_back(in[0]);
    Arg rows = arg({b, h, t}).uniform(4, 5).statistic();
    in.push_back(rows);
    in.push_back(in[0]);
    in.push_back(dlse ? arg({b, h, t}).statistic() : no_arg());
    return in;
  };
  for (const AttentionBackward& v : variants<AttentionBackward>()) {
    all.push_back({v, operands(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 6, 8, v.causal)});
    all.push_back({v, operands(v.heads_inner, 5, 2, 2, 5, 5, 5, !v.causal)});
  }
  all.push_back(
      {AttentionBackward{true, false, 0, 0}, operands(false, 1, 2, 1, 131, 131, 24, false)});
  all.push_back(
      timed(AttentionBackward{true, true, 0, 0}, operands(true, 8, 16, 16, 512, 512, 16, false)));
  auto wrong = operands(false, 2, 2, 2, 5, 5, 8, false);
  wrong[5] = arg({2, 2, 4, 8});
  all.push_back(bad(AttentionBackward{true, false, 0, 0}, wrong, "ShapeError"));
  return all;
}

}  // namespace tessera::op

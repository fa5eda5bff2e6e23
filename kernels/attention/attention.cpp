// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and gradients of attention; its CPU kernels are in attention_cpu.cpp and
// attention_backward_cpu.cpp.
#include "tessera/kernels/attention/attention.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/statistics_impl.h"
#include "tessera/kernels/views/views.h"

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

// `positions`: the place of that optional input.
template <class Op> void check_mask(const Op& op, size_t positions, Metas in) {
  const std::string_view name = Op::name;
  const auto not_negative = [&](const char* what, int64_t n, const char* meaning) {
    if (n < 0) fail<ValueError>(name, what, " is ", n, ": expected ", meaning);
  };
  not_negative("window", op.window, "the number of keys that a query sees, or 0 for all");
  not_negative("chunk", op.chunk, "the number of keys of a chunk, or 0 for one chunk");
  not_negative("key_start", op.key_start, "the index of key 0 in the whole sequence, 0 or more");
  if (!op.causal && (op.window > 0 || op.chunk > 0)) {
    fail<ValueError>(name, "causal is false, but window is ", op.window, " and chunk is ", op.chunk,
                     ": both look back from a query; set causal, or leave them 0");
  }
  if (!in.has(positions)) return;
  const TensorMeta& p = in[positions];
  const Sizes z = sizes_of(op.heads_inner, in);
  if (p.dtype != DType::i64)
    fail<DTypeError>(name, "positions must be i64: given ", p, "; cast them");
  if (!(p.shape == Shape{z.b, z.t})) {
    fail<ShapeError>(name, "positions must be (B, T) = ", Shape{z.b, z.t}, " as q is ", in[0],
                     ": given ", p);
  }
  if (op.causal) return;
  if (op.offset + op.key_start != 0) {
    fail<ValueError>(name, "offset is ", op.offset,
                     ", but documents without causal end where the positions say, so query 0 must "
                     "be key 0: expected offset ",
                     -op.key_start);
  }
  if (op.key_start + z.s > z.t) {
    fail<ShapeError>(name,
                     "documents without causal need the position of each key, expected at "
                     "most ",
                     z.t - op.key_start, " keys: q is ", in[0], ", k is ", in[1]);
  }
}

// Documents without causal: a query must know where its document ends, so queries stay together.
template <class Op>
std::string whole_factors(const Op& op, size_t positions, Metas in, const char* always) {
  std::string letters = always;
  if (!op.causal && in.has(positions)) letters += 't';
  return letters;
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
  [[nodiscard]] std::array<DimFactor, 2> positions() const { return {b, t}; }
};
// Appends an optional input.
template <size_t n>
void optional_operand(ShardingRule& r, Metas in, size_t i, const std::array<DimFactor, n>& dims) {
  if (i >= in.size()) return;
  if (in.has(i)) r.operand(dims);
  else r.operand(std::span<const DimFactor>{});
}
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
template <class Op> Op local_op(Op op, const Piece& piece) {
  const int time = op.heads_inner ? 1 : 2;
  const int64_t keys_before = piece.range(1, time).begin;
  op.offset += piece.range(0, time).begin - keys_before;
  op.key_start += keys_before;
  return op;
}

// Keys that a query sees, on average and where documents are long.
double mean_keys(const auto& op, const Sizes& z) {
  double keys = static_cast<double>(z.s) * (op.causal ? 0.5 : 1);
  if (op.window > 0) keys = std::min(keys, static_cast<double>(op.window));
  if (op.chunk > 0) keys = std::min(keys, 0.5 * static_cast<double>(op.chunk));
  return keys;
}

template <class Op> std::vector<Op> variants() {
  return {{true, false, 0, 0, 0, 0, 0}, {false, false, 0.3, 0, 0, 0, 0},
          {true, true, 0, 2, 0, 0, 0},  {false, true, 0, 0, 0, 0, 0},
          {true, false, 0, 2, 3, 0, 0}, {true, true, 0, 1, 0, 4, 0},
          {true, true, 0.3, 2, 4, 5, 3}};
}
// Two batches' documents of seven tokens; the first goes on with a document of earlier keys.
Arg packed_positions(bool earlier) {
  const double first = earlier ? 2 : 0;
  return index_arg({2, 7}, 0, 1)
      .listed({first, first + 1, first + 2, 0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 3});
}
Arg short_positions() { return index_arg({5, 5}, 0, 1).listed({0, 1, 2, 0, 1}); }
std::vector<Arg> qkv(bool inner, int64_t b, int64_t h, int64_t hkv, int64_t t, int64_t s,
                     int64_t d) {
  if (inner) return {arg({b, t, h, d}), arg({b, s, hkv, d}), arg({b, s, hkv, d})};
  return {arg({b, h, t, d}), arg({b, hkv, s, d}), arg({b, hkv, s, d})};
}

}  // namespace

MetaList Attention::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  check_mask(*this, 3, in);
  const Sizes z = sizes_of(heads_inner, in);
  return {in[0], {{z.b, z.h, z.t}, statistics(in[0].dtype), in[0].device}};
}

ShardingRule Attention::sharding(Metas in) const {
  ShardingRule r;
  const Factors f = add_factors(r, sizes_of(heads_inner, in), whole_factors(*this, 3, in, "sd"));
  r.operand(f.queries(heads_inner)).operand(f.keys(heads_inner)).operand(f.keys(heads_inner));
  optional_operand(r, in, 3, f.positions());
  return r.outputs_from_here().operand(f.queries(heads_inner)).operand(f.rows());
}

Attention Attention::local(const Piece& piece) const { return local_op(*this, piece); }

Grads Attention::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Tensor dout = dy[0].defined() ? dy[0] : zeros_like(s.output(0));
  const AttentionBackward op{causal, heads_inner, scale, offset, window, chunk, key_start};
  TensorList in{s.input(0), s.input(1), s.input(2), s.output(0), s.output(1), dout, dy[1]};
  if (s.inputs() > 3 && s.has_input(3)) in.push_back(s.input(3));
  auto [dq, dk, dv] = call(op, Tensors(in.data(), in.size()));
  return {dq, dk, dv};
}

Cost Attention::cost(Metas in, Metas out) const {
  const Sizes z = sizes_of(heads_inner, in);
  Cost c = detail::bytes_moved(in, out);
  c.flops = 4.0 * static_cast<double>(z.b * z.h * z.t * z.d) * mean_keys(*this, z);
  return c;
}

std::vector<Sample<Attention>> Attention::samples() {
  std::vector<Sample<Attention>> all;
  const auto with = [](std::vector<Arg> in, Arg positions) {
    in.push_back(std::move(positions));
    return in;
  };
  for (const Attention& v : variants<Attention>()) {
    all.push_back({v, qkv(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 6, 8)});
    all.push_back({v, qkv(v.heads_inner, 5, 2, 2, 5, 5, 5)});
    if (v.key_start > 0) continue;
    all.push_back(
        {v, with(qkv(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 7, 8), packed_positions(false))});
    all.push_back({v, with(qkv(v.heads_inner, 5, 2, 2, 5, 5, 5), short_positions())});
  }
  all.push_back({Attention{}, qkv(false, 1, 2, 1, 131, 131, 24)});
  all.push_back({Attention{true, false, 0, 0, 70, 100, 0}, qkv(false, 1, 2, 1, 131, 131, 24)});
  // One query against a cache, also of a document that started earlier.
  all.push_back({Attention{true, true, 0, 698, 300, 0, 0}, qkv(true, 1, 6, 2, 1, 700, 24)});
  all.push_back({Attention{true, false, 0, 698},
                 with(qkv(false, 2, 6, 2, 1, 700, 24), index_arg({2, 1}, 0, 1).listed({650, 7}))});
  all.push_back(
      {Attention{true, false, 0, -2}, qkv(false, 1, 1, 1, 5, 5, 4)});  // the first rows see nothing
  const auto documents = [](int64_t length, int64_t each) {
    std::vector<double> p(static_cast<size_t>(length));
    for (size_t i = 0; i < p.size(); ++i)
      p[i] = static_cast<double>(static_cast<int64_t>(i) % each);
    return index_arg({1, length}, 0, 1).listed(std::move(p));
  };
  all.push_back(timed(Attention{true, true}, qkv(true, 8, 16, 16, 512, 512, 16)));
  all.push_back(timed(Attention{true, true}, qkv(true, 1, 16, 4, 1024, 1024, 64)));
  all.push_back(timed(Attention{true, false}, qkv(false, 1, 8, 8, 1024, 1024, 128)));
  all.push_back(timed(Attention{true, true, 0, 0, 128, 0, 0}, qkv(true, 1, 16, 4, 1024, 1024, 64)));
  all.push_back(timed(Attention{true, true, 0, 0, 0, 256, 0}, qkv(true, 1, 16, 4, 1024, 1024, 64)));
  all.push_back(timed(Attention{true, true},
                      with(qkv(true, 1, 16, 4, 1024, 1024, 64), documents(1024, 200))));
  all.push_back(timed(Attention{true, true, 0, 4095}, qkv(true, 1, 32, 8, 1, 4096, 128)));
  all.push_back(
      bad(Attention{}, {arg({2, 3, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError"));
  all.push_back(
      bad(Attention{}, {arg({2, 5, 8}), arg({2, 2, 5, 8}), arg({2, 2, 5, 8})}, "ShapeError"));
  all.push_back(bad(Attention{},
                    {arg({2, 2, 5, 8}).as(DType::f32), arg({2, 2, 5, 8}).as(DType::bf16),
                     arg({2, 2, 5, 8}).as(DType::f32)},
                    "DTypeError"));
  const auto plain = qkv(false, 2, 2, 2, 7, 7, 8);
  all.push_back(bad(Attention{false, false, 0, 0, 5, 0, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{false, false, 0, 0, 0, 5, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{true, false, 0, 0, -5, 0, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{true, false, 0, 0, 0, -5, 0}, plain, "ValueError"));
  all.push_back(bad(Attention{true, false, 0, 0, 0, 0, -5}, plain, "ValueError"));
  all.push_back(bad(Attention{}, with(plain, index_arg({2, 6}, 0, 1)), "ShapeError"));
  all.push_back(
      bad(Attention{}, with(plain, packed_positions(false).as(DType::i32)), "DTypeError"));
  all.push_back(bad(Attention{}, with(plain, packed_positions(true)), "ValueError"));
  all.push_back(bad(Attention{}, with(plain, index_arg({2, 7}, -3, 0)), "ValueError"));
  all.push_back(
      bad(Attention{}, with(plain, index_arg({2, 7}, 0, 1).listed({0, 1, 1, 2})), "ValueError"));
  all.push_back(bad(Attention{false, false, 0, 2, 0, 0, 0}, with(plain, packed_positions(false)),
                    "ValueError"));
  all.push_back(bad(Attention{false}, with(qkv(false, 2, 2, 2, 7, 8, 8), packed_positions(false)),
                    "ShapeError"));
  return all;
}

MetaList AttentionBackward::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  check_mask(*this, 7, in);
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
  const Factors f = add_factors(r, sizes_of(heads_inner, in), whole_factors(*this, 7, in, "d"));
  const auto q = f.queries(heads_inner);
  const auto k = f.keys(heads_inner);
  r.operand(q).operand(k).operand(k).operand(q).operand(f.rows()).operand(q);
  optional_operand(r, in, 6, f.rows());
  optional_operand(r, in, 7, f.positions());
  r.outputs_from_here().operand(q).operand(k).operand(k);
  if (in.has(6)) return r.linear({5, 6});
  return r.linear({5});
}

AttentionBackward AttentionBackward::local(const Piece& piece) const {
  return local_op(*this, piece);
}

Cost AttentionBackward::cost(Metas in, Metas out) const {
  const Sizes z = sizes_of(heads_inner, in);
  Cost c = detail::bytes_moved(in, out);
  c.flops = 10.0 * static_cast<double>(z.b * z.h * z.t * z.d) * mean_keys(*this, z);
  return c;
}

std::vector<Sample<AttentionBackward>> AttentionBackward::samples() {
  std::vector<Sample<AttentionBackward>> all;
  // An lse from 4 on keeps the probabilities below one for such scores.
  const auto operands = [](bool inner, int64_t b, int64_t h, int64_t hkv, int64_t t, int64_t s,
                           int64_t d, bool dlse, std::optional<Arg> positions = {}) {
    auto in = qkv(inner, b, h, hkv, t, s, d);
    in.push_back(in[0]);
    Arg rows = arg({b, h, t}).uniform(4, 5).statistic();
    in.push_back(rows);
    in.push_back(in[0]);
    in.push_back(dlse ? arg({b, h, t}).statistic() : no_arg());
    if (positions) in.push_back(*positions);
    return in;
  };
  using Op = AttentionBackward;
  for (const Op& v : variants<Op>()) {
    all.push_back({v, operands(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 6, 8, v.causal)});
    all.push_back({v, operands(v.heads_inner, 5, 2, 2, 5, 5, 5, !v.causal)});
    if (v.key_start > 0) continue;
    all.push_back({v, operands(v.heads_inner, 2, 10, 5, 7, v.causal ? 9 : 7, 8, !v.causal,
                               packed_positions(v.offset > 1))});
    all.push_back({v, operands(v.heads_inner, 5, 2, 2, 5, 5, 5, v.causal, short_positions())});
  }
  all.push_back({Op{}, operands(false, 1, 2, 1, 131, 131, 24, false)});
  all.push_back({Op{true, false, 0, 0, 70, 100, 0}, operands(false, 1, 2, 1, 131, 131, 24, false)});
  all.push_back(timed(Op{true, true}, operands(true, 8, 16, 16, 512, 512, 16, false)));
  all.push_back(
      timed(Op{true, true, 0, 0, 128, 0, 0}, operands(true, 1, 16, 4, 1024, 1024, 64, false)));
  auto wrong = operands(false, 2, 2, 2, 5, 5, 8, false);
  wrong[5] = arg({2, 2, 4, 8});
  all.push_back(bad(Op{}, wrong, "ShapeError"));
  all.push_back(
      bad(Op{false, false, 0, 0, 5, 0, 0}, operands(false, 2, 2, 2, 5, 5, 8, false), "ValueError"));
  all.push_back(
      bad(Op{}, operands(false, 2, 2, 2, 7, 7, 8, true, index_arg({7, 2}, 0, 1)), "ShapeError"));
  return all;
}

}  // namespace tessera::op

namespace tessera {

std::array<Tensor, 2> scaled_dot_product_attention_with_lse(const Tensor& q, const Tensor& k,
                                                            const Tensor& v,
                                                            const AttentionOptions& o) {
  const op::Attention op{o.causal, o.heads_inner, o.scale, o.offset, o.window, o.chunk, 0};
  if (o.positions.defined()) return call(op, {q, k, v, o.positions});
  return call(op, {q, k, v});
}

Tensor attention_sink(const Tensor& o, const Tensor& lse, const Tensor& sink, bool heads_inner) {
  const std::string_view name = "attention_sink";
  const int head = heads_inner ? 2 : 1, time = heads_inner ? 1 : 2;
  if (o.rank() != 4 || lse.rank() != 3 || sink.rank() != 1 || lse.size(0) != o.size(0) ||
      lse.size(1) != o.size(head) || lse.size(2) != o.size(time) || sink.size(0) != lse.size(1)) {
    fail<ShapeError>(name, "expected o ", heads_inner ? "(B, T, H, D)" : "(B, H, T, D)",
                     ", lse (B, H, T) and sink (H): o is ", o.meta(), ", lse is ", lse.meta(),
                     ", sink is ", sink.meta());
  }
  if (!is_floating(o.dtype()) || lse.dtype() != statistics(o.dtype()) ||
      !is_floating(sink.dtype())) {
    fail<DTypeError>(name, "expected floats and an lse as attention gives it, ",
                     statistics(o.dtype()), ": o is ", o.meta(), ", lse is ", lse.meta(),
                     ", sink is ", sink.meta());
  }
  const Tensor logit = reshape(cast(sink, lse.dtype()), {sink.size(0), 1});  // (H, 1)
  // sigmoid(x) = (1 + tanh(x / 2)) / 2, also of a row that sees nothing: 0.
  const Tensor gate = affine(tanh(affine(lse - logit, 0.5, 0)), 0.5, 0.5);  // (B, H, T)
  const Tensor rows = heads_inner ? transpose(gate, 1, 2) : gate;
  Shape broadcast = rows.shape();
  broadcast.push_back(1);
  return o * cast(reshape(rows, broadcast), o.dtype());
}

}  // namespace tessera

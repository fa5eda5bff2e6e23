// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and gradients of attention. Its CPU kernels are in attention_cpu.cpp and
// attention_backward_cpu.cpp, its samples in attention_samples.cpp.
#include "tessera/kernels/attention/attention.h"

#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"

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

}  // namespace

MetaList Attention::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  check_mask(*this, 3, in);
  const Sizes z = sizes_of(heads_inner, in);
  return {in[0], {{z.b, z.h, z.t}, compute_dtype(in[0].dtype), in[0].device}};
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
    if (!(in[i].shape == Shape{z.b, z.h, z.t}) || in[i].dtype != compute_dtype(in[0].dtype)) {
      fail<ShapeError>(name, i == 4 ? "lse" : "dlse", " must be ", compute_dtype(in[0].dtype),
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

}  // namespace tessera::op

namespace tessera {

std::array<Tensor, 2> scaled_dot_product_attention_with_lse(const Tensor& q, const Tensor& k,
                                                            const Tensor& v,
                                                            const AttentionOptions& o) {
  const op::Attention op{o.causal, o.heads_inner, o.scale, o.offset, o.window, o.chunk, 0};
  if (o.positions.defined()) return call(op, {q, k, v, o.positions});
  return call(op, {q, k, v});
}

}  // namespace tessera

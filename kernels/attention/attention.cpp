// SPDX-License-Identifier: Apache-2.0
// Checks, sharding and gradients of attention. Its CPU kernels are in attention_cpu.cpp and
// attention_backward_cpu.cpp, its samples in attention_samples.cpp.
#include "tessera/kernels/attention/attention.h"

#include "tessera/core/context.h"
#include "tessera/core/message.h"
#include "tessera/kernels/attention/device_path.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/mask/mask_impl.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <algorithm>

namespace tessera::op {
namespace {

struct Sizes {
  int64_t b, h, t, d, h_kv, s, dv;
};
Sizes sizes_of(bool heads_inner, Metas in) {
  const Shape &q = in[0].shape, &k = in[1].shape;
  const int head = heads_inner ? 2 : 1, time = heads_inner ? 1 : 2;
  return {q[0], q[head], q[time], q[3], k[head], k[time], in[2].shape[3]};
}
Shape output_shape(bool heads_inner, Metas in) {
  Shape shape = in[0].shape;
  shape[3] = sizes_of(heads_inner, in).dv;
  return shape;
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
  for (int dim = 0; dim < 3; ++dim) {
    if (in[1].shape[dim] != in[2].shape[dim])
      fail<ShapeError>(name, "k and v may differ in their last dim only, ", order, ": ", all());
  }
  const Sizes z = sizes_of(heads_inner, in);
  if (in[1].shape[0] != z.b || in[1].shape[3] != z.d)
    fail<ShapeError>(name, "batch and head size of q and k must be equal, ", order, ": ", all());
  if (in[0].device.is_cuda() && std::max(z.d, z.dv) > kMostHeadSize) {
    fail<ShapeError>(name, "the heads are of ", counted(std::max(z.d, z.dv), "value"),
                     ", on a device of up to ", kMostHeadSize, ": ", all(),
                     "; use more and smaller heads, or the CPU");
  }
  constexpr int64_t kMostTokens = int64_t{1} << 30;
  if (in[0].device.is_cuda() && std::max(z.t, z.s) > kMostTokens) {
    fail<ShapeError>(name, "a sequence has ", counted(std::max(z.t, z.s), "token"),
                     ", on a device of up to ", kMostTokens, ": ", all(), "; cut it over ranks");
  }
  if (z.h_kv == 0 ? z.h != 0 : z.h % z.h_kv != 0) {
    fail<ShapeError>(name, "the ", counted(z.h, "query head"), " must be a multiple of the ",
                     counted(z.h_kv, "key head"), ", ", order, ": ", all());
  }
}

// Of these, f32 has the number and its inverse.
void check_soft_cap(std::string_view name, double cap) {
  if (cap == 0 || (cap >= 1e-30 && cap <= 1e30)) return;
  fail<ValueError>(name, "soft_cap is ", cap,
                   ": expected 0 for none, or a number from 1e-30 to 1e30");
}

int64_t blocks_of(int64_t n) { return (n + kAttentionBlock - 1) / kAttentionBlock; }

template <class Op> void check_mask(const Op& op, Metas in) {
  constexpr size_t first = Op::mask_operands;
  const std::string_view name = Op::name;
  const Sizes z = sizes_of(op.heads_inner, in);
  const auto check_ids = [&](size_t i, const char* what, const char* letters, int64_t n) {
    if (!in.has(i)) return;
    const TensorMeta& x = in[i];
    if (x.dtype != DType::i64)
      fail<DTypeError>(name, what, " must be i64: given ", x, "; cast them");
    if (x.shape != Shape{n} && x.shape != Shape{z.b, n}) {
      fail<ShapeError>(name, what, " must be (B, ", letters, ") = ", Shape{z.b, n}, " or (",
                       letters, ") as q is ", in[0], " and k is ", in[1], ": given ", x);
    }
  };
  check_ids(first, "query_positions", "T", z.t);
  check_ids(first + 1, "key_positions", "S", z.s);
  check_ids(first + 2, "query_documents", "T", z.t);
  check_ids(first + 3, "key_documents", "S", z.s);
  const bool wanted = op.mask.has(AttentionMask::Kind::document);
  for (const size_t i : {first + 2, first + 3}) {
    if (in.has(i) == wanted) continue;
    const char* whose = i == first + 2 ? "query_documents" : "key_documents";
    if (wanted) {
      fail<ValueError>(name, "the mask ", op.mask, " asks for documents, but ", whose,
                       " are missing: give the ids of queries and of keys");
    }
    fail<ValueError>(name, whose, " are given, but the mask ", op.mask,
                     " does not ask for them: add & AttentionMask::document(), or leave them out");
  }
  if (in.has(first + 4)) {
    const TensorMeta& x = in[first + 4];
    const Shape want{z.b, blocks_of(z.t), blocks_of(z.s)};
    if (x.dtype != DType::i32)
      fail<DTypeError>(name, "blocks must be i32: given ", x, "; cast them");
    if (x.shape != want && x.shape != Shape{1, want[1], want[2]}) {
      fail<ShapeError>(name, "blocks must be (B or 1, T / ", kAttentionBlock, ", S / ",
                       kAttentionBlock, "), rounded up, = ", want, " as q is ", in[0], " and k is ",
                       in[1], ": given ", x);
    }
  }
  if (!in.has(first + 5)) return;
  const TensorMeta& bits = in[first + 5];
  if (!in.has(first + 4))
    fail<ValueError>(name, "bits ", bits, " are given without the blocks that name them");
  if (bits.dtype != DType::i64) fail<DTypeError>(name, "bits must be i64: given ", bits);
  if (bits.shape.rank() != 2 || bits.shape[1] != kAttentionBlock)
    fail<ShapeError>(name, "bits must be (N, ", kAttentionBlock, "): given ", bits);
}

// Factors: batch, key heads (a group of query heads each), queries; head sizes stay whole, and keys
// in the forward op. With a block map a sequence is cut between its blocks, and only where all of
// them are full.
struct Factors {
  struct Sequence {
    DimFactor tokens, blocks;
  };
  DimFactor b, h, h_kv, d, e;
  Sequence t, s;
  [[nodiscard]] std::array<DimFactor, 4> queries(bool inner, DimFactor width) const {
    return inner ? std::array{b, t.tokens, h, width} : std::array{b, h, t.tokens, width};
  }
  [[nodiscard]] std::array<DimFactor, 4> keys(bool inner, DimFactor width) const {
    return inner ? std::array{b, s.tokens, h_kv, width} : std::array{b, h_kv, s.tokens, width};
  }
  [[nodiscard]] std::array<DimFactor, 3> rows() const { return {b, h, t.tokens}; }
};
Factors add_factors(ShardingRule& r, const Sizes& z, bool has_map, std::string_view whole) {
  const auto f = [&](int64_t size, char letter) {
    return DimFactor{static_cast<int16_t>(r.add_factor(size, letter)), 1};
  };
  const auto sequence = [&](int64_t n, char letter) -> Factors::Sequence {
    const bool by_block = has_map && n % kAttentionBlock == 0;
    const DimFactor one = f(by_block ? n / kAttentionBlock : n, letter);
    if (by_block) return {{one.factor, kAttentionBlock}, one};
    if (has_map) r.replicate_factor(one.factor);
    return {one, {}};
  };
  Factors x;
  x.b = f(z.b, 'b'), x.h_kv = f(z.h_kv, 'h');
  x.t = sequence(z.t, 't'), x.s = sequence(z.s, 's');
  x.d = f(z.d, 'd'), x.e = f(z.dv, 'e');
  x.h = {x.h_kv.factor, z.h_kv ? z.h / z.h_kv : 1};
  r.replicate(whole);
  return x;
}

constexpr std::string_view kWholeValues =
    "pieces of the value heads would each compute all scores again";

// Appends an optional input.
void add_operand(ShardingRule& r, Metas in, size_t i, std::span<const DimFactor> dims) {
  if (i >= in.size()) return;
  if (in.has(i)) r.operand(dims);
  else r.operand(std::span<const DimFactor>{});
}
void add_mask_operands(ShardingRule& r, Metas in, size_t first, const Factors& f) {
  for (size_t i = 0; i < 4; ++i) {
    const std::array dims{f.b, i % 2 == 0 ? f.t.tokens : f.s.tokens};
    const bool batched = in.has(first + i) && in[first + i].shape.rank() == 2;
    add_operand(r, in, first + i, std::span(dims).subspan(batched ? 0 : 1));
  }
  const bool each = in.has(first + 4) && in[first + 4].shape[0] == in[0].shape[0];
  add_operand(r, in, first + 4, std::array{each ? f.b : DimFactor{}, f.t.blocks, f.s.blocks});
  add_operand(r, in, first + 5, std::array{DimFactor{}, DimFactor{}});
}

// Positions that no tensor holds start later in a piece.
template <class Op> Op local_op(Op op, const Piece& piece) {
  const int time = op.heads_inner ? 1 : 2;
  op.query_start += piece.range(0, time).begin;
  op.key_start += piece.range(1, time).begin;
  return op;
}

// Keys that a query sees, on average and where documents are long.
struct Count {
  double keys;
  friend Count operator&(Count a, Count b) { return {std::min(a.keys, b.keys)}; }
  friend Count operator|(Count a, Count b) { return {std::max(a.keys, b.keys)}; }
};
double mean_keys(const AttentionMask& mask, int64_t keys) {
  using Kind = AttentionMask::Kind;
  const auto all = static_cast<double>(keys);
  return mask
      .evaluate(Count{all},
                [&](Kind kind, int64_t n) -> Count {
                  switch (kind) {
                    case Kind::causal: return {0.5 * all};
                    case Kind::document: return {all};
                    case Kind::chunk: return {std::min(all, 0.5 * static_cast<double>(n))};
                    default: return {std::min(all, static_cast<double>(n))};
                  }
                })
      .keys;
}
double products(const Sizes& z, const AttentionMask& mask, double scores, double values) {
  return 2 * static_cast<double>(z.b * z.h * z.t) * mean_keys(mask, z.s) *
         (scores * static_cast<double>(z.d) + values * static_cast<double>(z.dv));
}

}  // namespace

MetaList Attention::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  check_soft_cap(name, soft_cap);
  check_mask(*this, in);
  const Sizes z = sizes_of(heads_inner, in);
  return {{output_shape(heads_inner, in), in[0].dtype, in[0].device},
          {{z.b, z.h, z.t}, compute_dtype(in[0].dtype), in[0].device}};
}

ShardingRule Attention::sharding(Metas in) const {
  ShardingRule r;
  const Factors f = add_factors(r, sizes_of(heads_inner, in), in.has(mask_operands + 4), "sde");
  r.operand(f.queries(heads_inner, f.d));
  r.operand(f.keys(heads_inner, f.d)).operand(f.keys(heads_inner, f.e));
  add_mask_operands(r, in, mask_operands, f);
  r.stricter_because(kWholeValues);
  return r.outputs_from_here().operand(f.queries(heads_inner, f.e)).operand(f.rows());
}

Attention Attention::local(const Piece& piece) const { return local_op(*this, piece); }

Grads Attention::vjp(const Saved& s, const Grads& dy, Needs) const {
  const Tensor dout = dy[0].defined() ? dy[0] : zeros_like(s.output(0));
  // Wider dtypes round o as finely as sums of p dp are.
  const bool all_keys = item_size(s.output(0).dtype()) < 4;
  const AttentionBackward op{mask, heads_inner, scale, query_start, key_start, all_keys, soft_cap};
  TensorList in{s.input(0), s.input(1), s.input(2), s.output(0), s.output(1), dout, dy[1]};
  for (size_t i = mask_operands; i < s.inputs(); ++i)
    in.push_back(s.has_input(i) ? s.input(i) : Tensor());
  auto [dq, dk, dv] = call(op, Tensors(in.data(), in.size()));
  return {dq, dk, dv};
}

Cost Attention::cost(Metas in, Metas out) const {
  Cost c = detail::bytes_moved(in, out);
  c.flops = products(sizes_of(heads_inner, in), mask, 1, 1);
  return c;
}

MetaList AttentionBackward::meta(Metas in) const {
  check(name, dtypes, heads_inner, in);
  check_soft_cap(name, soft_cap);
  check_mask(*this, in);
  const Sizes z = sizes_of(heads_inner, in);
  const TensorMeta want{output_shape(heads_inner, in), in[0].dtype, in[0].device};
  if (in[3].shape != want.shape || in[5].shape != want.shape) {
    fail<ShapeError>(name, "o and dout must be ", want, ": o is ", in[3], ", dout is ", in[5]);
  }
  if (in[3].dtype != want.dtype || in[5].dtype != want.dtype) {
    fail<DTypeError>(name, "o and dout must be ", want, ": o is ", in[3], ", dout is ", in[5]);
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
  // With lse and delta known, keys no longer depend on each other: dq is a sum over them.
  const Factors f =
      add_factors(r, sizes_of(heads_inner, in), in.has(mask_operands + 4), all_keys ? "sde" : "de");
  const auto q = f.queries(heads_inner, f.d), o = f.queries(heads_inner, f.e),
             k = f.keys(heads_inner, f.d), v = f.keys(heads_inner, f.e);
  r.operand(q).operand(k).operand(v).operand(o).operand(f.rows()).operand(o);
  add_operand(r, in, 6, f.rows());
  add_mask_operands(r, in, mask_operands, f);
  r.stricter_because(kWholeValues);
  r.outputs_from_here().operand(q).operand(k).operand(v);
  if (in.has(6)) return r.linear({5, 6});
  return r.linear({5});
}

AttentionBackward AttentionBackward::local(const Piece& piece) const {
  return local_op(*this, piece);
}

Cost AttentionBackward::cost(Metas in, Metas out) const {
  Cost c = detail::bytes_moved(in, out);
  c.flops = products(sizes_of(heads_inner, in), mask, 3, 2);
  return c;
}

int64_t AttentionBackward::workspace(Metas in, Device device) const {
  if (!device.is_cuda()) return 0;
  const AttentionCase c = attention_case(*this, in);
  // Without cuDNN it takes less.
  if (choose_attention(c, true).path != AttentionPath::cudnn) return 0;
  const Context* context = Context::current_or_null();
  return cudnn_backward_workspace(c, context && context->options.deterministic);
}

}  // namespace tessera::op

namespace tessera {
namespace {

// Of more keys than queries, causal queries see the first ones or, after a cache, all: PyTorch
// takes the first without a word.
void check_query_start(const Tensor& q, const Tensor& k, const AttentionOptions& o) {
  const bool said = o.query_start || o.query_positions.defined() || o.key_positions.defined() ||
                    o.key_start != 0 || o.block_map.blocks.defined();
  if (said || !o.mask.has(AttentionMask::Kind::causal) || q.rank() != 4 || k.rank() != 4) return;
  const int time = o.heads_inner ? 1 : 2;
  const int64_t queries = q.size(time), keys = k.size(time);
  if (keys <= queries) return;
  fail<ValueError>(op::Attention::name, "mask ", o.mask, " with ", counted(queries, "query"),
                   " and ", counted(keys, "key"),
                   ", and no query_start: give the position of the first query, ", keys - queries,
                   " if the queries are the last tokens of a cache, 0 if they are the first");
}

}  // namespace

std::array<Tensor, 2> scaled_dot_product_attention_with_lse(const Tensor& q, const Tensor& k,
                                                            const Tensor& v,
                                                            const AttentionOptions& o) {
  check_query_start(q, k, o);
  const int64_t query_start = o.query_start.value_or(0);
  const op::Attention op{o.mask, o.heads_inner, o.scale, query_start, o.key_start, o.soft_cap};
  for (const auto& [positions, start, what] : {std::tuple{&o.query_positions, query_start, "query"},
                                               std::tuple{&o.key_positions, o.key_start, "key"}}) {
    if (!positions->defined() || start == 0) continue;
    fail<ValueError>(op.name, what, "_start is ", start, " and ", what, "_positions are ",
                     positions->meta(), ": expected one of them");
  }
  const Tensor* masks[] = {&o.query_positions, &o.key_positions,    &o.query_documents,
                           &o.key_documents,   &o.block_map.blocks, &o.block_map.bits};
  size_t given = std::size(masks);
  while (given > 0 && !masks[given - 1]->defined()) --given;
  if (given == 0) return call(op, {q, k, v});
  TensorList in{q, k, v};
  for (size_t i = 0; i < given; ++i) in.push_back(*masks[i]);
  return call(op, Tensors(in.data(), in.size()));
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The cut of a batch and the plan of attention over it, all on the host. Positions are those of the
// whole sequence, so what a query sees does not depend on where its keys lie.
#include "tessera/nn/context/context_parallel.h"

#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/attention/seen_blocks.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/context/cut_attention_impl.h"
#include "tessera/nn/parameters.h"

#include <algorithm>
#include <numeric>
#include <ostream>

namespace tessera::nn {
namespace {

// The elements of x, (T) or (B, T) i64 on the CPU, at these places, (S) or (B, S).
Tensor taken(const Tensor& x, const Tensor& places) {
  const auto rows_of = [](const Tensor& t) { return t.rank() == 2 ? t.size(0) : -1; };
  const int64_t rows = std::max(rows_of(x), rows_of(places)), n = places.size(-1);
  const Tensor y = empty(rows < 0 ? Shape{n} : Shape{rows, n}, DType::i64);
  auto* to = y.data<int64_t>();
  const auto at = [](const Tensor& t, int64_t row, int64_t i) {
    const Shape& step = t.strides();
    return t.data<int64_t>()[t.rank() == 2 ? row * step[0] + i * step[1] : i * step[0]];
  };
  for (int64_t b = 0; b < std::max<int64_t>(rows, rows < 0 ? 1 : 0); ++b) {
    for (int64_t i = 0; i < n; ++i) *to++ = at(x, b, at(places, b, i));
  }
  return y;
}

Tensor from_zero(int64_t n) {
  const Tensor x = empty({n}, DType::i64);
  std::iota(x.data<int64_t>(), x.data<int64_t>() + n, int64_t{0});
  return x;
}

// (B * S) i64: `places` (S) or (B, S) of sequences of `tokens` as rows of all sequences.
Tensor flat_rows(const Tensor& places, int64_t batches, int64_t tokens) {
  const int64_t n = places.size(-1);
  const Tensor y = empty({batches * n}, DType::i64);
  auto* to = y.data<int64_t>();
  for (int64_t b = 0; b < batches; ++b) {
    const int64_t* row = places.data<int64_t>() + (places.rank() == 2 ? b * n : 0);
    for (int64_t i = 0; i < n; ++i) *to++ = b * tokens + row[i];
  }
  return y;
}

// The place of each token, of the token at each place.
Tensor inverse(const Tensor& order) {
  const Tensor places = empty_like(order);
  const int64_t n = order.size(-1), rows = order.rank() == 2 ? order.size(0) : 1;
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t* from = order.data<int64_t>() + b * n;
    for (int64_t i = 0; i < n; ++i) places.data<int64_t>()[b * n + from[i]] = i;
  }
  return places;
}

// x (B, T, ...) with the tokens at these places of each row, of all T or fewer.
Tensor rows_taken(const Tensor& x, const Tensor& places) {
  const NoGrad guard;
  Shape shape = x.shape();
  shape[1] = places.size(-1);
  const Tensor rows = flat_rows(places, x.size(0), x.size(1));
  const Tensor y =
      index_select(flatten(contiguous(x.detach()), 0, 1), 0, to_device(rows, x.device()));
  return reshape(y, shape);
}

// Where runs of tokens that follow each other end; none where each batch has its own.
std::vector<int64_t> ends_of_runs(const Tensor& tokens) {
  std::vector<int64_t> ends;
  if (tokens.rank() == 2) return ends;
  const auto* at = tokens.data<int64_t>();
  for (int64_t i = 1; i <= tokens.size(0); ++i) {
    if (i == tokens.size(0) || at[i] != at[i - 1] + 1) ends.push_back(i);
  }
  return ends;
}

bool sees_any(const Tensor& counts) {
  const auto* first = counts.data<int64_t>();
  return std::any_of(first, first + counts.numel(), [](int64_t n) { return n > 0; });
}

// Operands of attention that lie where the tokens lie.
AttentionOptions on(Device device, AttentionOptions o) {
  for (Tensor* x : {&o.query_positions, &o.key_positions, &o.query_documents, &o.key_documents,
                    &o.block_map.blocks, &o.block_map.bits}) {
    if (x->defined()) *x = to_device(*x, device);
  }
  return o;
}

}  // namespace

bool detail::exchanges_heads(ContextMethod m) {
  return m == ContextMethod::ulysses || m == ContextMethod::ring_ulysses;
}
bool detail::goes_round(ContextMethod m) {
  return m == ContextMethod::ring || m == ContextMethod::ring_ulysses;
}

int64_t key_head_copies(int64_t heads, int64_t key_heads, int64_t ranks) {
  const int64_t copies = ranks / std::gcd(ranks, std::max<int64_t>(key_heads, 1));
  return key_heads > 0 && heads % (key_heads * copies) != 0 ? 0 : copies;
}

std::string exchanged_heads_fault(Module& root, int64_t ranks, int64_t tensor) {
  for (const NamedModule& m : named_modules(root)) {
    const auto* attention = dynamic_cast<const Attention*>(m.module);
    if (!attention) continue;
    const auto [heads, key_heads] =
        std::pair(attention->config().n_heads / tensor, attention->config().n_kv_heads / tensor);
    if (key_head_copies(heads, key_heads, ranks) > 0) continue;
    return concat(counted(ranks, "rank"), " cannot have equal shares of the ",
                  counted(heads, "query head"), " and ", counted(key_heads, "key head"), " of ",
                  m.name, tensor > 1 ? " that a rank of tensor parallelism has" : "",
                  ", even with key heads repeated");
  }
  return {};
}

std::ostream& operator<<(std::ostream& os, ContextMethod m) {
  constexpr std::string_view names[] = {"all_gather", "ring", "ulysses", "ring_ulysses"};
  return os << names[static_cast<size_t>(m)];
}

SequenceCut::SequenceCut(ContextParallelOptions options, Layout rows, const Shape& tokens,
                         std::span<const AttentionMetadata> kinds)
    : options_(std::move(options)), rows_(rows), layout_(rows), tokens_(tokens) {
  const size_t wanted = options_.method == ContextMethod::ring_ulysses ? 2 : 1;
  if (options_.axes.size() != wanted) {
    fail<ValueError>("context_parallel", options_.method, " is given ",
                     counted(options_.axes.size(), "axis"), ", expected ", wanted,
                     wanted == 2 ? ": that of the ring and that of the heads, which "
                                   "Mesh::unflatten makes of one"
                                 : "");
  }
  if (tokens.rank() != 2) fail<ShapeError>("context_parallel", "tokens are (B, T): given ", tokens);
  const Mesh mesh = rows.mesh();
  for (const std::string& axis : options_.axes) {
    if (rows.has_partial() || !rows.axes_of(1).empty() || layout_.placement(axis) != Replicate()) {
      fail<LayoutError>("context_parallel", "tokens whose sequences are whole lie as ", rows.text(),
                        ", expected no axis over the sequence, and \"", axis,
                        "\" to replicate, once");
    }
    layout_ = layout_.with(axis, Shard(1));
  }
  batches_ = layout_.range(tokens, 0).size;
  if (detail::exchanges_heads(options_.method)) inner_ = mesh.size(options_.axes.back());
  int count = 1;
  for (const int axis : layout_.axes_of(1)) {
    count *= mesh.size(axis);
    part_ = part_ * mesh.size(axis) + mesh.coordinate(axis);
  }
  std::vector<int> at(mesh.coordinates().begin(), mesh.coordinates().end());
  for (int part = 0; part < count; ++part) {
    int outer = count;
    for (const int axis : layout_.axes_of(1)) {
      outer /= mesh.size(axis);
      at[static_cast<size_t>(axis)] = part / outer % mesh.size(axis);
    }
    parts_.push_back(layout_.range_at(at, tokens, 1).size);
  }
  LoadBalance balance{.balancer = options_.balancer};
  if (options_.balancer == LoadBalancer::document_head_tail && !kinds.empty() &&
      kinds[0].documents.defined()) {
    balance.documents = own_rows(kinds[0].documents, "documents");
  }
  if (options_.balancer == LoadBalancer::round_robin) {
    for (const AttentionMetadata& kind : kinds) {
      const Tensor work =
          count_seen_blocks(batches_, tokens[1], tokens[1], mask_of(kind)) * kind.layers;
      balance.work = balance.work.defined() ? balance.work + work : work;
    }
  }
  order_ = balanced_order(balance, parts_);
}

Tensor SequenceCut::own_rows(const Tensor& x, std::string_view what, DType dtype) const {
  const Tensor part = to_device(x.is_distributed() ? local(x) : x, kCpu);
  if (part.dtype() != dtype) {
    fail<DTypeError>("context_parallel", what, " must be ", dtype, ": given ", part.meta(),
                     "; cast them");
  }
  if (part.shape() != Shape{tokens_[1]} && part.shape() != Shape{batches_, tokens_[1]}) {
    fail<ShapeError>("context_parallel", "this rank's ", what, " are ", part.meta(), ", expected ",
                     Shape{batches_, tokens_[1]}, " or ", Shape{tokens_[1]}, ", as the tokens are ",
                     tokens_, " of ", rows_.text());
  }
  return contiguous(part);
}

AttentionOptions SequenceCut::mask_of(const AttentionMetadata& m) const {
  if (m.cut) fail<ValueError>("context_parallel", "the metadata are of a cut sequence already");
  AttentionOptions o{.mask = m.whole_mask(), .heads_inner = true};
  if (m.token_positions.defined())
    o.query_positions = o.key_positions = own_rows(m.token_positions, "token_positions");
  if (m.documents.defined())
    o.query_documents = o.key_documents = own_rows(m.documents, "documents");
  for (const auto& [from, to] : {std::pair{&m.block_map.blocks, &o.block_map.blocks},
                                 std::pair{&m.block_map.bits, &o.block_map.bits}}) {
    if (from->defined()) *to = to_device(from->is_distributed() ? local(*from) : *from, kCpu);
  }
  return o;
}

Tensor SequenceCut::tokens_of(int first_part, int parts) const {
  const auto sizes = parts_.begin() + first_part;
  const int64_t begin = std::accumulate(parts_.begin(), sizes, int64_t{0}),
                end = std::accumulate(sizes, sizes + parts, begin);
  const Tensor all = order_.defined() ? order_ : from_zero(tokens_[1]);
  return contiguous(slice(all, -1, {begin, end}));
}

Tensor SequenceCut::cut(const Tensor& x) const {
  const bool placed = x.is_distributed();
  const Tensor part = placed ? local(x) : x;
  const bool fits = part.rank() >= 2 && part.size(0) == batches_ && part.size(1) == tokens_[1];
  if (!fits || (placed && layout_of(x) != rows_)) {
    fail<LayoutError>("context_parallel", x.meta(), " does not lie as the tokens to be cut, ",
                      tokens_, " of ", rows_.text(), placed ? "" : ", nor is it this rank's rows");
  }
  Shape whole = part.shape();
  whole[0] = tokens_[0];
  return wrap_local(rows_taken(part, own_tokens()), layout_, whole);
}

Tensor SequenceCut::join(const Tensor& y) const {
  Layout whole = layout_of(y);
  if (whole.mesh() != layout_.mesh() || y.rank() < 2 ||
      !std::ranges::equal(whole.axes_of(0), layout_.axes_of(0)) ||
      !std::ranges::equal(whole.axes_of(1), layout_.axes_of(1)) || y.size(0) != tokens_[0] ||
      y.size(1) != tokens_[1]) {
    fail<LayoutError>("context_parallel", y.meta(), " of ", whole.text(), " is not cut as ",
                      tokens_, " of ", layout_.text());
  }
  for (const std::string& axis : options_.axes) whole = whole.with(axis, Replicate());
  const NoGrad guard;
  const Tensor joined = redistribute(y.detach(), whole);
  if (!order_.defined()) return joined;
  return wrap_local(rows_taken(local(joined), inverse(order_)), whole, y.shape());
}

AttentionMetadata SequenceCut::metadata(const AttentionMetadata& whole) const {
  const AttentionOptions mask = mask_of(whole);
  AttentionMetadata m{.cos = whole.cos, .sin = whole.sin, .mask = {}};
  const Tensor places = own_tokens();
  if (!whole.position_ids.defined() && whole.start != 0) {
    fail<ValueError>("context_parallel", "the metadata start at position ", whole.start,
                     ": expected 0, or position_ids");
  }
  const Tensor ids = whole.position_ids.defined()
                         ? taken(own_rows(whole.position_ids, "position_ids"), places)
                         : places;
  const auto of_each_row = [&](const Tensor& x) {  // (T) or (B, T)
    return contiguous(expand(x, {batches_, x.size(-1)}));
  };
  m.position_ids = wrap_local(to_device(of_each_row(ids), options_.device), layout_, tokens_);
  const auto of_tokens = [&](const Tensor& x, std::string_view what) {
    if (!x.defined()) return x;
    const Tensor all = of_each_row(own_rows(x, what, x.dtype()));
    return wrap_local(to_device(rows_taken(all, places), options_.device), layout_, tokens_);
  };
  m.query_scale = of_tokens(whole.query_scale, "query_scale");
  m.padding = of_tokens(whole.padding, "padding");
  m.cut = detail::cut_attention(options_, layout_, tokens_, plan(mask));
  return m;
}

std::shared_ptr<const AttentionPlan> SequenceCut::plan(const AttentionOptions& whole) const {
  const auto options = [&](const Tensor& queries, const Tensor& keys, bool in_order) {
    AttentionOptions o = whole;
    const Tensor& positions = whole.query_positions;
    o.query_positions = positions.defined() ? taken(positions, queries) : queries;
    if (!in_order) o.key_positions = positions.defined() ? taken(positions, keys) : keys;
    if (whole.query_documents.defined()) {
      o.query_documents = taken(whole.query_documents, queries);
      o.key_documents = taken(whole.key_documents, keys);
    }
    if (whole.block_map.blocks.defined())
      o.block_map = select_block_map(whole.block_map, queries, keys);
    return o;
  };
  const Tensor queries = tokens_of(part_ / inner_ * inner_, inner_);
  auto plan = std::make_shared<AttentionPlan>();
  plan->queries = queries.size(-1);
  if (!detail::goes_round(options_.method)) {
    const int64_t n = tokens_[1];
    plan->sources.push_back(
        {n, {{0, n, on(options_.device, options(queries, from_zero(n), true))}}});
    if (order_.defined()) {
      plan->key_rows = to_device(flat_rows(inverse(order_), batches_, n), options_.device);
      plan->token_rows = to_device(flat_rows(order_, batches_, n), options_.device);
    }
    return plan;
  }
  for (int first = 0; first < static_cast<int>(parts_.size()); first += inner_) {
    const Tensor all = tokens_of(first, inner_);
    KeySource source{all.size(-1)};
    // Keys in two runs, as of head_tail, are taken run by run: each is in order.
    std::vector<int64_t> ends = ends_of_runs(all);
    if (ends.size() != 2) ends = {source.keys};
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const Tensor keys = contiguous(slice(all, -1, {begin, end}));
      const AttentionOptions o = options(queries, keys, false);
      if (sees_any(count_seen_blocks(batches_, plan->queries, end - begin, o)))
        source.pieces.push_back({begin, end, on(options_.device, o)});
      begin = end;
    }
    plan->sources.push_back(std::move(source));
  }
  return plan;
}

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// Which rank keeps which token follows from the prompt's cut and the tokens' numbers, so that only
// what attention finds is ever sent.
#include "tessera/nn/context/generation_cut.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/context/cut_attention_impl.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera::nn {
namespace {

KvCache& cache_of(const CutAttention::Options& options, int64_t seen) {
  if (!options.cache || options.cache->length != seen) {
    fail<ValueError>("context_parallel", "these metadata are of tokens after ", seen,
                     " others: expected a cache of so many, given ",
                     options.cache ? concat("one of ", options.cache->length) : "none");
  }
  return *options.cache;
}

// Fills the caches from a prompt that is attended to as a batch of training is.
class PromptAttention final : public CutAttention {
 public:
  PromptAttention(std::shared_ptr<const CutAttention> cut, KeptTokens kept)
      : cut_(std::move(cut)), kept_(std::move(kept)) {}

  [[nodiscard]] std::array<Tensor, 2> attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const Options& options) const override {
    KvCache& cache = cache_of(options, 0);
    Tensor own_k = local(k), own_v = local(v);
    cache.append(own_k, own_v,
                 {.begin = 0, .room = kept_.count(cache.capacity), .tokens = kept_.prompt_length});
    Options whole = options;
    whole.cache = nullptr;
    return cut_->attend(q, k, v, whole);
  }

 private:
  std::shared_ptr<const CutAttention> cut_;
  KeptTokens kept_;
};

// {o, lse} of all keys from what those of each rank give: o (b, t, h, d) and lse (b, h, t).
std::array<Tensor, 2> merged(const Tensor& o, const Tensor& lse, Mesh mesh, const AxisList& axes) {
  const DType wide = lse.dtype();
  const Tensor own = cat({cast(o, wide), unsqueeze(permute(lse, {0, 2, 1}), 3)}, 3);
  const int64_t d = o.size(3);
  ProcessGroup& group = mesh.group(axes);
  const Tensor all =
      empty({group.size(), own.size(0), own.size(1), own.size(2), d + 1}, wide, own.device());
  record_collective(CollectiveKind::all_gather, mesh, axes, all, trace_tag());
  group.all_gather(own, all);
  const Tensor each = select(all, 4, d);  // (ranks, b, t, h)
  const Tensor top = amax(each, {0});
  // A row that no rank has seen keys for has -inf: 0 for it keeps differences of infinities away.
  const Tensor base = where(equal(top, -std::numeric_limits<double>::infinity()), 0.0, top);
  const Tensor weights = exp(each - base), total = sum(weights, {0});
  const Tensor shares = weights / where(equal(total, 0.0), 1.0, total);
  return {cast(sum(slice(all, 4, {0, d}) * unsqueeze(shares, 4), {0}), o.dtype()),
          permute(base + log(total), {0, 2, 1})};
}

// Tokens after the prompt, whose queries are on all ranks.
class LaterAttention final : public CutAttention {
 public:
  // Of `count` tokens after `seen` others.
  LaterAttention(Layout cut, AttentionOptions mask, KeptTokens kept, int64_t count, int64_t seen)
      : mesh_(cut.mesh()),
        axes_(cut.axes_of(1)),
        mask_(std::move(mask)),
        kept_(std::move(kept)),
        count_(count),
        seen_(seen) {}

  [[nodiscard]] std::array<Tensor, 2> attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const Options& options) const override {
    KvCache& cache = cache_of(options, seen_);
    Tensor all_k = own(k), all_v = own(v);
    cache.append(
        all_k, all_v,
        {.begin = kept_.count(seen_), .room = kept_.count(cache.capacity), .tokens = count_});
    const auto [o, lse] = scaled_dot_product_attention_with_lse(
        local(q), all_k, all_v, detail::ScoreOptions(options).of(mask_));
    const auto [all_o, all_lse] = merged(o, lse, mesh_, axes_);
    Shape shape = q.shape();
    shape[3] = v.size(3);
    const Layout layout = layout_of(q);
    if (!options.lse) return {wrap_local(all_o, layout, shape), Tensor()};
    return {wrap_local(all_o, layout, shape),
            wrap_local(all_lse, detail::lse_layout(layout), {shape[0], shape[2], shape[1]})};
  }

 private:
  // The tokens of x (B, T, H, D) that this rank keeps.
  [[nodiscard]] Tensor own(const Tensor& x) const {
    const int64_t first = (kept_.rank + kept_.ranks - seen_ % kept_.ranks) % kept_.ranks;
    return slice(local(x), 1, slice(first, count_, kept_.ranks));
  }

  Mesh mesh_;
  AxisList axes_;
  AttentionOptions mask_;
  KeptTokens kept_;
  int64_t count_, seen_;
};

}  // namespace

int64_t KeptTokens::count(int64_t tokens) const {
  const auto turns = [this](int64_t n) { return (n + ranks - 1 - rank) / ranks; };
  return prompt.size(0) + turns(tokens) - turns(prompt_length);
}

Tensor KeptTokens::positions(int64_t tokens) const {
  const Tensor all = empty({count(tokens)}, DType::i64);
  auto* to = std::copy_n(prompt.data<int64_t>(), prompt.numel(), all.data<int64_t>());
  for (int64_t p = prompt_length; p < tokens; ++p) {
    if (p % ranks == rank) *to++ = p;
  }
  return all;
}

GenerationCut::GenerationCut(ContextParallelOptions options) : options_(std::move(options)) {
  if (options_.balancer == LoadBalancer::document_head_tail)
    options_.balancer = LoadBalancer::head_tail;
}

GenerationCut::Step GenerationCut::next(const Tensor& tokens, int64_t seen,
                                        std::span<const AttentionMetadata> kinds) {
  for (const AttentionMetadata& kind : kinds) {
    if (!kind.documents.defined() && !kind.token_positions.defined() &&
        !kind.block_map.blocks.defined())
      continue;
    fail<ValueError>("context_parallel",
                     "a cache stores no documents, positions or blocks of its tokens: give "
                     "metadata without them, and each row one document in order");
  }
  Step step{tokens, {}};
  if (seen == 0) {
    const Layout rows = layout_of(tokens);
    prompt_.emplace(options_, rows, tokens.shape(), kinds);
    kept_ = {.prompt = prompt_->own_tokens(), .prompt_length = tokens.size(1)};
    for (const int axis : prompt_->layout().axes_of(1)) {
      kept_.ranks *= rows.mesh().size(axis);
      kept_.rank = kept_.rank * rows.mesh().size(axis) + rows.mesh().coordinate(axis);
    }
    step.tokens = prompt_->cut(tokens);
  } else if (!prompt_ || seen < kept_.prompt_length) {
    fail<ValueError>("context_parallel", "tokens after ", seen, " others are given, but ",
                     prompt_ ? concat("the prompt has ", kept_.prompt_length) : "no prompt came",
                     ": begin with the prompt");
  }
  for (const AttentionMetadata& kind : kinds) {
    step.kinds.push_back(seen == 0 ? prompt_metadata(kind)
                                   : later_metadata(kind, tokens.size(1), seen));
  }
  return step;
}

AttentionMetadata GenerationCut::prompt_metadata(const AttentionMetadata& whole) const {
  AttentionMetadata m = prompt_->metadata(whole);
  m.cut = std::make_shared<const PromptAttention>(std::move(m.cut), kept_);
  return m;
}

AttentionMetadata GenerationCut::later_metadata(const AttentionMetadata& whole, int64_t count,
                                                int64_t seen) const {
  AttentionOptions mask{.mask = whole.mask, .heads_inner = true};
  if (count == 1 && whole.mask == AttentionMask::causal()) {
    mask.mask = {};  // one token sees all before it
  } else {
    mask.query_start = seen;
    mask.key_positions = to_device(kept_.positions(seen + count), options_.device);
  }
  AttentionMetadata m = whole;
  m.mask = {};
  m.cut = std::make_shared<const LaterAttention>(prompt_->layout(), mask, kept_, count, seen);
  return m;
}

Tensor GenerationCut::last(const Tensor& h) const {
  const Layout layout = layout_of(h);
  if (layout.placement(options_.axes[0]) == Replicate()) return slice(h, 1, {h.size(1) - 1});
  const Tensor& order = prompt_->order();
  int64_t place = h.size(1) - 1;
  if (order.defined()) {
    const auto* first = order.data<int64_t>();
    place = std::find(first, first + h.size(1), place) - first;
  }
  const Tensor part = local(h);
  const int64_t at = place - layout.range(h.shape(), 1).begin;
  Shape shape = part.shape(), whole = h.shape();
  shape[1] = whole[1] = 1;
  Layout sums = layout;
  for (const int axis : layout.axes_of(1))
    sums = sums.with(layout.mesh().axis(axis).name, Partial());
  const Tensor own = at >= 0 && at < part.size(1) ? contiguous(slice(part, 1, {at, at + 1}))
                                                  : zeros(shape, part.dtype(), part.device());
  return redistribute(wrap_local(own, sums, whole), sums.without_partials());
}

}  // namespace tessera::nn

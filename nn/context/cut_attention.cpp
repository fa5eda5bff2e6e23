// SPDX-License-Identifier: Apache-2.0
// Attention between collectives that know nothing of masks. Exchanges of heads are conversions of a
// local region, whose gradients follow from the table of types; the ring and the gathering of keys
// are functions of their own, which send again in backward what they do not keep.
#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/local_region.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/context/cut_attention_impl.h"

#include <algorithm>

namespace tessera::nn {
namespace {

constexpr AxisType kVarying = AxisType::varying;

// One type for each axis: what no axis cuts is equal along it, and so is its gradient.
std::vector<AxisType> types_of(Layout layout) {
  std::vector<AxisType> types;
  for (const Placement& p : layout.placements())
    types.push_back(p.kind == Placement::Kind::shard ? kVarying : AxisType::invariant);
  return types;
}

class ContextAttention final : public CutAttention {
 public:
  ContextAttention(const ContextParallelOptions& options, Layout layout, const Shape& tokens,
                   std::shared_ptr<const AttentionPlan> plan)
      : method_(options.method), layout_(layout), tokens_(tokens), plan_(std::move(plan)) {
    if (detail::exchanges_heads(method_)) heads_axis_ = options.axes.back();
    if (detail::goes_round(method_)) ring_axis_ = options.axes.front();
    if (method_ == ContextMethod::all_gather) gather_axis_ = options.axes.front();
  }

  [[nodiscard]] std::array<Tensor, 2> attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const Options& options) const override {
    if (options.cache) {
      fail<ValueError>("context_parallel",
                       "these metadata are of a whole batch, which no cache follows: in "
                       "generation, give those of GenerationCut");
    }
    check(q, k, v);
    const int64_t copies = heads_axis_.empty() ? 1 : copies_of_keys(q, k);
    const Layout layout = layout_of(q);
    const std::vector<AxisType> types = types_of(layout);
    Shape shape = q.shape();
    shape[3] = v.size(3);
    std::vector<RegionOutput> outputs{{layout, shape, types}};
    if (options.lse) {
      const Layout of_lse = detail::lse_layout(layout);
      outputs.push_back({of_lse, {shape[0], shape[2], shape[1]}, types_of(of_lse)});
    }
    const std::vector<Tensor> result = local_region(
        [&](const std::vector<Tensor>& in) {
          auto [o, lse] = attend_locally(in[0], in[1], in[2], copies, options);
          return options.lse ? std::vector<Tensor>{o, lse} : std::vector<Tensor>{o};
        },
        {{q, types}, {k, types}, {v, types}}, outputs);
    return {result[0], options.lse ? result[1] : Tensor()};
  }

 private:
  void check(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const std::array operands{q, k, v};
    (void)op::Attention{.heads_inner = true}.meta(MetaArray(operands));
    for (const Tensor& x : operands) {
      if (!x.is_distributed()) {
        fail<LayoutError>("context_parallel", x.meta(), " is plain, but its sequence is cut over ",
                          layout_.mesh().text(), ": make it distributed");
      }
      const Layout layout = layout_of(x);
      const bool fits = layout.mesh() == layout_.mesh() &&
                        std::ranges::equal(layout.axes_of(0), layout_.axes_of(0)) &&
                        std::ranges::equal(layout.axes_of(1), layout_.axes_of(1)) &&
                        layout.axes_of(3).empty() && layout == layout_of(q) &&
                        x.size(0) == tokens_[0] && x.size(1) == tokens_[1];
      if (fits) continue;
      fail<LayoutError>("context_parallel", x.meta(), " lies as ", layout.text(),
                        ", but expected (B, T) = ", tokens_, " of ", layout_.text(),
                        " with heads that q, k and v have cut alike: redistribute it, or cut the "
                        "batch that it comes from");
    }
  }

  // How often each key head is repeated, so that every rank gets as many, with its query heads.
  [[nodiscard]] int64_t copies_of_keys(const Tensor& q, const Tensor& k) const {
    const Layout layout = layout_of(q);
    int64_t cut = 1;
    for (const int axis : layout.axes_of(2)) cut *= layout.mesh().size(axis);
    const int64_t ranks = layout.mesh().size(heads_axis_), heads = q.size(2), key_heads = k.size(2);
    const int64_t copies = key_head_copies(heads / cut, key_heads / cut, ranks);
    if (key_heads % cut == 0 && copies > 0) return copies;
    fail<ValueError>("context_parallel", method_, " cannot give each of ", counted(ranks, "rank"),
                     " of \"", heads_axis_, "\" equal shares of ", counted(heads, "query head"),
                     " and ", counted(key_heads, "key head"),
                     cut > 1 ? concat(", cut in ", cut, " already") : "",
                     ", even with key heads repeated: use ",
                     method_ == ContextMethod::ulysses ? "all_gather or ring" : "ring");
  }

  // x with `from` whole on each rank of the heads' axis, and `to` cut.
  [[nodiscard]] Tensor exchanged(const Tensor& x, int from, int to, int64_t whole) const {
    return convert(x, layout_.mesh(), heads_axis_, kVarying, kVarying,
                   {.dim = from, .to_dim = to, .whole = whole});
  }

  [[nodiscard]] std::array<Tensor, 2> attend_locally(Tensor q, Tensor k, Tensor v, int64_t copies,
                                                     const Options& options) const {
    const int64_t heads = q.size(2);
    if (!heads_axis_.empty()) {
      for (Tensor* x : {&k, &v}) {
        if (copies > 1) *x = repeat_interleave(*x, copies, 2);
      }
      for (Tensor* x : {&q, &k, &v}) *x = exchanged(*x, 1, 2, plan_->queries);
    }
    auto [o, lse] = [&] {
      const Mesh mesh = layout_.mesh();
      const detail::ScoreOptions scores(options);
      if (!ring_axis_.empty())
        return detail::ring_attention(q, k, v, plan_, mesh, mesh.index(ring_axis_), scores);
      if (!gather_axis_.empty())
        return detail::gathered_attention(q, k, v, plan_, mesh, gather_axis_, scores);
      return attend_to_all(q, k, v, scores);
    }();
    if (heads_axis_.empty()) return {o, lse};
    return {exchanged(o, 2, 1, heads), options.lse ? exchanged(lse, 1, 2, heads) : Tensor()};
  }

  // To the keys of all parts, which are here, but not in order.
  [[nodiscard]] std::array<Tensor, 2> attend_to_all(const Tensor& q, Tensor k, Tensor v,
                                                    const detail::ScoreOptions& scores) const {
    for (Tensor* x : {&k, &v}) {
      if (!plan_->key_rows.defined()) break;
      const Shape shape = x->shape();
      const Tensor rows = reshape(*x, {shape[0] * shape[1], shape[2], shape[3]});
      *x = reshape(index_select(rows, 0, plan_->key_rows), shape);
    }
    return scaled_dot_product_attention_with_lse(q, k, v,
                                                 scores.of(plan_->sources[0].pieces[0].options));
  }

  ContextMethod method_;
  std::string ring_axis_, gather_axis_, heads_axis_;  // empty: none
  Layout layout_;
  Shape tokens_;
  std::shared_ptr<const AttentionPlan> plan_;
};

}  // namespace

Layout detail::lse_layout(Layout layout) {
  AxisStates states = layout.states();
  for (AxisState& s : states) {
    if (s.placement.kind != Placement::Kind::shard || s.placement.dim == 0) continue;
    s.placement.dim = static_cast<int16_t>(3 - s.placement.dim);  // heads before the sequence
  }
  return Layout::intern(layout.mesh(), states);
}

std::shared_ptr<const CutAttention> detail::cut_attention(
    const ContextParallelOptions& options, Layout layout, const Shape& tokens,
    std::shared_ptr<const AttentionPlan> plan) {
  return std::make_shared<const ContextAttention>(options, layout, tokens, std::move(plan));
}

}  // namespace tessera::nn

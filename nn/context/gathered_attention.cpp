// SPDX-License-Identifier: Apache-2.0
// All keys and values of a layer live while its attention runs, and no longer: a rank keeps its own
// part of them, and backward gathers them again. What that sends costs little beside attention to
// them, and keeping them would make the memory of a step that of whole sequences.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/local_region.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/context/cut_attention_impl.h"

#include <algorithm>
#include <utility>

namespace tessera::nn {
namespace {

using detail::ScoreOptions;

class Gathered {
 public:
  Gathered(std::shared_ptr<const AttentionPlan> plan, Mesh mesh, std::string axis,
           const ScoreOptions& scores)
      : plan_(std::move(plan)), mesh_(mesh), axis_(std::move(axis)), scores_(scores) {}

  [[nodiscard]] std::array<Tensor, 2> forward(const Tensor& q, const Tensor& k,
                                              const Tensor& v) const {
    return scaled_dot_product_attention_with_lse(q, whole(k), whole(v), options());
  }

  // `saved`: q, k, v, o, lse. Heads are independent, so it takes as many groups of them as there
  // are ranks: all keys of a group need no more memory than this rank's own keys of all heads.
  [[nodiscard]] Grads backward(const std::vector<Tensor>& saved, const Grads& dy) const {
    const Tensor &q = saved[0], &k = saved[1];
    const int64_t heads = k.size(2), ranks = mesh_.size(mesh_.index(axis_)),
                  group = (heads + ranks - 1) / ranks, queries = q.size(2) / heads;
    const Tensor dout = dy[0].defined() ? dy[0] : zeros_like(saved[3]);
    std::array<std::vector<Tensor>, 3> parts;
    for (int64_t first = 0; first < heads; first += group) {
      const int64_t end = std::min(first + group, heads);
      const auto of_queries = [&](const Tensor& x, int dim) {
        return x.defined() ? slice(x, dim, {first * queries, end * queries}) : x;
      };
      const auto of_keys = [&](const Tensor& x) { return slice(x, 2, {first, end}); };
      auto gradients = of_group({of_queries(q, 2), of_keys(k), of_keys(saved[2]),
                                 of_queries(saved[3], 2), of_queries(saved[4], 1)},
                                of_queries(dout, 2), of_queries(dy[1], 1));
      for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(std::move(gradients[i]));
    }
    return {cat(parts[0], 2), cat(parts[1], 2), cat(parts[2], 2)};
  }

 private:
  [[nodiscard]] AttentionOptions options() const {
    return scores_.of(plan_->sources[0].pieces[0].options);
  }
  // Gradients of q and of this rank's k and v.
  [[nodiscard]] std::array<Tensor, 3> of_group(const std::array<Tensor, 5>& saved,
                                               const Tensor& dout, const Tensor& dlse) const {
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &o = saved[3], &lse = saved[4];
    const AttentionOptions m = options();
    // As in the gradient of the op itself: wider dtypes round o as finely as sums of p dp are.
    const op::AttentionBackward op{.mask = m.mask,
                                   .heads_inner = m.heads_inner,
                                   .scale = m.scale,
                                   .query_start = m.query_start.value_or(0),
                                   .key_start = m.key_start,
                                   .all_keys = item_size(o.dtype()) < 4,
                                   .soft_cap = m.soft_cap};
    auto found = [&] {
      const std::array in{q,
                          whole(k),
                          whole(v),
                          o,
                          lse,
                          dout,
                          dlse,
                          m.query_positions,
                          m.key_positions,
                          m.query_documents,
                          m.key_documents,
                          m.block_map.blocks,
                          m.block_map.bits};
      return call(op, in);
    }();
    for (const size_t i : {1u, 2u}) found[i] = part(std::move(found[i]));
    return found;
  }
  // This rank's part of keys or values -> all of them, in the order of the sequence.
  [[nodiscard]] Tensor whole(const Tensor& x) const {
    return moved(convert(x, mesh_, axis_, AxisType::varying, AxisType::replicate,
                         {.dim = 1, .whole = plan_->sources[0].keys}),
                 plan_->key_rows);
  }
  // Its transpose, for what each rank has found of the gradient.
  [[nodiscard]] Tensor part(Tensor dx) const {
    return convert(moved(std::move(dx), plan_->token_rows), mesh_, axis_, AxisType::partial,
                   AxisType::varying, {.dim = 1});
  }
  // x (b, T, h, d) with its rows in another order.
  [[nodiscard]] static Tensor moved(Tensor x, const Tensor& rows) {
    if (!rows.defined()) return x;
    const Shape shape = x.shape();
    const Tensor flat = reshape(std::exchange(x, {}), {shape[0] * shape[1], shape[2], shape[3]});
    return reshape(index_select(flat, 0, rows), shape);
  }

  std::shared_ptr<const AttentionPlan> plan_;
  Mesh mesh_;
  std::string axis_;
  ScoreOptions scores_;
};

}  // namespace

std::array<Tensor, 2> detail::gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 std::shared_ptr<const AttentionPlan> plan,
                                                 Mesh mesh, const std::string& axis,
                                                 const ScoreOptions& scores) {
  const Gathered gathered(std::move(plan), mesh, axis, scores);
  const Function function{"gathered_attention",
                          [gathered](FunctionContext& context, Tensors in) {
                            const auto [o, lse] = gathered.forward(in[0], in[1], in[2]);
                            context.save({in[0], in[1], in[2], o, lse});
                            return TensorList{o, lse};
                          },
                          [gathered](FunctionContext& context, const Grads& dy) {
                            return gathered.backward(context.saved(), dy);
                          }};
  const TensorList result = apply(function, {q, k, v});
  return {result[0], result[1]};
}

}  // namespace tessera::nn

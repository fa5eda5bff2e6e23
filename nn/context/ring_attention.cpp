// SPDX-License-Identifier: Apache-2.0
// In step i a rank works on the keys of the rank i before it, while they travel on to the next.
// Each step is one collective, whatever a rank sees of the keys. The gradients of a source's keys
// travel with them, one step behind, so each sum begins at home and has one order on every run.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/context/cut_attention_impl.h"

#include <limits>

namespace tessera::nn {
namespace {

using detail::ScoreOptions;

// Keys and values of one source in one flat tensor, which is what travels.
struct Pair {
  Tensor k, v;
};
Pair views_of(const Tensor& flat, Shape k, Shape v, int64_t keys) {
  k[1] = v[1] = keys;
  return {alias(flat, k, contiguous_strides(k), 0),
          alias(flat, v, contiguous_strides(v), k.numel())};
}
Tensor flat_of(const Tensor& k, const Tensor& v) {
  return cat({reshape(contiguous(k), {k.numel()}), reshape(contiguous(v), {v.numel()})});
}
Pair piece_of(const Pair& all, const KeyPiece& piece) {
  return {slice(all.k, 1, {piece.begin, piece.end}), slice(all.v, 1, {piece.begin, piece.end})};
}

// The running softmax of queries over pieces of their keys (Liu et al., 2023).
class Merged {
 public:
  // o (b, t, h, d), lse (b, h, t) of more keys.
  void add(const Tensor& o, const Tensor& lse) {
    const DType wide = lse.dtype();
    if (!o_.defined()) {
      o_ = cast(o, wide);
      lse_ = lse;
      return;
    }
    // A row that has seen nothing has -inf: 0 for it keeps differences of infinities away.
    const Tensor top = maximum(lse_, lse);
    const Tensor base = where(equal(top, -std::numeric_limits<double>::infinity()), 0.0, top);
    const Tensor more = exp(lse - base), all = exp(lse_ - base) + more;
    const Tensor share = more / where(equal(all, 0.0), 1.0, all);  // of the new keys
    o_ = o_ + (cast(o, wide) - o_) * unsqueeze(permute(share, {0, 2, 1}), 3);
    lse_ = base + log(all);
  }
  // {o, lse}, zeros and -inf where nothing was added.
  [[nodiscard]] std::array<Tensor, 2> result(const Tensor& q, const Tensor& v) const {
    if (o_.defined()) return {cast(o_, q.dtype()), lse_};
    Shape shape = q.shape();
    shape[3] = v.size(3);
    return {zeros(shape, q.dtype(), q.device()),
            full({q.size(0), q.size(2), q.size(1)}, -std::numeric_limits<double>::infinity(),
                 compute_dtype(q.dtype()), q.device())};
  }

 private:
  Tensor o_, lse_;
};

class Ring {
 public:
  Ring(std::shared_ptr<const AttentionPlan> plan, Mesh mesh, int axis, const ScoreOptions& scores,
       Shape k, Shape v)
      : plan_(std::move(plan)), mesh_(mesh), axis_(axis), scores_(scores), k_(k), v_(v) {}

  [[nodiscard]] std::array<Tensor, 2> forward(const Tensor& q, const Tensor& k,
                                              const Tensor& v) const {
    Merged merged;
    Tensor flat = flat_of(k, v);
    for (int step = 0; step < size(); ++step) {
      const Tensor next = step + 1 < size() ? passed_on(flat, step) : Tensor();
      const KeySource& source = source_of(step);
      const Pair all = views_of(flat, k_, v_, source.keys);
      for (const KeyPiece& piece : source.pieces) {
        const Pair some = piece_of(all, piece);
        const auto [o, lse] =
            scaled_dot_product_attention_with_lse(q, some.k, some.v, scores_.of(piece.options));
        merged.add(o, lse);
      }
      flat = next;
    }
    return merged.result(q, v);
  }

  // `saved`: q, k, v, o, lse.
  [[nodiscard]] Grads backward(const std::vector<Tensor>& saved, const Grads& dy) const {
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const Tensor dout = dy[0].defined() ? dy[0] : zeros_like(saved[3]);
    Tensor flat = flat_of(k, v), dq;
    Tensor sums = zeros({flat.numel()}, saved[4].dtype(), q.device());
    for (int step = 0; step < size(); ++step) {
      const Tensor next = step + 1 < size() ? passed_on(flat, step) : Tensor();
      add_gradients(source_of(step), flat, saved, {dout, dy[1]}, sums, dq);
      flat = next;
      if (size() > 1) sums = passed_on(sums, step);
    }
    const Pair home = views_of(sums, k_, v_, k_[1]);
    return {dq.defined() ? cast(dq, q.dtype()) : zeros_like(q), cast(home.k, k.dtype()),
            cast(home.v, v.dtype())};
  }

 private:
  [[nodiscard]] int size() const { return mesh_.size(axis_); }
  // The rank whose keys this one has in a step.
  [[nodiscard]] int owner(int step) const {
    return ((mesh_.coordinate(axis_) - step) % size() + size()) % size();
  }
  [[nodiscard]] const KeySource& source_of(int step) const {
    return plan_->sources[static_cast<size_t>(owner(step))];
  }
  // Sends what belongs to this step's keys to the next rank; what comes from the one before. It may
  // be under way.
  [[nodiscard]] Tensor passed_on(const Tensor& flat, int step) const {
    Shape k = k_, v = v_;
    k[1] = v[1] = source_of(step + 1).keys;
    const Tensor next = empty({k.numel() + v.numel()}, flat.dtype(), flat.device());
    Counts send(static_cast<size_t>(size()), 0), receive = send;
    send[static_cast<size_t>(owner(-1))] = flat.numel();
    receive[static_cast<size_t>(owner(1))] = next.numel();
    record_collective(CollectiveKind::all_to_all, mesh_, {&axis_, 1}, flat, trace_tag());
    mesh_.group(axis_).all_to_all(flat, next, send, receive);
    return next;
  }
  // Adds the gradients of a source's keys and values, which are `flat`, to `sums`, and its part of
  // dq. What arrives in `sums` is waited for after the first of them is there. The saved o is that
  // of all keys, so delta is the sum of dout o.
  void add_gradients(const KeySource& source, const Tensor& flat, const std::vector<Tensor>& saved,
                     const Grads& dy, const Tensor& sums, Tensor& dq) const {
    const Pair all = views_of(flat, k_, v_, source.keys), to = views_of(sums, k_, v_, source.keys);
    for (const KeyPiece& piece : source.pieces) {
      const Pair keys = piece_of(all, piece), of_keys = piece_of(to, piece);
      const AttentionOptions o = scores_.of(piece.options);
      const op::AttentionBackward op{.mask = o.mask,
                                     .heads_inner = o.heads_inner,
                                     .scale = o.scale,
                                     .query_start = o.query_start.value_or(0),
                                     .key_start = o.key_start,
                                     .soft_cap = o.soft_cap};
      const std::array in{saved[0],        keys.k,
                          keys.v,          saved[3],
                          saved[4],        dy[0],
                          dy[1],           o.query_positions,
                          o.key_positions, o.query_documents,
                          o.key_documents, o.block_map.blocks,
                          o.block_map.bits};
      const auto [part, dk, dv] = call(op, in);
      assign_(of_keys.k, of_keys.k + cast(dk, sums.dtype()));
      assign_(of_keys.v, of_keys.v + cast(dv, sums.dtype()));
      const Tensor more = cast(part, sums.dtype());
      dq = dq.defined() ? dq + more : more;
    }
  }

  std::shared_ptr<const AttentionPlan> plan_;
  Mesh mesh_;
  int axis_;
  ScoreOptions scores_;
  Shape k_, v_;  // of this rank's keys and values
};

}  // namespace

std::array<Tensor, 2> detail::ring_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                             std::shared_ptr<const AttentionPlan> plan, Mesh mesh,
                                             int axis, const ScoreOptions& scores) {
  const Ring ring(std::move(plan), mesh, axis, scores, k.shape(), v.shape());
  const Function function{"ring_attention",
                          [ring](FunctionContext& context, Tensors in) {
                            const auto [o, lse] = ring.forward(in[0], in[1], in[2]);
                            context.save({in[0], in[1], in[2], o, lse});
                            return TensorList{o, lse};
                          },
                          [ring](FunctionContext& context, const Grads& dy) {
                            return ring.backward(context.saved(), dy);
                          }};
  const TensorList result = apply(function, {q, k, v});
  return {result[0], result[1]};
}

}  // namespace tessera::nn

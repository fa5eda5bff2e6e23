// SPDX-License-Identifier: Apache-2.0
// RoPE tables are made for a range of positions, so that layers never move or compute them.
#include "tessera/models/rotary_decoder.h"

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parallel/expert_parallel.h"

#include <algorithm>

namespace tessera::models {

RotaryBlock::RotaryBlock(const nn::Attention::Config& a, const nn::FeedForward::Config& f,
                         double norm_eps)
    : attention(a),
      feed_forward(f),
      attention_norm(a.dim, norm_eps, a.dtype),
      ffn_norm(a.dim, norm_eps, a.dtype) {}

RotaryBlock::RotaryBlock(const nn::Attention::Config& a, const nn::MoE::Config& experts,
                         double norm_eps)
    : attention(a),
      moe(experts),
      attention_norm(a.dim, norm_eps, a.dtype),
      ffn_norm(a.dim, norm_eps, a.dtype) {}

void RotaryBlock::visit(nn::Visitor& visitor) {
  visitor.child("attention", attention);
  visitor.child("feed_forward", feed_forward);
  visitor.child("moe", moe);
  visitor.child("attention_norm", attention_norm);
  visitor.child("ffn_norm", ffn_norm);
}

LayerResult RotaryBlock::forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                                 nn::KvCache* cache) const {
  const Tensor h = x + attention(attention_norm(x), metadata, cache);
  if (feed_forward) return {h + (*feed_forward)(ffn_norm(h))};
  const nn::MoEResult mixed = (*moe)(ffn_norm(h), metadata.padding);
  return {h + mixed.y, mixed.load, mixed.sums};
}

nn::Router::Config router_config(const config::MoeConfig& moe, int64_t dim, DType dtype) {
  return {.dim = dim,
          .experts = moe.num_experts,
          .top_k = moe.top_k,
          .route_norm = moe.route_norm,
          .balance_loss = moe.balance_loss_coeff,
          .z_loss = moe.z_loss_coeff,
          .capacity_factor = moe.capacity_factor,
          .dtype = dtype};
}

void RotaryDecoder::visit(nn::Visitor& visitor) {
  visitor.child("tok_embeddings", tok_embeddings);
  visitor.children("layers", layers);
  visitor.child("norm", norm);
  visitor.child("output", output);
}

Metadata RotaryDecoder::plain_metadata(int64_t length, int64_t start) const {
  return {{nn::causal_metadata(length, heads_.dim, heads_.rope_theta, start, heads_.rope_scaling,
                               heads_.dtype == DType::f64 ? DType::f64 : DType::f32)}};
}

Tensor RotaryDecoder::embed(const Tensor& tokens, const Metadata&) const {
  return (*tok_embeddings)(tokens);
}

Decoder::Head RotaryDecoder::head() const {
  if (output) return {&*output, output->weight};
  if (tied_ && tok_embeddings) return {&*tok_embeddings, tok_embeddings->weight};
  return {};
}

nn::TensorParallelPlan RotaryDecoder::tensor_parallel_plan(
    const nn::TensorParallelOptions& options) const {
  const tessera::Placement stream = options.stream();
  nn::TensorParallelPlan plan{.options = options};
  plan.divided = {{"model.n_heads", heads_.query}, {"model.n_kv_heads", heads_.key}};
  if (tok_embeddings) {
    nn::TensorParallelStyle style = nn::vocabulary_parallel(stream);
    if (!output && tied_ && !options.loss_parallel) style.parameters.clear();
    plan.add({"tok_embeddings"}, style);
  }
  if (layers.begin() != layers.end()) {
    plan.add({"layers.*.attention_norm", "layers.*.ffn_norm"}, nn::replicated_parameters())
        .add({"layers.*.attention"}, nn::whole_inputs())
        .add({"layers.*.attention.wq", "layers.*.attention.wk", "layers.*.attention.wv"},
             nn::column_parallel())
        .add({"layers.*.attention.wo"}, nn::row_parallel(stream));
    if (std::ranges::any_of(layers,
                            [](const RotaryBlock& b) { return b.feed_forward.has_value(); })) {
      plan.add({"layers.*.feed_forward"}, nn::whole_inputs())
          .add({"layers.*.feed_forward.w1", "layers.*.feed_forward.w3"}, nn::column_parallel())
          .add({"layers.*.feed_forward.w2"}, nn::row_parallel(stream));
    }
    const auto block =
        std::ranges::find_if(layers, [](const RotaryBlock& b) { return b.moe.has_value(); });
    if (block != layers.end())
      nn::add_mixture(plan, "layers.*.moe", (*block).moe->shared_experts.has_value());
    if (layers.begin()->attention.q_norm) {
      plan.add({"layers.*.attention.q_norm", "layers.*.attention.k_norm"},
               nn::replicated_parameters());
    }
  }
  if (norm) plan.add({"norm"}, nn::whole_outputs());
  if (output) {
    plan.add({"output"},
             options.loss_parallel ? nn::column_parallel() : nn::replicated_parameters());
  }
  return plan;
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// RoPE tables are made for a range of positions, so that layers never move or compute them. A
// sequence that is no longer than a window or chunk needs neither, and causal attention is the
// fastest.
#include "tessera/models/transformer.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/planner/planner.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parallel/expert_parallel.h"

#include <algorithm>
#include <cmath>

namespace tessera::models {
namespace {

using nn::Init;
using Positions = Architecture::Positions;
using QkNorm = Architecture::Attention::QkNorm;

Init plain_init(const Architecture& a) {
  return a.initial.truncated ? Init::truncated_normal(a.initial.std) : Init::normal(a.initial.std);
}

// Of what adds to the residual stream.
Init residual_init(const Architecture& a, int64_t layer) {
  using Depth = Architecture::Initial::Depth;
  Init init = plain_init(a);
  if (a.initial.depth == Depth::own) init.std /= std::sqrt(2.0 * static_cast<double>(layer + 1));
  if (a.initial.depth == Depth::layers)
    init.std /= std::sqrt(2.0 * static_cast<double>(a.n_layers));
  return init;
}

Init feed_forward_init(const Architecture& a, int64_t layer) {
  return a.initial.feed_forward_by_depth ? residual_init(a, layer) : plain_init(a);
}

Init head_init(const Architecture& a) {
  if (!a.initial.unit_embeddings) return plain_init(a);
  return Init::truncated_normal(1 / std::sqrt(static_cast<double>(a.dim)));
}

Init embedding_init(const Architecture& a) {
  if (a.embeddings.tied) return head_init(a);
  return a.initial.unit_embeddings ? Init::normal(1) : plain_init(a);
}

nn::Attention::Config attention_of(const Architecture& a, int64_t layer) {
  const auto& f = a.attention;
  const bool rope = a.has_rope(layer);
  return {.dim = a.dim,
          .n_heads = f.n_heads,
          .n_kv_heads = a.kv_heads(),
          .head_dim = a.head_dim(),
          .input = plain_init(a),
          .output = residual_init(a, layer),
          .qkv_bias = f.qkv_bias,
          .output_bias = f.output_bias,
          .rotary = rope,
          .rope_halves = a.positions.kind == Positions::Kind::halves,
          .rotary_dim = rope && a.rotary_dim() < a.head_dim() ? a.rotary_dim() : 0,
          .scale = a.score_scale(),
          .qk_norm_eps = f.qk_norm == QkNorm::heads || f.qk_norm == QkNorm::whole ? a.norm.eps : 0,
          .qk_norm_whole = f.qk_norm == QkNorm::whole,
          .qk_norm_offset = a.norm.weight_offset,
          .qk_l2_norm_eps = f.qk_norm == QkNorm::l2 && rope ? a.norm.eps : 0,
          .soft_cap = f.soft_cap,
          .fused_qkv = f.fused_qkv,
          .dtype = a.dtype};
}

nn::Router::Config router_of(const Architecture& a) {
  const config::MoeConfig& moe = a.experts.moe;
  return {.dim = a.dim,
          .experts = moe.num_experts,
          .top_k = moe.top_k,
          .score = a.experts.score,
          .route_norm = moe.route_norm,
          .balance_loss = moe.balance_loss_coeff,
          .z_loss = moe.z_loss_coeff,
          .capacity_factor = moe.capacity_factor,
          .dtype = a.dtype};
}

nn::MoE::Config experts_of(const Architecture& a, int64_t layer) {
  nn::Router::Config router = router_of(a);
  router.gate = feed_forward_init(a, layer);
  return {.router = router,
          .hidden = a.experts.moe.moe_inter_dim,
          .shared_experts = a.experts.shared_experts,
          .shared_hidden = a.experts.shared_hidden,
          .shared_gate = a.experts.shared_gate,
          .score_before_experts = a.experts.score_before_experts,
          .balance = a.experts.moe.load_balance_coeff > 0,
          .gate = plain_init(a),
          .output = residual_init(a, layer),
          .up = feed_forward_init(a, layer)};
}

nn::Norm::Config norm_of(const Architecture& a) {
  return {.kind = a.norm.kind,
          .dim = a.dim,
          .eps = a.norm.eps,
          .weight_offset = a.norm.weight_offset,
          .bias = a.norm.bias,
          .dtype = a.dtype};
}

DType table_dtype(const Architecture& a) { return a.dtype == DType::f64 ? DType::f64 : DType::f32; }

double rounded(double value, DType dtype) {
  return dispatch<kFloats>(dtype,
                           [&]<class T>() { return static_cast<double>(static_cast<T>(value)); });
}

double causal_pairs(int64_t n) { return static_cast<double>(n) * static_cast<double>(n + 1) / 2; }

// Of a document alone. The mask counts chunks from the start of the row, where documents are
// packed: one that begins within a chunk may be cut at other places, and has somewhat other pairs.
double pairs_of(const Architecture& a, Architecture::Span span, int64_t length) {
  if (span == Architecture::Span::chunk) {
    const int64_t chunk = a.spans.chunk;
    return static_cast<double>(length / chunk) * causal_pairs(chunk) + causal_pairs(length % chunk);
  }
  if (span == Architecture::Span::full) return causal_pairs(length);
  const int64_t outside = std::max<int64_t>(0, length - a.spans.sliding_window);
  return causal_pairs(length) - causal_pairs(outside);
}

}  // namespace

TransformerBlock::TransformerBlock(const Architecture& a, int64_t layer)
    : attention(attention_of(a, layer)), residual_(a.residual) {
  const auto& f = a.feed_forward;
  const Init output = feed_forward_init(a, layer);
  if (a.has_experts(layer)) {
    moe.emplace(experts_of(a, layer));
  } else if (f.gated) {
    feed_forward.emplace(nn::FeedForward::Config{.dim = a.dim,
                                                 .hidden = f.dim,
                                                 .gate = plain_init(a),
                                                 .output = output,
                                                 .dtype = a.dtype,
                                                 .bias = f.bias,
                                                 .nonlinearity = f.nonlinearity});
  } else {
    mlp.emplace(nn::Mlp::Config{.dim = a.dim,
                                .hidden = f.dim,
                                .input = plain_init(a),
                                .output = output,
                                .bias = f.bias,
                                .nonlinearity = f.nonlinearity,
                                .dtype = a.dtype});
  }
  if (residual_.before) attention_norm.emplace(norm_of(a));
  const bool shared = residual_.parallel && residual_.shared_norm;
  if (residual_.before && !shared) ffn_norm.emplace(norm_of(a));
  if (residual_.after) {
    attention_post_norm.emplace(norm_of(a));
    ffn_post_norm.emplace(norm_of(a));
  }
  if (residual_.dropout > 0) dropout.emplace(residual_.dropout);
}

void TransformerBlock::visit(nn::Visitor& visitor) {
  visitor.child("attention", attention);
  visitor.child("feed_forward", feed_forward);
  visitor.child("feed_forward", mlp);
  visitor.child("moe", moe);
  visitor.child("attention_norm", attention_norm);
  visitor.child("ffn_norm", ffn_norm);
  visitor.child("attention_post_norm", attention_post_norm);
  visitor.child("ffn_post_norm", ffn_post_norm);
  visitor.child("dropout", dropout);
}

Tensor TransformerBlock::added(const Tensor& y, const std::optional<nn::Norm>& norm) const {
  Tensor z = norm ? (*norm)(y) : y;
  if (dropout) z = (*dropout)(z);
  return residual_.multiplier == 1 ? z : z * residual_.multiplier;
}

LayerResult TransformerBlock::forward(const Tensor& x, const nn::AttentionMetadata& metadata,
                                      nn::KvCache* cache) const {
  const Tensor read = attention_norm ? (*attention_norm)(x) : x;  // (B, T, dim)
  const Tensor h = x + added(attention(read, metadata, cache), attention_post_norm);
  Tensor in = !residual_.parallel ? h : residual_.shared_norm ? read : x;
  if (ffn_norm) in = (*ffn_norm)(in);
  if (moe) {
    const nn::MoEResult mixed = (*moe)(in, metadata.padding);
    return {h + added(mixed.y, ffn_post_norm), mixed.load, mixed.sums};
  }
  return {h + added(mlp ? (*mlp)(in) : (*feed_forward)(in), ffn_post_norm)};
}

Transformer::Transformer(const Architecture& a)
    : UniformDecoder({.family = a.family,
                      .vocab_size = a.vocab_size,
                      .max_seq_len = a.max_seq_len,
                      .n_layers = a.n_layers,
                      .attention_dim = a.attention.n_heads * a.head_dim(),
                      .router = router_of(a),
                      .load_balance_coeff = a.experts.moe.load_balance_coeff,
                      .logit_scale = a.embeddings.logit_scale / a.embeddings.logits_scaling,
                      .logit_soft_cap = a.embeddings.soft_cap}),
      a_(a) {
  tok_embeddings.emplace(a.vocab_size, a.dim, embedding_init(a), a.dtype);
  if (a.positions.kind == Positions::Kind::learned)
    pos_embeddings.emplace(a.max_seq_len, a.dim, plain_init(a), a.dtype);
  if (a.embeddings.dropout > 0) dropout.emplace(a.embeddings.dropout);
  for (int64_t i = 0; i < a.n_layers; ++i) {
    layers.emplace_back(a, i);
    const Kind kind = kind_of(i);
    const auto at = std::ranges::find(kinds_, kind);
    layer_kinds_.push_back(static_cast<size_t>(at - kinds_.begin()));
    if (at == kinds_.end()) kinds_.push_back(kind);
  }
  norm.emplace(norm_of(a));
  if (!a.embeddings.tied) output.emplace(a.dim, a.vocab_size, head_init(a), a.dtype);
}

void Transformer::visit(nn::Visitor& visitor) {
  visitor.child("tok_embeddings", tok_embeddings);
  visitor.child("pos_embeddings", pos_embeddings);
  if (tok_embeddings) visitor.child("dropout", dropout);
  visitor.children("layers", layers);
  visitor.child("norm", norm);
  visitor.child("output", output);
}

double Transformer::flops(std::span<const int64_t> documents) {
  double tokens = 0;
  for (const int64_t length : documents) tokens += static_cast<double>(length);
  const int64_t rows = pos_embeddings ? pos_embeddings->weight.numel() : 0;
  return Decoder::flops(documents) - 6.0 * static_cast<double>(rows) * tokens;
}

double Transformer::pairs(int64_t length) {
  double sum = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers.has(i)) sum += pairs_of(a_, kinds_[layer_kinds_[i]].span, length);
  return sum;
}

Metadata Transformer::plain_metadata_of_part(int64_t length, int64_t start, int64_t whole) const {
  Metadata m;
  for (const Kind& kind : kinds_) m.kinds.push_back(metadata_of(kind, length, start, whole));
  for (nn::AttentionMetadata& k : m.kinds) k.layers = 0;
  for (const size_t kind : layer_kinds_) ++m.kinds[kind].layers;
  return m;
}

nn::AttentionMetadata Transformer::metadata_of(const Kind& kind, int64_t length, int64_t start,
                                               int64_t whole) const {
  const Positions& p = a_.positions;
  nn::AttentionMetadata m{.start = start};
  const bool window = kind.span == Architecture::Span::window;
  if (kind.rope) {
    const bool local = window && p.local_theta > 0;
    RopeScaling scaling = local ? RopeScaling{} : p.scaling;
    scaling.is_long = whole > scaling.original_max_position;
    m = nn::causal_metadata(length, a_.rotary_dim(), local ? p.local_theta : p.theta, start,
                            scaling, table_dtype(a_));
  }
  const int64_t seen = window ? a_.spans.sliding_window : a_.spans.chunk;
  if (window && start + length > seen) m.mask = m.mask & AttentionMask::window(seen);
  if (kind.span == Architecture::Span::chunk && start + length > seen)
    m.mask = m.mask & AttentionMask::chunk(seen);
  const Positions::Temperature& t = p.temperature;
  if (t.scale != 0 && t.with_rope == kind.rope) {
    const int64_t floor = t.floor_scale > 0 ? t.floor_scale : p.scaling.original_max_position;
    m.query_scale =
        nn::query_temperature(length, start + t.first_position, floor, t.scale, table_dtype(a_));
  }
  return m;
}

Tensor Transformer::embed(const Tensor& tokens, const Metadata& metadata) const {
  Tensor x = (*tok_embeddings)(tokens);  // (B, T, dim)
  const Architecture::Embeddings& e = a_.embeddings;
  if (e.times_root_of_dim) x = x * rounded(std::sqrt(static_cast<double>(a_.dim)), x.dtype());
  if (e.multiplier != 1) x = x * e.multiplier;
  if (a_.positions.kind == Positions::Kind::learned) x = x + learned_positions(tokens, metadata);
  return dropout ? (*dropout)(x) : x;
}

Tensor Transformer::learned_positions(const Tensor& tokens, const Metadata& metadata) const {
  if (!pos_embeddings) {
    fail<UsageError>(a_.family,
                     "a stage that embeds tokens needs pos_embeddings beside tok_embeddings: keep "
                     "both");
  }
  Tensor positions = metadata.of().position_ids;  // (B, T), or (T) if equal for all rows
  if (!positions.defined()) {
    const op::Arange made{.start = static_cast<double>(metadata.of().start),
                          .count = tokens.size(1),
                          .device = tokens.device()};
    positions = tokens.is_distributed()
                    ? call_on(made, Layout::replicated(layout_of(tokens).mesh()))
                    : call(made, {});
  }
  return (*pos_embeddings)(positions);
}

nn::TensorParallelPlan Transformer::tensor_parallel_plan(
    const nn::TensorParallelOptions& options) const {
  const tessera::Placement stream = options.stream();
  nn::TensorParallelPlan plan{.options = options};
  plan.divided = {{"model.n_heads", a_.attention.n_heads},
                  {"model.n_kv_heads", a_.kv_heads(), true}};
  if (tok_embeddings) {
    nn::TensorParallelStyle style = nn::vocabulary_parallel(stream);
    if (!output && a_.embeddings.tied && !options.loss_parallel) style.parameters.clear();
    plan.add({"tok_embeddings"}, style);
  }
  if (pos_embeddings) plan.add({"pos_embeddings"}, nn::replicated_parameters());
  add_layers(plan, stream);
  if (norm) plan.add({"norm"}, nn::whole_outputs());
  if (output) {
    plan.add({"output"},
             options.loss_parallel ? nn::column_parallel() : nn::replicated_parameters());
  }
  return plan;
}

void Transformer::add_layers(nn::TensorParallelPlan& plan, tessera::Placement stream) const {
  const auto first = [&](auto has) { return std::ranges::find_if(layers, has); };
  const auto any = [&](auto has) { return first(has) != layers.end(); };
  if (layers.begin() == layers.end()) return;
  for (const auto& [name, of] :
       {std::pair("layers.*.attention_norm", &TransformerBlock::attention_norm),
        std::pair("layers.*.ffn_norm", &TransformerBlock::ffn_norm),
        std::pair("layers.*.attention_post_norm", &TransformerBlock::attention_post_norm),
        std::pair("layers.*.ffn_post_norm", &TransformerBlock::ffn_post_norm)})
    if ((*layers.begin().*of).has_value()) plan.add({name}, nn::replicated_parameters());
  plan.add({"layers.*.attention"}, nn::whole_inputs())
      .add({"layers.*.attention.wq"}, nn::column_parallel())
      .add({"layers.*.attention.wk", "layers.*.attention.wv"}, nn::column_parallel(a_.kv_heads()))
      .add({"layers.*.attention.wo"}, nn::row_parallel(stream));
  if (layers.begin()->attention.q_norm) {
    plan.add({"layers.*.attention.q_norm", "layers.*.attention.k_norm"},
             nn::replicated_parameters());
  }
  const bool gated = any([](const TransformerBlock& b) { return b.feed_forward.has_value(); });
  if (gated || any([](const TransformerBlock& b) { return b.mlp.has_value(); })) {
    plan.add({"layers.*.feed_forward"}, nn::whole_inputs())
        .add({"layers.*.feed_forward.w1"}, nn::column_parallel())
        .add({"layers.*.feed_forward.w2"}, nn::row_parallel(stream));
    if (gated) plan.add({"layers.*.feed_forward.w3"}, nn::column_parallel());
  }
  const auto mixed = first([](const TransformerBlock& b) { return b.moe.has_value(); });
  if (mixed != layers.end())
    nn::add_mixture(plan, "layers.*.moe", (*mixed).moe->shared_experts.has_value());
}

Decoder::Head Transformer::head() const {
  if (output) return {&*output, output->weight};
  if (a_.embeddings.tied && tok_embeddings) return {&*tok_embeddings, tok_embeddings->weight};
  return {};
}

}  // namespace tessera::models

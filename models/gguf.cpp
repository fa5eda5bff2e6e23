// SPDX-License-Identifier: Apache-2.0
// The table of a decoder that is an Architecture: llama.cpp's names of its parts, and its keys for
// the fields. What it has no place for is refused.
#include "tessera/models/gguf.h"

#include <algorithm>
#include <cmath>

namespace tessera::models {
namespace {

using Has = GgufArchitecture::Has;
using Windows = GgufArchitecture::Windows;

template <class... Parts> [[noreturn]] void refuse(const Parts&... parts) {
  fail<ValueError>("gguf", parts...);
}

// Rows of a weight and a bias.
void add(std::vector<HfTensorNames>& rows, const HfTensorNames& weight, const HfTensorNames& bias) {
  rows.push_back(weight);
  rows.push_back(bias);
}

void add_attention(std::vector<HfTensorNames>& rows, const GgufArchitecture& g) {
  if (g.fused_qkv) {
    add(rows,
        {"blk.#.attn_qkv.weight",
         {"layers.#.attention.wq.weight", "layers.#.attention.wk.weight",
          "layers.#.attention.wv.weight"}},
        {"blk.#.attn_qkv.bias",
         {"layers.#.attention.wq.bias", "layers.#.attention.wk.bias",
          "layers.#.attention.wv.bias"}});
  } else {
    add(rows, {"blk.#.attn_q.weight", {"layers.#.attention.wq.weight"}, g.heads},
        {"blk.#.attn_q.bias", {"layers.#.attention.wq.bias"}, g.heads});
    add(rows, {"blk.#.attn_k.weight", {"layers.#.attention.wk.weight"}, g.heads},
        {"blk.#.attn_k.bias", {"layers.#.attention.wk.bias"}, g.heads});
    add(rows, {"blk.#.attn_v.weight", {"layers.#.attention.wv.weight"}},
        {"blk.#.attn_v.bias", {"layers.#.attention.wv.bias"}});
  }
  add(rows, {"blk.#.attn_output.weight", {"layers.#.attention.wo.weight"}},
      {"blk.#.attn_output.bias", {"layers.#.attention.wo.bias"}});
  rows.push_back({"blk.#.attn_q_norm.weight", {"layers.#.attention.q_norm.weight"}});
  rows.push_back({"blk.#.attn_k_norm.weight", {"layers.#.attention.k_norm.weight"}});
}

void add_feed_forward(std::vector<HfTensorNames>& rows, const GgufArchitecture& g) {
  if (g.fused_gated) {
    rows.push_back({"blk.#.ffn_up.weight",
                    {"layers.#.feed_forward.w1.weight", "layers.#.feed_forward.w3.weight"}});
  } else if (g.gated) {
    add(rows, {"blk.#.ffn_gate.weight", {"layers.#.feed_forward.w1.weight"}},
        {"blk.#.ffn_gate.bias", {"layers.#.feed_forward.w1.bias"}});
    add(rows, {"blk.#.ffn_up.weight", {"layers.#.feed_forward.w3.weight"}},
        {"blk.#.ffn_up.bias", {"layers.#.feed_forward.w3.bias"}});
  } else {
    add(rows, {"blk.#.ffn_up.weight", {"layers.#.feed_forward.w1.weight"}},
        {"blk.#.ffn_up.bias", {"layers.#.feed_forward.w1.bias"}});
  }
  add(rows, {"blk.#.ffn_down.weight", {"layers.#.feed_forward.w2.weight"}},
      {"blk.#.ffn_down.bias", {"layers.#.feed_forward.w2.bias"}});
}

void add_experts(std::vector<HfTensorNames>& rows) {
  const auto experts = [&](std::string_view theirs, std::string_view ours) {
    rows.push_back({.theirs = theirs, .ours = {ours}, .experts = HfExperts::together});
  };
  rows.push_back({"blk.#.ffn_gate_inp.weight", {"layers.#.moe.router.gate.weight"}});
  experts("blk.#.ffn_gate_exps.weight", "layers.#.moe.experts.w1");
  experts("blk.#.ffn_down_exps.weight", "layers.#.moe.experts.w2");
  experts("blk.#.ffn_up_exps.weight", "layers.#.moe.experts.w3");
  rows.push_back({"blk.#.ffn_gate_inp_shexp.weight", {"layers.#.moe.shared_expert_gate.weight"}});
  rows.push_back({"blk.#.ffn_gate_shexp.weight", {"layers.#.moe.shared_experts.w1.weight"}});
  rows.push_back({"blk.#.ffn_down_shexp.weight", {"layers.#.moe.shared_experts.w2.weight"}});
  rows.push_back({"blk.#.ffn_up_shexp.weight", {"layers.#.moe.shared_experts.w3.weight"}});
}

void add_norms(std::vector<HfTensorNames>& rows) {
  add(rows, {"blk.#.attn_norm.weight", {"layers.#.attention_norm.weight"}},
      {"blk.#.attn_norm.bias", {"layers.#.attention_norm.bias"}});
  add(rows, {"blk.#.ffn_norm.weight", {"layers.#.ffn_norm.weight"}},
      {"blk.#.ffn_norm.bias", {"layers.#.ffn_norm.bias"}});
  rows.push_back({"blk.#.post_attention_norm.weight", {"layers.#.attention_post_norm.weight"}});
  rows.push_back({"blk.#.post_ffw_norm.weight", {"layers.#.ffn_post_norm.weight"}});
  add(rows, {"output_norm.weight", {"norm.weight"}}, {"output_norm.bias", {"norm.bias"}});
}

std::vector<HfTensorNames> rows_of(const GgufArchitecture& g) {
  std::vector<HfTensorNames> rows{{"token_embd.weight", {"tok_embeddings.weight"}},
                                  {"output.weight", {"output.weight"}}};
  add_attention(rows, g);
  add_feed_forward(rows, g);
  add_experts(rows);
  add_norms(rows);
  return rows;
}

void expect(const GgufArchitecture& g, std::string_view part, Has has, bool there) {
  if (there ? has == Has::no : has == Has::must)
    refuse("llama.cpp's ", g.name, there ? " has no " : " needs a ", part);
}

void expect_parts(const GgufArchitecture& g, const Architecture& a) {
  expect(g, "bias of queries, keys and values", g.qkv_bias, a.attention.qkv_bias);
  expect(g, "bias of the output of attention", g.output_bias, a.attention.output_bias);
  expect(g, "bias of the feed-forward", g.ffn_bias, a.feed_forward.bias);
  expect(g, "weight of the head beside that of the embedding", g.head, !a.embeddings.tied);
  for (const auto& [expected, holds] : g.limits)
    if (!holds(a)) refuse("llama.cpp's ", g.name, " expects ", expected);
  if (a.experts.moe.num_experts == 0) return;
  for (int64_t i = 0; i < a.n_layers; ++i)
    if (!a.has_experts(i)) refuse("llama.cpp's ", g.name, " expects experts in all layers");
  if (a.experts.moe.load_balance_coeff != 0 || a.experts.moe.capacity_factor != 0)
    refuse("llama.cpp's ", g.name, " has no biases and no capacity of experts");
  if (a.experts.moe.route_norm != g.route_norm)
    refuse("llama.cpp's ", g.name, " expects route_norm ", g.route_norm ? "true" : "false");
}

bool has_windows(const Architecture& a) {
  for (int64_t i = 0; i < a.n_layers; ++i)
    if (a.span(i) == Architecture::Span::window) return true;
  return false;
}

// Of every so many layers all but the last have a window; 0: all have.
int64_t pattern_of(const GgufArchitecture& g, const Architecture& a) {
  for (int64_t n : {g.window_pattern, int64_t{0}, int64_t{1}}) {
    for (; n <= a.n_layers; ++n) {
      int64_t i = 0;
      while (i < a.n_layers &&
             (a.span(i) == Architecture::Span::window) == (n == 0 || i % n < n - 1))
        ++i;
      if (i == a.n_layers) return n;
    }
  }
  refuse("llama.cpp's ", g.name, " expects windows in all but the last of every so many layers");
}

void add_windows(std::vector<GgufValue>& v, const GgufArchitecture& g, const Architecture& a) {
  if (g.windows == Windows::none) return;
  v.push_back({"attention.sliding_window", has_windows(a) ? a.spans.sliding_window : int64_t{0}});
  v.push_back({"attention.sliding_window_pattern", pattern_of(g, a)});
  if (g.windows != Windows::own_theta) return;
  const double theta = a.positions.local_theta;
  if (theta == 0 && a.positions.scaling.kind != RopeScaling::Kind::none && has_windows(a))
    refuse("llama.cpp's ", g.name, " has no rope_scaling in layers with a window");
  v.push_back({"rope.freq_base_swa", theta > 0 ? theta : a.positions.theta});
}

// The kinds that a file can say; llama3 and longrope are tables.
void add_scaling(std::vector<GgufValue>& v, const GgufArchitecture& g, const RopeScaling& s) {
  using Kind = RopeScaling::Kind;
  if (s.kind == Kind::none || (s.kind == Kind::llama3 && g.rope_divisors)) return;
  if (s.kind == Kind::longrope && g.longrope) {
    v.push_back({"rope.scaling.original_context_length", s.original_max_position});
    v.push_back({"rope.scaling.attn_factor", rope_attention_factor(s)});
    return;
  }
  // llama.cpp reads no betas, rounds to whole pairs, and its factor of cos and sin follows from the
  // scaling's.
  const bool plain = s.kind == Kind::yarn && s.beta_fast == 32 && s.beta_slow == 1 && s.truncate &&
                     g.windows == Windows::none &&
                     std::abs(rope_attention_factor(s) - 1 - 0.1 * std::log(s.factor)) < 1e-6;
  if (plain) {
    v.push_back({"rope.scaling.type", std::string("yarn")});
    v.push_back({"rope.scaling.factor", s.factor});
    v.push_back({"rope.scaling.original_context_length", s.original_max_position});
    return;
  }
  if (s.kind != Kind::linear)
    refuse("this rope_scaling cannot be expressed: llama.cpp's ", g.name, " has none, linear",
           g.windows == Windows::none ? ", plain yarn" : "", g.longrope ? ", longrope" : "",
           g.rope_divisors ? ", llama" : "");
  v.push_back({"rope.scaling.type", std::string("linear")});
  v.push_back({"rope.scaling.factor", s.factor});
}

void add_experts(std::vector<GgufValue>& v, const GgufArchitecture& g, const Architecture& a) {
  const auto& e = a.experts;
  if (e.moe.num_experts == 0) return;
  v.push_back({"expert_count", e.moe.num_experts});
  v.push_back({"expert_used_count", e.moe.top_k});
  if (g.expert_length) v.push_back({"expert_feed_forward_length", e.moe.moe_inter_dim});
  if (e.shared_experts > 0)
    v.push_back({"expert_shared_feed_forward_length",
                 e.shared_hidden > 0 ? e.shared_hidden : e.shared_experts * e.moe.moe_inter_dim});
}

std::vector<GgufValue> values_of(const GgufArchitecture& g, const Architecture& a) {
  expect_parts(g, a);
  const bool whole = g.windows != Windows::none || !has_windows(a);
  const bool experts = a.experts.moe.num_experts > 0 && !g.expert_length;
  std::vector<GgufValue> v{
      {"context_length", whole ? a.max_seq_len : std::min(a.max_seq_len, a.spans.sliding_window)},
      {"embedding_length", a.dim},
      {"block_count", a.n_layers},
      {"feed_forward_length", experts ? a.experts.moe.moe_inter_dim : a.feed_forward.dim},
      {"attention.head_count", a.attention.n_heads},
      {"attention.head_count_kv", a.kv_heads()},
      {"attention.key_length", a.head_dim()},
      {"attention.value_length", a.head_dim()},
      {a.norm.kind == nn::Norm::Kind::rms ? "attention.layer_norm_rms_epsilon"
                                          : "attention.layer_norm_epsilon",
       a.norm.eps},
      {"rope.freq_base", a.positions.theta},
      {"rope.dimension_count", a.rotary_dim()},
      {"vocab_size", a.vocab_size}};
  add_windows(v, g, a);
  add_scaling(v, g, a.positions.scaling);
  add_experts(v, g, a);
  for (const GgufOwn& own : g.own) v.push_back({std::string(own.key), own.value(a)});
  return v;
}

std::vector<float> as_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

std::vector<GgufTable> tables_of(const GgufArchitecture& g, const Architecture& a) {
  const RopeScaling& s = a.positions.scaling;
  if (s.kind == RopeScaling::Kind::longrope && g.longrope)
    return {{"rope_factors_long.weight", as_floats(s.long_factors)},
            {"rope_factors_short.weight", as_floats(s.short_factors)}};
  if (s.kind != RopeScaling::Kind::llama3 || !g.rope_divisors) return {};
  const auto plain = rope_frequencies(a.rotary_dim(), a.positions.theta),
             scaled = rope_frequencies(a.rotary_dim(), a.positions.theta, s);
  GgufTable divisors{"rope_freqs.weight", {}};
  for (size_t i = 0; i < plain.size(); ++i)
    divisors.values.push_back(static_cast<float>(plain[i] / scaled[i]));
  return {std::move(divisors)};
}

}  // namespace

HfTensors gguf_tensors(const Gguf& gguf, const ModelConfig& config) {
  return {gguf.tensors, tensors_of(config), gguf.head_dim ? gguf.head_dim(config) : 0};
}

Shape gguf_shape(const Shape& shape) {
  return shape.rank() == 2 && shape[0] == 1 ? Shape{shape[1]} : shape;
}

double gguf_plus(const Gguf& gguf, std::string_view tensor) {
  return tensor.ends_with("norm.weight") ? gguf.plus_in_norms : 0;
}

Gguf gguf_of(const GgufArchitecture& parts, Architecture (*of)(const ModelConfig& config)) {
  return {.architecture = parts.name,
          .tensors = rows_of(parts),
          .plus_in_norms = parts.plus_in_norms,
          .values = [parts, of](const ModelConfig& c) { return values_of(parts, of(c)); },
          .tables = [parts, of](const ModelConfig& c) { return tables_of(parts, of(c)); },
          .head_dim = [of](const ModelConfig& c) { return of(c).head_dim(); }};
}

}  // namespace tessera::models

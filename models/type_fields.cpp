// SPDX-License-Identifier: Apache-2.0
// The fields of an architecture under `--model.`, and what must hold between them.
#include "tessera/core/message.h"
#include "tessera/models/type.h"

#include <algorithm>
#include <cmath>

namespace tessera::models {
namespace {

using config::Fields;
using config::Limits;

// Adds those of the fields that a type shows.
class Shown {
 public:
  Shown(Fields& fields, const std::vector<std::string_view>& names)
      : fields_(fields), names_(names) {}
  [[nodiscard]] bool has(std::string_view name) const {
    return std::ranges::count(names_, name) > 0;
  }
  template <class T>
  void add(std::string_view name, T& value, std::string_view help, Limits limits = {}) {
    if (has(name)) fields_.add(name, value, help, std::move(limits));
  }
  template <class T>
  void add_choice(std::string_view name, T& value, std::string_view help,
                  std::vector<std::pair<std::string, T>> options) {
    if (has(name)) fields_.add_choice<T>(name, value, help, std::move(options));
  }

 private:
  Fields& fields_;
  const std::vector<std::string_view>& names_;
};

void add_sizes(Shown& s, Architecture& a) {
  s.add("dim", a.dim, "hidden size", {.min = 1, .max = 1 << 20});
  s.add("n_layers", a.n_layers, "number of layers", {.min = 1, .max = 4096});
  s.add("vocab_size", a.vocab_size, "vocabulary size", {.min = 1, .max = 1 << 24});
  s.add("max_seq_len", a.max_seq_len, "maximum sequence length",
        {.min = 1, .max = 1 << 30, .unit = "tokens"});
  s.add("norm_eps", a.norm.eps, "eps of the norms", {.min = 1e-30, .max = 1});
  s.add("enable_weight_tying", a.embeddings.tied,
        "share the weights of the token embedding and the output head");
  s.add("ffn_dim", a.feed_forward.dim, "hidden size of the feed-forward layers",
        {.min = 1, .max = 1 << 24});
  s.add("ffn_bias", a.feed_forward.bias, "biases of the feed-forward layers");
  using nn::Nonlinearity;
  s.add_choice<Nonlinearity>("hidden_act", a.feed_forward.nonlinearity,
                             "function of the feed-forward layers",
                             {{"gelu", Nonlinearity::gelu},
                              {"gelu_new", Nonlinearity::gelu_tanh},
                              {"gelu_fast", Nonlinearity::gelu_tanh},
                              {"gelu_pytorch_tanh", Nonlinearity::gelu_tanh},
                              {"silu", Nonlinearity::silu},
                              {"relu2", Nonlinearity::relu_squared}});
}

void add_attention(Shown& s, Architecture::Attention& a) {
  s.add("n_heads", a.n_heads, "number of query heads", {.min = 1, .max = 4096});
  s.add("n_kv_heads", a.n_kv_heads, "number of key and value heads", {.min = 1, .max = 4096});
  s.add("head_dim", a.head_dim, "size of a head; 0: dim / n_heads", {.min = 0, .max = 1 << 16});
  s.add("qkv_bias", a.qkv_bias, "biases of queries, keys and values");
  s.add("output_bias", a.output_bias, "bias of the output projection of attention");
  s.add("attention_multiplier", a.multiplier, "factor of attention scores",
        {.min = 0, .max = 1e6, .above_min = true});
  s.add("query_pre_attn_scalar", a.query_pre_attn_scalar,
        "attention scores are divided by its square root",
        {.min = 0, .max = 1e6, .above_min = true});
  s.add("attn_logit_softcapping", a.soft_cap,
        "bound of attention scores s, which become cap * tanh(s / cap); 0: none",
        {.min = 0, .max = 1e30});
  s.add("fused_qkv", a.fused_qkv, "compute queries, keys and values in one matmul");
}

void add_spans(Shown& s, Architecture::Spans& a) {
  s.add("layer_types", a.layer_types,
        "full_attention or sliding_attention of each layer; empty: as the type of model has it");
  s.add("sliding_window", a.sliding_window,
        "tokens that a layer with sliding attention sees; 0: no layer has it",
        {.min = s.has("layer_types") && !s.has("use_sliding_window") ? 1. : 0.,
         .max = 1 << 30,
         .unit = "tokens"});
  s.add("use_sliding_window", a.use_sliding_window, "whether layers have sliding attention");
  s.add("sliding_window_pattern", a.pattern,
        "the last of every so many layers has full attention; 0: none", {.min = 0, .max = 4096});
  s.add("max_window_layers", a.max_window_layers,
        a.before_max ? "layers from this one on have full attention"
                     : "layers before this one have full attention",
        {.min = 0, .max = 4096});
}

void add_positions(Shown& s, Architecture::Positions& p) {
  s.add("rope_local_theta", p.local_theta,
        "base of the RoPE frequencies of layers with sliding attention; 0: as the others",
        {.min = 0, .max = 1e12});
  s.add("partial_rotary_factor", p.partial_rotary_factor, "part of a head that RoPE turns",
        {.min = 0, .max = 1, .above_min = true});
  s.add("llama_4_scaling_beta", p.temperature.scale,
        "beta of the factor 1 + beta * ln(1 + floor(position / original context)) of queries; 0: "
        "none",
        {.min = 0, .max = 1e3});
  s.add("nope_layer_interval", p.nope_layer_interval,
        "the last of every so many layers has no RoPE; 0: all have it", {.min = 0, .max = 4096});
}

void add_scales(Shown& s, Architecture& a) {
  s.add("embedding_multiplier", a.embeddings.multiplier, "factor of the token embedding",
        {.min = -1e6, .max = 1e6});
  s.add("residual_multiplier", a.residual.multiplier,
        "factor of what attention and feed-forward add", {.min = -1e6, .max = 1e6});
  s.add("logits_scaling", a.embeddings.logits_scaling, "logits are divided by it",
        {.min = 0, .max = 1e6, .above_min = true});
  s.add("logit_scale", a.embeddings.logit_scale, "factor of logits",
        {.min = 0, .max = 1e6, .above_min = true});
  s.add("final_logit_softcapping", a.embeddings.soft_cap,
        "bound of logits y, which become cap * tanh(y / cap); 0: none", {.min = 0, .max = 1e30});
  s.add("use_parallel_residual", a.residual.parallel,
        "attention and feed-forward read the same input");
}

void add_experts(Shown& s, Fields& f, Architecture::Experts& e) {
  if (!s.has("num_experts")) return;
  config::moe_fields(f, e.moe);
  s.add("decoder_sparse_step", e.step, "the last of every so many layers has experts",
        {.min = 1, .max = 4096});
  s.add("mlp_only_layers", e.mlp_only_layers, "numbers of layers that have no experts");
  s.add("shared_expert_dim", e.shared_hidden, "hidden size of the shared expert",
        {.min = 1, .max = 1 << 24});
}

}  // namespace

void window_fields(Fields& f, Architecture::Spans& spans) {
  const std::vector<std::string_view> names{"layer_types", "sliding_window", "use_sliding_window",
                                            "max_window_layers"};
  Shown s(f, names);
  add_spans(s, spans);
}

std::vector<std::string> window_conflicts(const Architecture::Spans& spans, int64_t n_layers) {
  const std::vector<std::string>& types = spans.layer_types;
  if (!types.empty() && static_cast<int64_t>(types.size()) != n_layers)
    return {concat("[--model.layer_types] has ", counted(types.size(), "element"),
                   ", but --model.n_layers is ", n_layers)};
  for (const std::string& type : types) {
    if (type == "full_attention") continue;
    if (type != "sliding_attention")
      return {concat("[--model.layer_types] has \"", type,
                     "\": expected full_attention or sliding_attention")};
    if (!spans.use_sliding_window)
      return {
          "[--model.layer_types] has sliding_attention, but --model.use_sliding_window is false"};
    if (spans.sliding_window < 1)
      return {"[--model.layer_types] has sliding_attention, but --model.sliding_window is 0"};
  }
  return {};
}

void TypeConfig::fields(Fields& f) {
  const std::vector<std::string_view> names = shown();
  Shown s(f, names);
  add_sizes(s, *this);
  add_attention(s, attention);
  if (s.has("rope_theta")) config::rope_fields(f, positions.theta, positions.scaling);
  add_spans(s, spans);
  add_positions(s, positions);
  add_experts(s, f, experts);
  add_scales(s, *this);
}

std::vector<std::string> TypeConfig::conflicts() const {
  std::vector<std::string> faults =
      config::rope_conflicts(positions.scaling, attention.n_heads > 0 ? rotary_dim() : 0);
  const auto fault = [&](const auto&... parts) { faults.push_back(concat(parts...)); };
  const std::vector<std::string_view> names = shown();
  const auto has = [&](std::string_view name) { return std::ranges::count(names, name) > 0; };
  const auto& a = attention;
  if (a.n_heads % kv_heads() != 0)
    fault("[--model.n_heads] ", a.n_heads, " is not a multiple of --model.n_kv_heads ", kv_heads());
  if (a.head_dim == 0 && dim % a.n_heads != 0)
    fault("[--model.dim] ", dim, " is not a multiple of --model.n_heads ", a.n_heads,
          has("head_dim") ? ": give --model.head_dim" : "");
  else if (positions.kind != Positions::Kind::learned &&
           (rotary_dim() < 2 || rotary_dim() % 2 != 0))
    fault(has("head_dim") ? "[--model.head_dim]" : "[--model.dim]", " RoPE turns ",
          counted(rotary_dim(), "value"), " of a head of ", head_dim(),
          ": expected an even number");
  for (std::string& f : window_conflicts(spans, n_layers)) faults.push_back(std::move(f));
  if (has("num_experts") && !has("ffn_dim") && experts.moe.num_experts == 0)
    fault("[--model.num_experts] 0, but all layers of a ", family, " have experts");
  for (const double layer : experts.mlp_only_layers) {
    if (layer < 0 || layer >= static_cast<double>(n_layers) || layer != std::floor(layer))
      fault("[--model.mlp_only_layers] has ", layer, ", but layers are 0 to ", n_layers - 1);
  }
  const auto kind = positions.scaling.kind;
  const bool has_context = kind != RopeScaling::Kind::none && kind != RopeScaling::Kind::linear;
  if (positions.temperature.with_rope && !has_context)
    fault(
        "[--model.rope_scaling] a ", family,
        " needs one with an original context, by which its queries grow: llama, yarn or longrope");
  for (std::string& f :
       config::moe_conflicts(experts.moe, n_layers, "decoder_sparse_step", experts.step))
    faults.push_back(std::move(f));
  return faults;
}

}  // namespace tessera::models

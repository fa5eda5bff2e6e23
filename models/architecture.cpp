// SPDX-License-Identifier: Apache-2.0
// What follows from an architecture's fields.
#include "tessera/models/architecture.h"

#include <algorithm>
#include <cmath>

namespace tessera::models {
namespace {

constexpr std::string_view kFull = "full_attention", kWindow = "sliding_attention",
                           kChunk = "chunked_attention";

}  // namespace

int64_t Architecture::rotary_dim() const {
  return static_cast<int64_t>(static_cast<double>(head_dim()) * positions.partial_rotary_factor);
}

double Architecture::score_scale() const {
  if (attention.multiplier > 0) return attention.multiplier;
  const double scalar = attention.query_pre_attn_scalar;
  return scalar > 0 ? 1 / std::sqrt(scalar) : 0;
}

Architecture::Span Architecture::span(int64_t layer) const {
  const auto i = static_cast<size_t>(layer);
  if (i < spans.layer_types.size()) {
    if (spans.layer_types[i] == kChunk) return Span::chunk;
    return spans.layer_types[i] == kWindow ? Span::window : Span::full;
  }
  if (spans.sliding_window < 1 || !spans.use_sliding_window) return Span::full;
  if (spans.without_rope) return is_nope(layer) ? Span::window : Span::full;
  if ((layer < spans.max_window_layers) != spans.before_max) return Span::full;
  return spans.pattern > 0 && (layer + 1) % spans.pattern == 0 ? Span::full : Span::window;
}

bool Architecture::has_experts(int64_t layer) const {
  const auto& none = experts.mlp_only_layers;
  return experts.moe.num_experts > 0 && (layer + 1) % experts.step == 0 &&
         std::ranges::count(none, static_cast<double>(layer)) == 0;
}

bool Architecture::has_rope(int64_t layer) const {
  if (positions.kind == Positions::Kind::learned || is_nope(layer)) return false;
  return !positions.rope_in_windows_alone || span(layer) == Span::window;
}

void Architecture::simplify(bool any_pattern) {
  if (attention.head_dim * attention.n_heads == dim) attention.head_dim = 0;
  const std::vector<std::string> types = layer_types();
  if (!spans.use_sliding_window && std::ranges::count(types, kWindow) == 0)
    spans = {.pattern = spans.pattern,
             .before_max = spans.before_max,
             .without_rope = spans.without_rope,
             .use_sliding_window = false};
  Architecture plain = *this;
  plain.spans.layer_types.clear();
  for (int64_t pattern = 0; any_pattern && pattern <= n_layers; ++pattern) {
    plain.spans.pattern = pattern;
    if (plain.layer_types() == types) break;
  }
  if (plain.layer_types() == types) spans = plain.spans;
}

std::string layer_types_json(const Architecture& a) {
  std::string list;
  for (const std::string& type : a.layer_types())
    list += concat(list.empty() ? "\"" : ",\"", type, '"');
  return concat('[', list, ']');
}

std::vector<std::string> Architecture::layer_types() const {
  std::vector<std::string> all;
  for (int64_t i = 0; i < n_layers; ++i) {
    const Span s = span(i);
    all.emplace_back(s == Span::chunk ? kChunk : s == Span::window ? kWindow : kFull);
  }
  return all;
}

}  // namespace tessera::models

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

std::vector<std::string> Architecture::layer_types() const {
  std::vector<std::string> all;
  for (int64_t i = 0; i < n_layers; ++i) {
    const Span s = span(i);
    all.emplace_back(s == Span::chunk ? kChunk : s == Span::window ? kWindow : kFull);
  }
  return all;
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Where layers have experts, what adds to the residual stream begins smaller the more layers there
// are, as in torchtitan.
#include "tessera/models/qwen3/qwen3.h"

#include <cmath>

namespace tessera::qwen3 {
namespace {

constexpr double kStd = 0.02;

nn::Init residual_init(const Config& c) {
  const double layers = c.moe.num_experts > 0 ? 2.0 * static_cast<double>(c.n_layers) : 1;
  return nn::Init::normal(kStd / std::sqrt(layers));
}

nn::MoE::Config mixture_of(const Config& c) {
  nn::Router::Config router = models::router_config(c.moe, c.dim, c.dtype);
  router.score = nn::Router::Score::softmax;
  router.gate = nn::Init::normal(kStd);
  return {.router = router,
          .hidden = c.moe.moe_inter_dim,
          .balance = c.moe.load_balance_coeff > 0,
          .gate = nn::Init::normal(kStd),
          .output = residual_init(c),
          .up = nn::Init::normal(kStd)};
}

nn::Attention::Config attention_of(const Config& c) {
  return {.dim = c.dim,
          .n_heads = c.n_heads,
          .n_kv_heads = c.n_kv_heads,
          .head_dim = c.head_dim,
          .input = nn::Init::normal(kStd),
          .output = residual_init(c),
          .rope_halves = true,
          .qk_norm_eps = c.norm_eps,
          .fused_qkv = c.fused_qkv,
          .dtype = c.dtype};
}

}  // namespace

Model::Model(const Config& c) : RotaryDecoder("qwen3", models::checked(c)), config_(c) {
  const nn::Init init = nn::Init::normal(kStd);
  tok_embeddings.emplace(c.vocab_size, c.dim, init, c.dtype);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    if (c.has_experts(i)) {
      layers.emplace_back(attention_of(c), mixture_of(c), c.norm_eps);
      continue;
    }
    layers.emplace_back(
        attention_of(c),
        nn::FeedForward::Config{.dim = c.dim, .hidden = c.ffn_dim, .gate = init, .dtype = c.dtype},
        c.norm_eps);
  }
  norm.emplace(c.dim, c.norm_eps, c.dtype);
  if (!c.enable_weight_tying) output.emplace(c.dim, c.vocab_size, init, c.dtype);
}

models::Family family() {
  models::Family f = models::family<Model>("qwen3", "Qwen 3 (Alibaba, 2025)", flavors());
  f.hugging_face = {&hugging_face(), &hugging_face_moe()};
  return f;
}

}  // namespace tessera::qwen3

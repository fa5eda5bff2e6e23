// SPDX-License-Identifier: Apache-2.0
// The fields of layers with experts, which families with mixtures of experts share.
#pragma once

#include "tessera/models/config/rope_fields.h"

namespace tessera::config {

/// Layers whose feed-forward is a mixture of experts. Names are torchtitan's where it has them.
struct MoeConfig {
  int64_t num_experts = 0;  ///< 0: the model has none
  int64_t top_k = 1;        ///< experts of a token
  int64_t moe_inter_dim = 1024;
  bool route_norm = false;        ///< the routing weights of a token are divided by their sum
  double load_balance_coeff = 0;  ///< of nn::update_expert_bias; 0: there is no bias
  double balance_loss_coeff = 0, z_loss_coeff = 0, capacity_factor = 0;  ///< as in nn::Router
};

TESSERA_API void moe_fields(Fields& f, MoeConfig& c);
/// Conflicts of these fields in a model where the last of every `step` layers has experts, which
/// the field `model.<step_field>` says: messages that begin with `[--model.<field>]`.
TESSERA_API std::vector<std::string> moe_conflicts(const MoeConfig& c, int64_t n_layers,
                                                   std::string_view step_field, int64_t step);

/// The fields of a decoder with RoPE and layers with experts, whose size of a head is its own.
template <class Config> void rotary_moe_fields(Fields& f, Config& c) {
  f.add("dim", c.dim, "hidden size", {.min = 1, .max = 1 << 20});
  f.add("head_dim", c.head_dim, "size of a head", {.min = 2, .max = 1 << 16});
  rotary_fields(f, c, 1e-30);
  moe_fields(f, c.moe);
}

/// Conflicts between these fields; step_field and step as for moe_conflicts.
template <class Config>
std::vector<std::string> rotary_moe_conflicts(const Config& c, std::string_view step_field,
                                              int64_t step) {
  std::vector<std::string> faults = rotary_conflicts(c, c.head_dim);
  if (c.head_dim % 2 != 0) {
    faults.push_back(
        concat("[--model.head_dim] ", c.head_dim, " is not even, but RoPE rotates pairs"));
  }
  for (std::string& fault : moe_conflicts(c.moe, c.n_layers, step_field, step))
    faults.push_back(std::move(fault));
  return faults;
}

}  // namespace tessera::config

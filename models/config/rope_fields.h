// SPDX-License-Identifier: Apache-2.0
// Fields that the families with RoPE share.
#pragma once

#include "tessera/kernels/rope/rope.h"
#include "tessera/models/config/fields.h"

namespace tessera::config {

/// rope_theta, rope_scaling and its parameters.
TESSERA_API void rope_fields(Fields& f, double& theta, RopeScaling& scaling);
/// Conflicts between these fields, as messages that begin with `[--model.<field>]`. `rotary`: how
/// many values of a head turn, whose pairs have a factor each with longrope.
TESSERA_API std::vector<std::string> rope_conflicts(const RopeScaling& scaling, int64_t rotary);

/// The fields of a decoder of grouped heads with RoPE, but for the sizes of model and head, which a
/// family lists before these. `least_eps`: the least norm_eps.
template <class Config> void rotary_fields(Fields& f, Config& c, double least_eps) {
  f.add("n_layers", c.n_layers, "number of layers", {.min = 1, .max = 4096});
  f.add("n_heads", c.n_heads, "number of query heads", {.min = 1, .max = 4096});
  f.add("n_kv_heads", c.n_kv_heads, "number of key and value heads", {.min = 1, .max = 4096});
  f.add("ffn_dim", c.ffn_dim, "hidden size of the feed-forward layers", {.min = 1, .max = 1 << 24});
  f.add("vocab_size", c.vocab_size, "vocabulary size", {.min = 1, .max = 1 << 24});
  f.add("max_seq_len", c.max_seq_len, "maximum sequence length",
        {.min = 1, .max = 1 << 30, .unit = "tokens"});
  f.add("norm_eps", c.norm_eps, "eps of RMSNorm", {.min = least_eps, .max = 1});
  f.add("enable_weight_tying", c.enable_weight_tying,
        "share the weights of the token embedding and the output head");
  f.add("fused_qkv", c.fused_qkv, "compute queries, keys and values in one matmul");
  rope_fields(f, c.rope_theta, c.rope_scaling);
}

/// Conflicts between these fields: of RoPE in heads of head_dim, and heads that cannot be grouped.
template <class Config>
std::vector<std::string> rotary_conflicts(const Config& c, int64_t head_dim) {
  std::vector<std::string> faults = rope_conflicts(c.rope_scaling, head_dim);
  if (c.n_kv_heads < 1 || c.n_heads % c.n_kv_heads != 0) {
    faults.push_back(concat("[--model.n_heads] ", c.n_heads,
                            " is not a multiple of --model.n_kv_heads ", c.n_kv_heads));
  }
  return faults;
}

}  // namespace tessera::config

// SPDX-License-Identifier: Apache-2.0
// For tests against PyTorch: the tiny models of tests/goldens, as they were made and trained there.
#pragma once

#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/parameters.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

namespace tessera::test {

/// What PyTorch was told, and its losses and norms.
inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(std::ifstream("tests/goldens/" + name + ".json"));
}
/// Its weights, data and gradients.
inline io::SafetensorsFile golden_tensors(const std::string& name) {
  return io::SafetensorsFile("tests/goldens/" + name + ".safetensors");
}

/// The Llama that was trained.
inline llama3::Config golden_llama3(const nlohmann::json& golden) {
  const auto& m = golden["model"];
  llama3::Config c{.dim = m["dim"],
                   .n_layers = m["n_layers"],
                   .n_heads = m["n_heads"],
                   .n_kv_heads = m["n_kv_heads"],
                   .ffn_dim = m["ffn_dim"],
                   .vocab_size = m["vocab_size"],
                   .max_seq_len = 64,
                   .rope_theta = m["rope_theta"],
                   .norm_eps = m["norm_eps"]};
  if (m.contains("rope_scaling")) {
    const auto& r = m["rope_scaling"];
    c.enable_weight_tying = true;
    c.rope_scaling = {.kind = RopeScaling::Kind::llama3,
                      .factor = r["factor"],
                      .original_max_position = r["original_max_position"],
                      .low_freq_factor = r["low_freq_factor"],
                      .high_freq_factor = r["high_freq_factor"]};
  }
  return c;
}

/// For optim::AdamWOptions and for a run's configuration, whose fields have the same names.
template <class Options> Options golden_optimizer(const nlohmann::json& golden) {
  const auto& o = golden["optimizer"];
  return {.lr = o["lr"],
          .beta1 = o["beta1"],
          .beta2 = o["beta2"],
          .eps = o["eps"],
          .weight_decay = o["weight_decay"]};
}

/// Gives the model the weights that PyTorch began with, in its own dtype.
inline void load_initial(nn::Module& model, const io::SafetensorsFile& tensors) {
  std::vector<nn::NamedParameter> initial;
  for (const auto& p : nn::named_parameters(model))
    initial.push_back({p.name, cast(tensors.read("initial/" + p.name), p.tensor.dtype())});
  nn::load(model, initial);
}

}  // namespace tessera::test

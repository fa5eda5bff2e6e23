// SPDX-License-Identifier: Apache-2.0
// attention_dropout is a field only to give configurations that set it a clear error: the attention
// kernels do not store attention weights, so there is nothing to drop.
#include "tessera/models/gpt2/config.h"

#include <array>

namespace tessera::gpt2 {

void Config::fields(config::Fields& f) {
  f.add("dim", dim, "hidden size", {.min = 1, .max = 1 << 20});
  f.add("n_layers", n_layers, "number of layers", {.min = 1, .max = 4096});
  f.add("n_heads", n_heads, "number of attention heads", {.min = 1, .max = 4096});
  f.add("vocab_size", vocab_size, "vocabulary size", {.min = 1, .max = 1 << 24});
  f.add("max_seq_len", max_seq_len, "maximum sequence length: number of learned positions",
        {.min = 1, .max = 1 << 24, .unit = "tokens"});
  f.add("norm_eps", norm_eps, "eps of LayerNorm", {.min = 0, .max = 1});
  f.add("embedding_dropout", embedding_dropout, "dropout probability of the embeddings",
        {.min = 0, .max = 0.999, .free_on_resume = true});
  f.add("residual_dropout", residual_dropout,
        "dropout probability of attention and feed-forward outputs",
        {.min = 0, .max = 0.999, .free_on_resume = true});
  f.add("attention_dropout", attention_dropout,
        "dropout probability of attention weights; only 0 is supported", {.min = 0, .max = 0.999});
  f.add("fused_qkv", fused_qkv, "compute queries, keys and values in one matmul");
  f.add("ffn_dim", own_ffn_dim, "hidden size of the feed-forward layers; 0: 4 * dim",
        {.min = 0, .max = 1 << 24});
  using nn::Nonlinearity;
  f.add_choice<Nonlinearity>("activation_function", activation,
                             "gelu_new is the tanh approximation, gelu the exact function",
                             {{"gelu_new", Nonlinearity::gelu_tanh},
                              {"gelu_pytorch_tanh", Nonlinearity::gelu_tanh},
                              {"gelu", Nonlinearity::gelu}});
  f.add("enable_weight_tying", enable_weight_tying,
        "share the weights of the token embedding and the output head");
}

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> faults;
  if (n_heads < 1 || dim % n_heads != 0) {
    faults.push_back(
        concat("[--model.dim] ", dim, " is not a multiple of --model.n_heads ", n_heads));
  }
  if (attention_dropout != 0) {
    faults.push_back(concat("[--model.attention_dropout] is ", attention_dropout,
                            ", but attention drops no probabilities: set it to 0 and use "
                            "--model.residual_dropout"));
  }
  return faults;
}

std::span<const models::Flavor<Config>> flavors() {
  static const std::array<models::Flavor<Config>, 5> all{{
      {"debugmodel", {.dim = 256, .n_layers = 6, .n_heads = 8, .vocab_size = 2048}},
      {"124M", {}},
      {"355M", {.dim = 1024, .n_layers = 24, .n_heads = 16}},
      {"774M", {.dim = 1280, .n_layers = 36, .n_heads = 20}},
      {"1558M", {.dim = 1600, .n_layers = 48, .n_heads = 25}},
  }};
  return all;
}

const Config& flavor(std::string_view name) { return models::find_flavor("gpt2", flavors(), name); }

Config debugmodel() { return flavor("debugmodel"); }

}  // namespace tessera::gpt2

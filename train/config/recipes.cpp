// SPDX-License-Identifier: Apache-2.0
// Recipes: whole configurations under a name. Llamas have the presets that torchtitan trains the
// same sizes with; 1B and 3B, for which it has none, take 8B's, and so do Qwens. GPT-2's rates are
// those of the same sizes in the paper of GPT-3 (Brown et al., 2020), with its batch of half a
// million tokens.
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/models/llama4/llama4.h"
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/train/config/config.h"

namespace tessera::train {
namespace {

Config debugmodel(std::string_view recipe, const models::Family& family,
                  std::string_view flavor = "debugmodel") {
  Config c;
  c.recipe = recipe;
  c.model = family.flavor(flavor);
  c.training.steps = 10;
  // Many machines for a first try have no bf16 matmul instructions.
  c.training.mixed_precision_param = DType::f32;
  c.lr_scheduler.warmup_steps = 2;
  c.lr_scheduler.decay_ratio = 0.8;
  c.validation.freq = 5;
  c.validation.steps = 10;
  c.metrics.log_freq = 1;
  c.sample.prompt = "// The ";
  return c;
}

Config llama3_debugmodel() { return debugmodel("llama3_debugmodel", llama3::family()); }
Config gpt2_debugmodel() {
  Config c = debugmodel("gpt2_debugmodel", gpt2::family());
  c.training.seq_len = 1024;  // all the positions that it learns
  return c;
}

// What all published sizes have in common, whatever they are trained on.
Config published(std::string_view recipe, const models::Family& family, std::string_view flavor) {
  Config c;
  c.recipe = recipe;
  c.model = family.flavor(flavor);
  c.activation_checkpoint.mode = nn::ActivationCheckpointConfig::Mode::selective;
  c.validation.freq = 500;
  c.sample.tokens = 0;
  return c;
}

// Of Llama and Qwen.
Config decoder(std::string_view recipe, const models::Family& family, std::string_view flavor,
               int64_t seq_len) {
  Config c = published(recipe, family, flavor);
  c.training.steps = 1000;
  c.training.local_batch_size = 1;
  c.training.seq_len = seq_len;
  c.optimizer.lr = 3e-4;
  c.validation.steps = 1200;
  return c;
}

Config llama3_of(std::string_view recipe, std::string_view flavor) {
  return decoder(recipe, llama3::family(), flavor, 8192);
}

Config llama3_1b() { return llama3_of("llama3_1b", "1B"); }
Config llama3_3b() { return llama3_of("llama3_3b", "3B"); }
Config llama3_8b() { return llama3_of("llama3_8b", "8B"); }

Config llama3_70b() {
  Config c = llama3_of("llama3_70b", "70B");
  c.training.local_batch_size = 8;
  c.optimizer.lr = 1.5e-4;
  c.activation_checkpoint.mode = nn::ActivationCheckpointConfig::Mode::full;
  return c;
}

Config llama3_405b() {
  Config c = llama3_of("llama3_405b", "405B");
  c.training.steps = 3000;
  c.training.local_batch_size = 2;
  c.optimizer.lr = 8e-5;
  c.lr_scheduler.warmup_steps = 600;
  c.activation_checkpoint.mode = nn::ActivationCheckpointConfig::Mode::full;
  return c;
}

Config qwen3_debugmodel() { return debugmodel("qwen3_debugmodel", qwen3::family()); }

Config qwen3_of(std::string_view recipe, std::string_view flavor) {
  return decoder(recipe, qwen3::family(), flavor, 4096);
}

Config qwen3_0_6b() { return qwen3_of("qwen3_0.6b", "0.6B"); }
Config qwen3_1_7b() { return qwen3_of("qwen3_1.7b", "1.7B"); }
Config qwen3_4b() { return qwen3_of("qwen3_4b", "4B"); }
Config qwen3_8b() { return qwen3_of("qwen3_8b", "8B"); }
Config qwen3_14b() { return qwen3_of("qwen3_14b", "14B"); }
Config qwen3_32b() { return qwen3_of("qwen3_32b", "32B"); }

// Routers are balanced by their bias, as in torchtitan.
Config with_bias(Config c) {
  c.model.as<qwen3::Config>().moe.load_balance_coeff = 1e-3;
  return c;
}
Config qwen3_debugmodel_moe() {
  return with_bias(debugmodel("qwen3_debugmodel_moe", qwen3::family(), "debugmodel_moe"));
}
Config qwen3_debugmodel_moe_small() {
  return with_bias(
      debugmodel("qwen3_debugmodel_moe_small", qwen3::family(), "debugmodel_moe_small"));
}
Config qwen3_30b_a3b() { return with_bias(qwen3_of("qwen3_30b_a3b", "30B-A3B")); }
Config qwen3_235b_a22b() { return with_bias(qwen3_of("qwen3_235b_a22b", "235B-A22B")); }

Config llama4_debugmodel() {
  Config c = debugmodel("llama4_debugmodel", llama4::family());
  c.model.as<llama4::Config>().moe.load_balance_coeff = 1e-3;
  return c;
}

Config llama4_of(std::string_view recipe, std::string_view flavor) {
  Config c = decoder(recipe, llama4::family(), flavor, 8192);
  c.model.as<llama4::Config>().moe.load_balance_coeff = 1e-3;
  c.training.steps = 3000;
  c.optimizer.lr = 4e-3;
  c.optimizer.eps = 1e-15;
  c.lr_scheduler.warmup_steps = 600;
  c.lr_scheduler.min_lr_factor = 0.1;
  c.activation_checkpoint.mode = nn::ActivationCheckpointConfig::Mode::full;
  return c;
}

Config llama4_17bx16e() { return llama4_of("llama4_17bx16e", "17Bx16E"); }
Config llama4_17bx128e() { return llama4_of("llama4_17bx128e", "17Bx128E"); }

Config gpt2_published(std::string_view recipe, std::string_view flavor, double lr) {
  Config c = published(recipe, gpt2::family(), flavor);
  c.training.steps = 10000;
  c.training.local_batch_size = 8;
  c.training.global_batch_size = 512;
  c.training.seq_len = 1024;
  c.optimizer.lr = lr;
  c.validation.steps = 200;
  return c;
}

Config gpt2_124m() { return gpt2_published("gpt2_124m", "124M", 6e-4); }
Config gpt2_355m() { return gpt2_published("gpt2_355m", "355M", 3e-4); }
Config gpt2_774m() { return gpt2_published("gpt2_774m", "774M", 2.5e-4); }
Config gpt2_1558m() { return gpt2_published("gpt2_1558m", "1558M", 2e-4); }

}  // namespace

std::vector<Recipe> recipes() {
  return {
      {"llama3_debugmodel", "Llama 3 with 6 layers of 256, byte tokenizer; minutes on two cores",
       llama3_debugmodel},
      {"llama3_1b", "Llama 3.2 1B: 16 layers of 2048, tied embeddings", llama3_1b},
      {"llama3_3b", "Llama 3.2 3B: 28 layers of 3072, tied embeddings", llama3_3b},
      {"llama3_8b", "Llama 3.1 8B: 32 layers of 4096", llama3_8b},
      {"llama3_70b", "Llama 3.1 70B: 80 layers of 8192", llama3_70b},
      {"llama3_405b", "Llama 3.1 405B: 126 layers of 16384", llama3_405b},
      {"gpt2_debugmodel", "GPT-2 with 6 layers of 256, byte tokenizer; minutes on two cores",
       gpt2_debugmodel},
      {"qwen3_debugmodel", "Qwen 3 with 8 layers of 256, byte tokenizer; minutes on two cores",
       qwen3_debugmodel},
      {"qwen3_debugmodel_moe_small",
       "Qwen 3 with 6 layers of 256 and 16 experts, byte tokenizer; minutes on two cores",
       qwen3_debugmodel_moe_small},
      {"qwen3_debugmodel_moe", "Qwen 3 with 8 layers of 256 and 64 experts, as torchtitan's",
       qwen3_debugmodel_moe},
      {"qwen3_0.6b", "Qwen 3 0.6B: 28 layers of 1024, tied embeddings", qwen3_0_6b},
      {"qwen3_1.7b", "Qwen 3 1.7B: 28 layers of 2048, tied embeddings", qwen3_1_7b},
      {"qwen3_4b", "Qwen 3 4B: 36 layers of 2560, tied embeddings", qwen3_4b},
      {"qwen3_8b", "Qwen 3 8B: 36 layers of 4096", qwen3_8b},
      {"qwen3_14b", "Qwen 3 14B: 40 layers of 5120", qwen3_14b},
      {"qwen3_32b", "Qwen 3 32B: 64 layers of 5120", qwen3_32b},
      {"qwen3_30b_a3b", "Qwen 3 30B-A3B: 48 layers of 2048, 128 experts", qwen3_30b_a3b},
      {"qwen3_235b_a22b", "Qwen 3 235B-A22B: 94 layers of 4096, 128 experts", qwen3_235b_a22b},
      {"llama4_debugmodel",
       "Llama 4 with 6 layers of 256, 8 experts in every second, byte tokenizer; minutes on two "
       "cores",
       llama4_debugmodel},
      {"llama4_17bx16e", "Llama 4 Scout: 48 layers of 5120 with 16 experts each", llama4_17bx16e},
      {"llama4_17bx128e", "Llama 4 Maverick: 48 layers of 5120, every second with 128 experts",
       llama4_17bx128e},
      {"gpt2_124m", "GPT-2: 12 layers of 768", gpt2_124m},
      {"gpt2_355m", "GPT-2 medium: 24 layers of 1024", gpt2_355m},
      {"gpt2_774m", "GPT-2 large: 36 layers of 1280", gpt2_774m},
      {"gpt2_1558m", "GPT-2 XL: 48 layers of 1600", gpt2_1558m},
  };
}

}  // namespace tessera::train

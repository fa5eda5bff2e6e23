// SPDX-License-Identifier: Apache-2.0
// Recipes: whole configurations under a name, a row each: a model of a family, and the changes to
// the default fields. Llamas have the presets that torchtitan trains the same sizes with; 1B and
// 3B, for which it has none, take 8B's, and so do Qwens. GPT-2 has the rates of the same sizes in
// the paper of GPT-3 (Brown et al., 2020), with its batch of half a million tokens.
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/models/llama4/llama4.h"
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/train/config/config.h"

namespace tessera::train {
namespace {

using Change = void (*)(Config&);

// Changes that recipes have in common, in the order in which rows name them.

// A model for a first try.
void debug(Config& c) {
  c.training.steps = 10;
  // Many machines for a first try have no bf16 matmul instructions.
  c.training.mixed_precision_param = DType::f32;
  c.lr_scheduler.warmup_steps = 2;
  c.lr_scheduler.decay_ratio = 0.8;
  c.validation.freq = 5;
  c.validation.steps = 10;
  c.metrics.log_freq = 1;
  c.sample.prompt = "// The ";
}

// All published sizes.
void published(Config& c) {
  c.activation_checkpoint.mode = nn::ActivationCheckpointConfig::Mode::selective;
  c.validation.freq = 500;
  c.sample.tokens = 0;
}

// Llama and Qwen.
void decoder(Config& c) {
  published(c);
  c.training.steps = 1000;
  c.training.local_batch_size = 1;
  c.training.seq_len = 8192;
  c.optimizer.lr = 3e-4;
  c.validation.steps = 1200;
}
void qwen3_decoder(Config& c) {
  decoder(c);
  c.training.seq_len = 4096;
}

void full_recompute(Config& c) {
  c.activation_checkpoint.mode = nn::ActivationCheckpointConfig::Mode::full;
}

// Routers are balanced by their bias, as in torchtitan.
void qwen3_bias(Config& c) { c.model.as<qwen3::Config>().moe.load_balance_coeff = 1e-3; }
void llama4_bias(Config& c) { c.model.as<llama4::Config>().moe.load_balance_coeff = 1e-3; }

void llama4_published(Config& c) {
  decoder(c);
  full_recompute(c);
  llama4_bias(c);
  c.training.steps = 3000;
  c.optimizer.lr = 4e-3;
  c.optimizer.eps = 1e-15;
  c.lr_scheduler.warmup_steps = 600;
  c.lr_scheduler.min_lr_factor = 0.1;
}

void gpt2_published(Config& c) {
  published(c);
  c.training.steps = 10000;
  c.training.local_batch_size = 8;
  c.training.global_batch_size = 512;
  c.training.seq_len = 1024;
  c.validation.steps = 200;
}

struct Row {
  std::string_view name, description;
  models::Family (*family)();
  std::string_view flavor;
  std::vector<Change> changes;
};

Config make(const Row& row) {
  Config c;
  c.recipe = row.name;
  c.model = row.family().flavor(row.flavor);
  for (const Change change : row.changes) change(c);
  return c;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"llama3_debugmodel",
       "Llama 3 with 6 layers of 256, byte tokenizer; minutes on two cores",
       llama3::family,
       "debugmodel",
       {debug}},
      {"llama3_1b",
       "Llama 3.2 1B: 16 layers of 2048, tied embeddings",
       llama3::family,
       "1B",
       {decoder}},
      {"llama3_3b",
       "Llama 3.2 3B: 28 layers of 3072, tied embeddings",
       llama3::family,
       "3B",
       {decoder}},
      {"llama3_8b", "Llama 3.1 8B: 32 layers of 4096", llama3::family, "8B", {decoder}},
      {"llama3_70b",
       "Llama 3.1 70B: 80 layers of 8192",
       llama3::family,
       "70B",
       {decoder, full_recompute,
        [](Config& c) {
          c.training.local_batch_size = 8;
          c.optimizer.lr = 1.5e-4;
        }}},
      {"llama3_405b",
       "Llama 3.1 405B: 126 layers of 16384",
       llama3::family,
       "405B",
       {decoder, full_recompute,
        [](Config& c) {
          c.training.steps = 3000;
          c.training.local_batch_size = 2;
          c.optimizer.lr = 8e-5;
          c.lr_scheduler.warmup_steps = 600;
        }}},
      {"gpt2_debugmodel",
       "GPT-2 with 6 layers of 256, byte tokenizer; minutes on two cores",
       gpt2::family,
       "debugmodel",
       {debug,
        [](Config& c) {
          c.training.seq_len = 1024;  // all the positions that it learns
        }}},
      {"qwen3_debugmodel",
       "Qwen 3 with 8 layers of 256, byte tokenizer; minutes on two cores",
       qwen3::family,
       "debugmodel",
       {debug}},
      {"qwen3_debugmodel_moe_small",
       "Qwen 3 with 6 layers of 256 and 16 experts, byte tokenizer; minutes on two cores",
       qwen3::family,
       "debugmodel_moe_small",
       {debug, qwen3_bias}},
      {"qwen3_debugmodel_moe",
       "Qwen 3 with 8 layers of 256 and 64 experts, as torchtitan's",
       qwen3::family,
       "debugmodel_moe",
       {debug, qwen3_bias}},
      {"qwen3_0.6b",
       "Qwen 3 0.6B: 28 layers of 1024, tied embeddings",
       qwen3::family,
       "0.6B",
       {qwen3_decoder}},
      {"qwen3_1.7b",
       "Qwen 3 1.7B: 28 layers of 2048, tied embeddings",
       qwen3::family,
       "1.7B",
       {qwen3_decoder}},
      {"qwen3_4b",
       "Qwen 3 4B: 36 layers of 2560, tied embeddings",
       qwen3::family,
       "4B",
       {qwen3_decoder}},
      {"qwen3_8b", "Qwen 3 8B: 36 layers of 4096", qwen3::family, "8B", {qwen3_decoder}},
      {"qwen3_14b", "Qwen 3 14B: 40 layers of 5120", qwen3::family, "14B", {qwen3_decoder}},
      {"qwen3_32b", "Qwen 3 32B: 64 layers of 5120", qwen3::family, "32B", {qwen3_decoder}},
      {"qwen3_30b_a3b",
       "Qwen 3 30B-A3B: 48 layers of 2048, 128 experts",
       qwen3::family,
       "30B-A3B",
       {qwen3_decoder, qwen3_bias}},
      {"qwen3_235b_a22b",
       "Qwen 3 235B-A22B: 94 layers of 4096, 128 experts",
       qwen3::family,
       "235B-A22B",
       {qwen3_decoder, qwen3_bias}},
      {"llama4_debugmodel",
       "Llama 4 with 6 layers of 256, 8 experts in every second, byte tokenizer; minutes on two "
       "cores",
       llama4::family,
       "debugmodel",
       {debug, llama4_bias}},
      {"llama4_17bx16e",
       "Llama 4 Scout: 48 layers of 5120 with 16 experts each",
       llama4::family,
       "17Bx16E",
       {llama4_published}},
      {"llama4_17bx128e",
       "Llama 4 Maverick: 48 layers of 5120, every second with 128 experts",
       llama4::family,
       "17Bx128E",
       {llama4_published}},
      {"gpt2_124m",
       "GPT-2: 12 layers of 768",
       gpt2::family,
       "124M",
       {gpt2_published, [](Config& c) { c.optimizer.lr = 6e-4; }}},
      {"gpt2_355m",
       "GPT-2 medium: 24 layers of 1024",
       gpt2::family,
       "355M",
       {gpt2_published, [](Config& c) { c.optimizer.lr = 3e-4; }}},
      {"gpt2_774m",
       "GPT-2 large: 36 layers of 1280",
       gpt2::family,
       "774M",
       {gpt2_published, [](Config& c) { c.optimizer.lr = 2.5e-4; }}},
      {"gpt2_1558m",
       "GPT-2 XL: 48 layers of 1600",
       gpt2::family,
       "1558M",
       {gpt2_published, [](Config& c) { c.optimizer.lr = 2e-4; }}},
  };
  return all;
}

}  // namespace

std::vector<Recipe> recipes() {
  std::vector<Recipe> all;
  for (const Row& row : rows())
    all.push_back(
        {std::string(row.name), std::string(row.description), [&row] { return make(row); }});
  return all;
}

}  // namespace tessera::train

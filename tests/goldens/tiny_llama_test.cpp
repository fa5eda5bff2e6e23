// SPDX-License-Identifier: Apache-2.0
// Training against PyTorch and transformers: 20 AdamW steps of tiny Llamas from the same weights
// and batches, by the logits and by the loss that never makes them.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace tessera {
namespace {

double distance(const Tensor& a, const Tensor& b) {
  const auto x = a.values(), y = b.values();
  double gap = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    gap += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(gap / size);
}

llama3::Config config_of(const nlohmann::json& m) {
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

void twenty_steps(const std::string& name, bool logits_made) {
  const Session session;
  const io::SafetensorsFile file("tests/goldens/" + name + ".safetensors");
  const auto golden = nlohmann::json::parse(std::ifstream("tests/goldens/" + name + ".json"));
  llama3::Model model(config_of(golden["model"]));
  std::vector<nn::NamedParameter> initial;
  for (const auto& p : nn::named_parameters(model))
    initial.push_back({p.name, file.read("initial/" + p.name)});
  nn::load(model, initial);

  const auto& o = golden["optimizer"];
  const auto parameters = nn::named_parameters(model);
  optim::AdamW optimizer(parameters, {.lr = o["lr"],
                                      .beta1 = o["beta1"],
                                      .beta2 = o["beta2"],
                                      .eps = o["eps"],
                                      .weight_decay = o["weight_decay"]});

  const Tensor tokens = file.read("data/tokens");  // (20, 2, 17)
  for (int64_t step = 0; step < golden["steps"]; ++step) {
    const Tensor batch = select(tokens, 0, step);
    const Tensor input = contiguous(slice(batch, 1, {0, -1}));
    const Tensor target = contiguous(slice(batch, 1, {1}));
    const Tensor logits = model.forward(input);
    CrossEntropyResult result;
    if (logits_made) {
      result = cross_entropy(logits, target);
    } else {
      const models::Loss fused = model.loss(input, target, model.metadata(16));
      result = {fused.sum, fused.count};
    }
    const Tensor loss = result.sum / result.count.item();
    backward(loss);
    if (step == 0) {
      EXPECT_LE(distance(logits, file.read("step_1/logits")), 1e-5);
      for (const auto& p : parameters) {
        EXPECT_LE(distance(p.tensor.grad(), file.read("step_1/d_" + p.name)), 1e-5) << p.name;
      }
    }
    const auto at = static_cast<size_t>(step);
    const double norm = optim::clip_grad_norm_(optimizer.parameters(), o["max_norm"]);
    EXPECT_NEAR(loss.item(), golden["loss"][at], 1e-4) << "step " << step + 1;
    EXPECT_NEAR(norm, golden["grad_norm"][at], 1e-4 * norm) << "step " << step + 1;
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& p : parameters) {
    const double expected = golden["final_sum_of_squares"][p.name], n = norm({p.tensor});
    EXPECT_NEAR(n * n, expected, 1e-5 * expected) << p.name;
  }
}

TEST(TinyLlama, TwentyStepsEqualPyTorch) { twenty_steps("tiny_llama", true); }
TEST(TinyLlama, TwentyStepsWithoutLogitsEqualPyTorch) { twenty_steps("tiny_llama", false); }
TEST(TinyLlama, TwentyStepsTiedAndScaledEqualTransformers) {
  twenty_steps("tiny_llama_tied", true);
  twenty_steps("tiny_llama_tied", false);
}

}  // namespace
}  // namespace tessera

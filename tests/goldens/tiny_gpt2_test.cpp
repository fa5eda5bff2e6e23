// SPDX-License-Identifier: Apache-2.0
// GPT-2 against transformers: logits, every gradient and 20 AdamW steps from the same weights and
// batches, in f32 and with a model that is f64 throughout, and generation with a cache.
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/tests/support/trained_golden.h"

#include "golden.h"

namespace tessera {
namespace {

struct TinyGpt2 {
  explicit TinyGpt2(DType dtype)
      : golden(test::golden_json("tiny_gpt2")),
        model({.dim = golden["model"]["dim"],
               .n_layers = golden["model"]["n_layers"],
               .n_heads = golden["model"]["n_heads"],
               .vocab_size = golden["model"]["vocab_size"],
               .max_seq_len = golden["model"]["max_seq_len"],
               .norm_eps = golden["model"]["norm_eps"],
               .dtype = dtype}) {
    test::load_initial(model, file);
    tokens = file.read("data/tokens");
  }
  [[nodiscard]] Tensor inputs(int64_t step) const {
    return contiguous(slice(select(tokens, 0, step), 1, {0, -1}));
  }
  [[nodiscard]] Tensor targets(int64_t step) const {
    return contiguous(slice(select(tokens, 0, step), 1, {1}));
  }

  Session session;
  io::SafetensorsFile file = test::golden_tensors("tiny_gpt2");
  nlohmann::json golden;
  gpt2::Model model;
  Tensor tokens;  // (20, 2, 17)
};

void twenty_steps(DType dtype, bool logits_made, double tolerance, double loss_tolerance) {
  TinyGpt2 tiny(dtype);
  gpt2::Model& model = tiny.model;
  const nlohmann::json& golden = tiny.golden;
  const auto parameters = nn::named_parameters(model);
  optim::AdamW optimizer(parameters, test::golden_optimizer<optim::AdamWOptions>(golden));

  for (int64_t step = 0; step < golden["steps"]; ++step) {
    const Tensor input = tiny.inputs(step), target = tiny.targets(step);
    const Tensor logits = logits_made || step == 0 ? model.forward(input) : Tensor();
    models::Loss parts;
    if (logits_made) {
      const auto [sum, count] = cross_entropy(logits, target);
      parts = {sum, count};
    } else {
      parts = model.loss(input, target, model.metadata(16));
    }
    EXPECT_EQ(parts.sum.dtype(), dtype);
    const Tensor loss = parts.sum / parts.count.item();
    backward(loss);
    if (step == 0) {
      EXPECT_LE(distance(logits, tiny.file.read("step_1/logits")), tolerance);
      const double size = norm({tiny.file.read("step_1/d_layers.0.attention.wq.bias")}).item();
      for (const auto& p : parameters) {
        EXPECT_EQ(p.tensor.grad().dtype(), dtype) << p.name;
        // What is added to all keys changes no probability: its gradient is zero but for rounding.
        if (p.name.ends_with("wk.bias"))
          EXPECT_LE(norm({p.tensor.grad()}).item(), tolerance * size);
        else
          EXPECT_LE(distance(p.tensor.grad(), tiny.file.read("step_1/d_" + p.name)), tolerance)
              << p.name;
      }
    }
    const auto at = static_cast<size_t>(step);
    const double norm =
        optim::clip_grad_norm_(optimizer.parameters(), golden["optimizer"]["max_norm"]).item();
    EXPECT_NEAR(loss.item(), golden["loss"][at], loss_tolerance) << "step " << step + 1;
    EXPECT_NEAR(norm, golden["grad_norm"][at], loss_tolerance * norm) << "step " << step + 1;
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& p : parameters) {
    const double expected = golden["final_sum_of_squares"][p.name], n = norm({p.tensor}).item();
    // AdamW makes steps of the rounding in wk.bias's gradient.
    EXPECT_NEAR(n * n, expected, (p.name.ends_with("wk.bias") ? 1e-2 : 1e-5) * expected) << p.name;
  }
}

TEST(TinyGpt2, TwentyStepsEqualTransformers) { twenty_steps(DType::f32, true, 2e-5, 1e-4); }
TEST(TinyGpt2, TwentyStepsWithoutLogitsEqualTransformers) {
  twenty_steps(DType::f32, false, 2e-5, 1e-4);
}
// The norm that gradients are clipped by is rounded to f32.
TEST(TinyGpt2, InF64TwentyStepsEqualTransformers) { twenty_steps(DType::f64, false, 1e-9, 1e-6); }

TEST(TinyGpt2, CachedLogitsEqualTransformersAtEachPosition) {
  TinyGpt2 tiny(DType::f32);
  const NoGrad guard;
  const Tensor tokens = tiny.inputs(0), logits = tiny.file.read("step_1/logits");  // (B, T, V)
  models::Cache cache = tiny.model.make_cache(16);
  for (int64_t at = 0, next; at < 16; at = next) {
    next = at == 0 ? 3 : at + 1;  // a prompt of three, then token by token
    const Tensor last = tiny.model.next_logits(contiguous(slice(tokens, 1, {at, next})), cache);
    EXPECT_LE(distance(last, contiguous(slice(logits, 1, {next - 1, next}))), 2e-5) << next;
  }
}

TEST(TinyGpt2, TheTableIsCountedOnce) {
  TinyGpt2 tiny(DType::f32);
  int64_t stored = 0, tables = 0;
  for (const auto& [name, entry] : tiny.file.entries()) {
    if (name.starts_with("initial/")) stored += tiny.file.read(name).numel();
  }
  for (const auto& p : nn::named_parameters(tiny.model)) tables += p.tensor.size(0) == 97;
  EXPECT_EQ(nn::parameter_count(tiny.model), stored);
  EXPECT_EQ(tables, 1);
}

}  // namespace
}  // namespace tessera

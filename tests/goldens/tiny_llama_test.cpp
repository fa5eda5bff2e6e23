// SPDX-License-Identifier: Apache-2.0
// Training against PyTorch and transformers: 20 AdamW steps of tiny Llamas from the same weights
// and batches, by the logits and by the loss that never makes them.
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/tests/support/trained_golden.h"

#include "golden.h"

namespace tessera {
namespace {

void twenty_steps(const std::string& name, bool logits_made) {
  const Session session;
  const io::SafetensorsFile file = test::golden_tensors(name);
  const auto golden = test::golden_json(name);
  llama3::Model model(test::golden_llama3(golden));
  test::load_initial(model, file);

  const auto parameters = nn::named_parameters(model);
  optim::AdamW optimizer(parameters, test::golden_optimizer<optim::AdamWOptions>(golden));

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
    const double norm =
        optim::clip_grad_norm_(optimizer.parameters(), golden["optimizer"]["max_norm"]).item();
    EXPECT_NEAR(loss.item(), golden["loss"][at], 1e-4) << "step " << step + 1;
    EXPECT_NEAR(norm, golden["grad_norm"][at], 1e-4 * norm) << "step " << step + 1;
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& p : parameters) {
    const double expected = golden["final_sum_of_squares"][p.name], n = norm({p.tensor}).item();
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

// SPDX-License-Identifier: Apache-2.0
// A tiny decoder against transformers: logits, every gradient and 20 AdamW steps from the same
// weights and batches, and generation with a cache. Goldens are f64, for models of any dtype.
#pragma once

#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/tests/goldens/golden.h"
#include "tessera/tests/support/trained_golden.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::test {

/// The model that the golden `name` was made of, with the weights that it began with.
template <class Model> struct TinyDecoder {
  /// `config_of` makes the configuration, but for the dtype, of the golden's JSON.
  template <class ConfigOf>
  TinyDecoder(const std::string& name, DType dtype, ConfigOf config_of)
      : file(golden_tensors(name)),
        golden(golden_json(name)),
        model([&] {
          typename Model::Config c = config_of(golden["model"]);
          c.dtype = dtype;
          return c;
        }()),
        tokens(file.read("data/tokens")) {
    load_initial(model, file);
  }
  [[nodiscard]] Tensor inputs(int64_t step) const {
    return contiguous(slice(select(tokens, 0, step), 1, {0, -1}));
  }
  [[nodiscard]] Tensor targets(int64_t step) const {
    return contiguous(slice(select(tokens, 0, step), 1, {1}));
  }

  Session session;
  io::SafetensorsFile file;
  nlohmann::json golden;
  Model model;
  Tensor tokens;  // (20, 2, 17)
};

/// Trains with or without logits being made; logits and gradients are compared relative to their
/// norm.
template <class Model>
void expect_twenty_steps(TinyDecoder<Model>& tiny, bool logits_made, double tolerance,
                         double loss_tolerance) {
  Model& model = tiny.model;
  const DType dtype = model.config().dtype;
  const nlohmann::json& golden = tiny.golden;
  const auto parameters = nn::named_parameters(model);
  optim::AdamW optimizer(parameters, golden_optimizer<optim::AdamWOptions>(golden));

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
      for (const auto& p : parameters) {
        EXPECT_EQ(p.tensor.grad().dtype(), dtype) << p.name;
        // What is added to all keys changes no probability: its gradient is zero but for rounding.
        if (p.name.ends_with("wk.bias"))
          EXPECT_LE(
              norm({p.tensor.grad()}).item(),
              tolerance * norm({tiny.file.read("step_1/d_layers.0.attention.wq.bias")}).item());
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

/// A prompt of three tokens, then token by token.
template <class Model> void expect_cached_logits(const TinyDecoder<Model>& tiny) {
  const NoGrad guard;
  const Tensor tokens = tiny.inputs(0), logits = tiny.file.read("step_1/logits");  // (B, T, V)
  models::Cache cache = tiny.model.make_cache(16);
  for (int64_t at = 0, next; at < 16; at = next) {
    next = at == 0 ? 3 : at + 1;
    const Tensor last = tiny.model.next_logits(contiguous(slice(tokens, 1, {at, next})), cache);
    EXPECT_LE(distance(last, contiguous(slice(logits, 1, {next - 1, next}))), 2e-5) << next;
  }
}

}  // namespace tessera::test

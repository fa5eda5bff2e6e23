// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/optimizer.h"

#include "tessera/core/context.h"
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/train/summary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::train {

void OptimizerConfig::fields(Fields& f) {
  f.add("lr", lr, "learning rate after warm-up", {.min = 0, .max = 1e6});
  f.add("beta1", beta1, "decay of the mean of gradients", {.min = 0, .max = 0.999999});
  f.add("beta2", beta2, "decay of the mean of their squares", {.min = 0, .max = 0.9999999});
  f.add("eps", eps, "added to the root of the squares", {.min = 0, .max = 1, .above_min = true});
  f.add("weight_decay", weight_decay, "share of a parameter taken off per step, times lr",
        {.min = 0, .max = 1e3});
}

void ScheduleConfig::fields(Fields& f) {
  f.add("warmup_steps", warmup_steps, "steps over which lr rises linearly",
        {.min = 0, .unit = "steps"});
  f.add("decay_ratio", decay_ratio,
        "share of the steps, at the end, over which lr decays; none: all after warm-up",
        {.min = 0, .max = 1});
  f.add("decay_type", decay_type, "shape of the decay", {.choices = {"linear", "sqrt", "cosine"}});
  f.add("min_lr_factor", min_lr_factor, "what the decay goes down to, as a share of lr",
        {.min = 0, .max = 1});
}

AdamW::AdamW(std::vector<Tensor> parameters, const OptimizerConfig& config)
    : parameters_(std::move(parameters)), config_(config) {
  for (const Tensor& p : parameters_) {
    first_.push_back(zeros_like(p));
    second_.push_back(zeros_like(p));
  }
}

int64_t AdamW::state_bytes() const { return bytes_of(first_) + bytes_of(second_); }

std::vector<Tensor> AdamW::grads() const {
  std::vector<Tensor> grads;
  grads.reserve(parameters_.size());
  for (const Tensor& p : parameters_) {
    Tensor g = p.grad();
    if (!g.defined()) {
      fail<AutogradError>("adamw", "parameter ", grads.size(), ", ", p.meta(),
                          ", has no gradient: run backward first");
    }
    grads.push_back(std::move(g));
  }
  return grads;
}

void AdamW::step(double scale) {
  const NoGrad guard;
  const OptimizerConfig& c = config_;
  adamw_(parameters_, grads(), first_, second_, ++steps_,
         {.lr = c.lr * scale,
          .beta1 = c.beta1,
          .beta2 = c.beta2,
          .eps = c.eps,
          .weight_decay = c.weight_decay});
}

void AdamW::zero_grad() {
  for (Tensor& p : parameters_) p.set_grad({});
}

double lr_factor(const ScheduleConfig& c, int64_t step, int64_t steps) {
  const int64_t warmup = std::min(c.warmup_steps, steps);
  int64_t decay = steps - warmup;
  if (c.decay_ratio) {
    // Halves go to the even neighbour, as in Python's round.
    decay = std::min(
        decay, static_cast<int64_t>(std::nearbyint(static_cast<double>(steps) * *c.decay_ratio)));
  }
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  const int64_t start =
      steps + 1 - decay;  // one beyond the end, so that the last step still learns
  if (step < start) return 1;
  const double progress = static_cast<double>(step + 1 - start) / static_cast<double>(decay);
  double factor = 1 - progress;
  if (c.decay_type == "sqrt") factor = 1 - std::sqrt(progress);
  if (c.decay_type == "cosine") factor = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return c.min_lr_factor + (1 - c.min_lr_factor) * factor;
}

}  // namespace tessera::train

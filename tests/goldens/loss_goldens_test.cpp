// SPDX-License-Identifier: Apache-2.0
// Losses against PyTorch.
#include "tessera/kernels/cross_entropy/losses.h"

#include "golden.h"
#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace tessera {
namespace {

Reduction reduction_of(const std::string& name) {
  if (name.ends_with("_none")) return Reduction::none;
  return name.ends_with("_sum") ? Reduction::sum : Reduction::mean;
}

TEST_F(Golden, Losses) {
  using Function = std::function<Tensor(const X&, Reduction)>;
  open("losses");
  case_ = "weights";
  const Tensor weight = get("weight"), pos_weight = get("pos_weight");
  const std::map<std::string, Function> functions{
      {"mse", [](const X& x, Reduction r) { return mse_loss(x[0], x[1], r); }},
      {"l1", [](const X& x, Reduction r) { return l1_loss(x[0], x[1], r); }},
      {"huber", [](const X& x, Reduction r) { return huber_loss(x[0], x[1], 0.7, r); }},
      {"smooth_l1", [](const X& x, Reduction r) { return smooth_l1_loss(x[0], x[1], 0.7, r); }},
      {"smooth_l1_0", [](const X& x, Reduction r) { return smooth_l1_loss(x[0], x[1], 0, r); }},
      {"bce",
       [](const X& x, Reduction r) {
         return binary_cross_entropy_with_logits(x[0], x[1], {.reduction = r});
       }},
      {"bce_far",
       [](const X& x, Reduction r) {
         return binary_cross_entropy_with_logits(x[0], x[1], {.reduction = r});
       }},
      {"bce_weighted",
       [&](const X& x, Reduction r) {
         return binary_cross_entropy_with_logits(
             x[0], x[1], {.weight = weight, .pos_weight = pos_weight, .reduction = r});
       }},
      {"kl", [](const X& x, Reduction r) { return kl_div(x[0], x[1], {.reduction = r}); }},
      {"kl_log", [](const X& x, Reduction r) {
         return kl_div(x[0], x[1], {.log_target = true, .reduction = r});
       }}};
  for (const auto& name : cases_) {
    if (name == "weights") continue;
    case_ = name;
    run({"x", "target"}, [&](const X& x) -> Results {
      const Function& f = functions.at(name.substr(0, name.rfind('_')));
      return {{"y", f(x, reduction_of(name))}};
    });
  }
}

TEST_F(Golden, ClassLosses) {
  open("class_losses");
  case_ = "weights";
  const Tensor weight = get("weight");
  for (const auto& name : cases_) {
    if (name == "weights") continue;
    case_ = name;
    run({"x"}, [&](const X& x) -> Results {
      const Tensor weights = name.find("_weighted") != std::string::npos ? weight : Tensor();
      const Reduction reduction = reduction_of(name);
      if (name.starts_with("nll")) {
        return {{"y", nll_loss(x[0], get("targets"),
                               {.weight = weights, .ignore_index = 3, .reduction = reduction})}};
      }
      return {{"y", cross_entropy(x[0], get("targets"), reduction,
                                  {.ignore_index = 3,
                                   .label_smoothing = number("smoothing"),
                                   .weight = weights})}};
    });
  }
}

}  // namespace
}  // namespace tessera

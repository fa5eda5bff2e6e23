// SPDX-License-Identifier: Apache-2.0
// Norms, losses, optimizer steps and f8 against PyTorch: every case of tests/goldens/
// training_cases.py.
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/layer_norm/layer_norm.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/quantize/quantize.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/sgd/sgd.h"
#include "tessera/kernels/swiglu/swiglu.h"

#include "golden.h"
#include <gtest/gtest.h>

namespace tessera {
namespace {

class TrainingGolden : public Golden {
 protected:
  [[nodiscard]] CrossEntropyOptions loss_options() const {
    return {.label_smoothing = number("label_smoothing"), .z_loss = number("z_loss")};
  }
  /// Runs the four steps of the case; `step` gets parameters, gradients and the step number.
  void steps(const std::function<void(const std::vector<Tensor>&, const std::vector<Tensor>&,
                                      int64_t)>& step) {
    const std::vector<Tensor> p{get("p0"), get("p1")};
    for (int n = 1; n <= 4; ++n) {
      const auto key = [&](const char* what, size_t i) {
        return what + std::to_string(n) + "_" + std::to_string(i);
      };
      step(p, {get(key("g", 0)), get(key("g", 1))}, n);
      for (size_t i = 0; i < 2; ++i) expect_close(p[i], get(key("p", i)), case_ + key("/p", i));
    }
  }
};

TEST_F(TrainingGolden, CrossEntropyOptions) {
  each("cross_entropy_options", {"logits"}, [&](const X& x) -> Results {
    const auto [sum, count] = cross_entropy(x[0], get("targets"), loss_options());
    return {{"sum", sum}, {"count", count}};
  });
}

TEST_F(TrainingGolden, LinearCrossEntropy) {
  each("linear_cross_entropy", {"hidden", "weight"}, [&](const X& x) -> Results {
    const auto [sum, count] = linear_cross_entropy(x[0], x[1], get("targets"), loss_options());
    // The sum is f32, made of logits in the operands' dtype.
    return {{"sum", cast(sum, x[0].dtype())}, {"count", count}};
  });
}

TEST_F(TrainingGolden, LayerNorm) {
  open("layer_norm");
  for (const auto& name : cases_) {
    case_ = name;
    std::vector<std::string> inputs{"x"};
    for (const char* parameter : {"weight", "bias"})
      if (has(parameter)) inputs.emplace_back(parameter);
    run(inputs, [&](const X& x) -> Results {
      const auto given = [&](size_t i) { return x.size() > i ? x[i] : Tensor(); };
      return {{"y", layer_norm(x[0], given(1), given(2), number("eps"))}};
    });
  }
}

TEST_F(TrainingGolden, AddRmsNorm) {
  each("add_rms_norm", {"x", "residual", "weight"}, [&](const X& x) -> Results {
    const auto [y, sum] = add_rms_norm(x[0], x[1], x[2], number("eps"));
    return {{"y", y}, {"sum", sum}};
  });
}

TEST_F(TrainingGolden, SwigluLimited) {
  each("swiglu_limited", {"gate", "up"}, [&](const X& x) -> Results {
    const SwigluOptions options{number("limit"), number("alpha"), number("up_shift")};
    return {{"y", swiglu(x[0], x[1], options)}};
  });
}

TEST_F(TrainingGolden, Sgd) {
  open("sgd");
  for (const auto& name : cases_) {
    case_ = name;
    const SgdOptions options{number("lr"),           number("momentum"), number("dampening"),
                             number("weight_decay"), flag("nesterov"),   flag("maximize")};
    std::vector<Tensor> buffers;
    if (options.momentum != 0) buffers = {empty({5, 7}), empty({13})};
    steps([&](const auto& p, const auto& g, int64_t n) { sgd_(p, g, buffers, n, options); });
  }
}

// Moments in f32 and in bf16, rounded to the nearest and by draws.
TEST_F(TrainingGolden, AdamWNarrow) {
  open("adamw_narrow");
  case_ = "bf16";
  for (const DType moments : {DType::f32, DType::bf16}) {
    for (const bool stochastic : {false, true}) {
      AdamWOptions options{number("lr"), number("beta1"), number("beta2"), number("eps"),
                           number("weight_decay")};
      if (stochastic) options.streams = {1, 2};
      const auto make = [&] {
        return std::vector<Tensor>{from_values(std::vector<double>(35), {5, 7}, moments),
                                   from_values(std::vector<double>(13), {13}, moments)};
      };
      const auto first = make(), second = make();
      steps([&](const auto& p, const auto& g, int64_t n) {
        adamw_(p, g, first, second, n, options);
      });
    }
  }
}

// Bit for bit: scales, values and what comes back.
TEST_F(TrainingGolden, Quantize) {
  open("quantize");
  for (const auto& name : cases_) {
    case_ = name;
    const DType to = attribute("to") == "f8_e4m3" ? DType::f8_e4m3 : DType::f8_e5m2;
    const auto [values, scale] = quantize(get("x"), to, flag("per_row"));
    EXPECT_EQ(scale.shape(), get("scale").shape()) << case_;
    EXPECT_EQ(scale.values(), get("scale").values()) << case_;
    EXPECT_EQ(values.dtype(), to);
    EXPECT_EQ(values.values(), get("values").values()) << case_;
    EXPECT_EQ(dequantize(values, scale).values(), get("y").values()) << case_;
  }
}

}  // namespace
}  // namespace tessera

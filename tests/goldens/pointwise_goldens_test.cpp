// SPDX-License-Identifier: Apache-2.0
// The pointwise family, triangles and one_hot against PyTorch.
#include "tessera/kernels/one_hot/one_hot.h"
#include "tessera/kernels/triangle/triangle.h"

#include "golden.h"
#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace tessera {
namespace {

using Function = std::function<Tensor(const Tensor&)>;

TEST_F(Golden, Unary) {
  const std::map<std::string, Function> functions{
      {"sigmoid", sigmoid},
      {"relu", relu},
      {"abs", [](const Tensor& x) { return abs(x); }},
      {"expm1", [](const Tensor& x) { return expm1(x); }},
      {"softplus", [](const Tensor& x) { return softplus(x); }},
      {"softplus_sharp", [](const Tensor& x) { return softplus(x, 2.5, 3); }},
      {"erf", [](const Tensor& x) { return erf(x); }},
      {"pow_1", [](const Tensor& x) { return pow(x, 1); }},
      {"pow_2", [](const Tensor& x) { return pow(x, 2); }},
      {"pow_3", [](const Tensor& x) { return pow(x, 3); }},
      {"pow_4", [](const Tensor& x) { return pow(x, 4); }},
      {"pow_half", [](const Tensor& x) { return pow(x, 0.5); }},
      {"pow_2.5", [](const Tensor& x) { return pow(x, 2.5); }},
      {"pow_-1.5", [](const Tensor& x) { return pow(x, -1.5); }},
      {"clamp", [](const Tensor& x) { return clamp(x, {.min = -1, .max = 2}); }},
      {"clamp_min", [](const Tensor& x) { return clamp(x, {.min = 0.5}); }},
      {"clamp_max", [](const Tensor& x) { return clamp(x, {.max = 0.5}); }},
      {"reciprocal", reciprocal},
      {"silu", silu},
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"gelu_tanh", [](const Tensor& x) { return gelu(x, true); }},
      {"sqrt", [](const Tensor& x) { return sqrt(x); }},
      {"log1p", [](const Tensor& x) { return log1p(x); }},
      {"sin_far", [](const Tensor& x) { return sin(x); }},
      {"cos_far", [](const Tensor& x) { return cos(x); }},
      {"masked_fill",
       [&](const Tensor& x) { return masked_fill(x, cast(get("mask"), DType::bool_), -1.5); }}};
  each("unary", {"x"}, [&](const X& x) -> Results {
    const size_t narrow = case_.find("_bf16");
    return {{"y", functions.at(case_.substr(0, narrow))(x[0])}};
  });
}

TEST_F(Golden, Steps) {
  const std::map<std::string, Function> functions{
      {"floor", [](const Tensor& x) { return floor(x); }},
      {"round", [](const Tensor& x) { return round(x); }},
      {"sign", sign},
      {"ceil", [](const Tensor& x) { return ceil(x); }},
      {"trunc", [](const Tensor& x) { return trunc(x); }}};
  open("steps");
  for (const auto& name : cases_) {
    case_ = name;
    EXPECT_EQ(functions.at(name)(get("x")).values(), get("y").values()) << name;
  }
}

TEST_F(Golden, Binary) {
  using Two = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::map<std::string, Two> functions{
      {"maximum", maximum},
      {"minimum", minimum},
      {"remainder", [](const Tensor& a, const Tensor& b) { return remainder(a, b); }},
      {"pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); }},
      {"pow_whole", [](const Tensor& a, const Tensor& b) { return pow(a, b); }}};
  each("binary", {"a", "b"}, [&](const X& x) -> Results {
    const size_t narrow = case_.find("_bf16");
    return {{"y", functions.at(case_.substr(0, narrow))(x[0], x[1])}};
  });
}

TEST_F(Golden, Activations) {
  const std::map<std::string, Function> functions{
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x); }},
      {"leaky_relu_0.3", [](const Tensor& x) { return leaky_relu(x, 0.3); }},
      {"elu", [](const Tensor& x) { return elu(x); }},
      {"elu_0.6", [](const Tensor& x) { return elu(x, 0.6); }},
      {"mish", mish},
      {"logsigmoid", logsigmoid},
      {"hardtanh", [](const Tensor& x) { return hardtanh(x); }},
      {"relu6", relu6},
      {"exp2", [](const Tensor& x) { return exp2(x); }},
      {"log2", [](const Tensor& x) { return log2(x); }},
      {"log10", [](const Tensor& x) { return log10(x); }},
      {"frac", frac}};
  each("activations", {"x"}, [&](const X& x) -> Results {
    std::string name = case_;
    for (const std::string suffix : {"_bf16", "_far"}) {
      if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
    }
    return {{"y", functions.at(name)(x[0])}};
  });
}

TEST_F(Golden, Blends) {
  const std::map<std::string, std::function<Tensor(const X&)>> functions{
      {"clamp", [](const X& x) { return clamp(x[0], x[1], x[2]); }},
      {"clamp_min", [](const X& x) { return clamp(x[0], x[1]) + x[2] * 0; }},
      {"lerp", [](const X& x) { return lerp(x[0], x[1], x[2]); }},
      {"lerp_0.3", [](const X& x) { return lerp(x[0], x[1], 0.3) + x[2] * 0; }},
      {"lerp_0.7", [](const X& x) { return lerp(x[0], x[1], 0.7) + x[2] * 0; }},
      {"fmod", [](const X& x) { return fmod(x[0] * 9, x[1]) + x[2] * 0; }}};
  each("blends", {"a", "b", "c"}, [&](const X& x) -> Results {
    return {{"y", functions.at(case_)(x)}};
  });
}

TEST_F(Golden, Quotients) {
  open("quotients");
  for (const auto& name : cases_) {
    case_ = name;
    const Tensor a = get("a"), b = get("b");
    const Tensor y = name.starts_with("fmod") ? fmod(a, b) : floor_divide(a, b);
    EXPECT_EQ(y.values(), get("y").values()) << name;
  }
}

TEST_F(Golden, Triangle) {
  each("triangle", {"x"}, [&](const X& x) -> Results {
    const int diagonal = integer("diagonal");
    return {{"y", flag("upper") ? triu(x[0], diagonal) : tril(x[0], diagonal)}};
  });
}

TEST_F(Golden, OneHot) {
  open("one_hot");
  for (const auto& name : cases_) {
    case_ = name;
    EXPECT_EQ(one_hot(get("ids"), integer("classes")).values(), get("y").values()) << name;
  }
}

}  // namespace
}  // namespace tessera

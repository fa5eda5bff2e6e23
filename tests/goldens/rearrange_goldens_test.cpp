// SPDX-License-Identifier: Apache-2.0
// Views, what is made of them, and einsum against PyTorch, forward and gradients.
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/flip/flip.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/layer_norm/layer_norm.h"
#include "tessera/kernels/matmul/einsum.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pad/pad.h"
#include "tessera/tests/goldens/golden.h"

#include <map>

namespace tessera {
namespace {

using RearrangeGolden = Golden;

std::vector<std::pair<std::string, Tensor>> pieces(const std::vector<Tensor>& parts) {
  return {{"y", parts.at(1)}, {"first", parts.front()}, {"last", parts.back()}};
}

TEST_F(RearrangeGolden, Views) {
  const auto one = [](auto f) { return [f](const Tensor& x) -> Results { return {{"y", f(x)}}; }; };
  const std::map<std::string, std::function<Results(const Tensor&)>> functions{
      {"squeeze", one([](const Tensor& x) { return squeeze(x, 1); })},
      {"unsqueeze", one([](const Tensor& x) { return unsqueeze(x, -1); })},
      {"flatten", one([](const Tensor& x) { return flatten(x, 1, 2); })},
      {"unflatten", one([](const Tensor& x) {
         return unflatten(x, 1, {3, -1});
       })},
      {"movedim", one([](const Tensor& x) { return movedim(x, 0, 2); })},
      {"narrow", one([](const Tensor& x) { return narrow(x, 1, -4, 2); })},
      {"split", [](const Tensor& x) { return pieces(split(x, 3, 1)); }},
      {"split_sizes",
       [](const Tensor& x) {
         return pieces(split(x, {1, 4, 0, 2}, 0));
       }},
      {"chunk", [](const Tensor& x) { return pieces(chunk(x, 4)); }},
      {"diagonal", one([](const Tensor& x) { return diagonal(x); })},
      {"diagonal_below", one([](const Tensor& x) { return diagonal(x, -2, 2, 0); })},
      {"diag_embed", one([](const Tensor& x) { return diag_embed(x, 1); })},
      {"diag_embed_first", one([](const Tensor& x) { return diag_embed(x, -2, 2, 0); })},
  };
  each("rearrange", {"x"}, [&](const X& x) { return functions.at(case_)(x[0]); });
  EXPECT_EQ(cases_.size(), functions.size());
}

TEST_F(RearrangeGolden, Shapes) {
  const std::map<std::string, std::function<Tensor(const Tensor&)>> functions{
      {"flip",
       [](const Tensor& x) {
         return flip(x, {0, -1});
       }},
      {"roll",
       [](const Tensor& x) {
         return roll(x, {2, -1}, {0, 2});
       }},
      {"roll_flat", [](const Tensor& x) { return roll(x, 5); }},
      {"repeat",
       [](const Tensor& x) {
         return repeat(x, {2, 1, 3});
       }},
      {"tile",
       [](const Tensor& x) {
         return tile(x, {2, 2});
       }},
      {"repeat_interleave", [](const Tensor& x) { return repeat_interleave(x, 3, 1); }},
      {"repeat_interleave_counts",
       [](const Tensor& x) {
         return repeat_interleave(x, tensor({2, 0, 3}, DType::i64), 1);
       }},
      {"pad_constant",
       [](const Tensor& x) {
         return pad(x, {1, 2, 0, 3}, PadMode::constant, 1.5);
       }},
      {"pad_crop",
       [](const Tensor& x) {
         return pad(x, {-1, 2, 1, -2});
       }},
      {"pad_reflect",
       [](const Tensor& x) {
         return pad(x, {2, 1, 1, 3}, PadMode::reflect);
       }},
      {"pad_replicate",
       [](const Tensor& x) {
         return pad(x, {2, 1, 0, 3}, PadMode::replicate);
       }},
      {"pad_circular",
       [](const Tensor& x) {
         return pad(x, {2, 5, 1, 0}, PadMode::circular);
       }},
  };
  each("shapes", {"x"}, [&](const X& x) -> Results { return {{"y", functions.at(case_)(x[0])}}; });
  EXPECT_EQ(cases_.size(), functions.size());
}

TEST_F(RearrangeGolden, ProductsOfVectors) {
  each("vectors", {"a", "b"}, [&](const X& x) -> Results {
    return {{"y", case_ == "linear" ? linear(x[0], x[1]) : matmul(x[0], x[1])}};
  });
}

TEST_F(RearrangeGolden, LayerNormOverSeveralDims) {
  each("layer_norm_dims", {"x", "weight", "bias"}, [&](const X& x) -> Results {
    return {{"y", layer_norm(x[0], x[1], x[2], 1e-5)}};
  });
}

TEST_F(RearrangeGolden, Stack) {
  each("stack", {"x0", "x1", "x2"}, [&](const X& x) -> Results {
    return {{"y", stack(x, integer("dim"))}};
  });
}

TEST_F(RearrangeGolden, Einsum) {
  open("einsum");
  for (const auto& name : cases_) {
    case_ = name;
    std::vector<std::string> inputs;
    for (const char* operand : {"a", "b", "c"}) {
      if (has(operand)) inputs.emplace_back(operand);
    }
    run(inputs, [&](const X& x) -> Results { return {{"y", einsum(attribute("equation"), x)}}; });
  }
}

}  // namespace
}  // namespace tessera

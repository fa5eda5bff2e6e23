// SPDX-License-Identifier: Apache-2.0
// Views, what is made of them, and einsum against PyTorch, forward and gradients.
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/matmul/einsum.h"
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

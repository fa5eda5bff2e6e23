// SPDX-License-Identifier: Apache-2.0
// The reduce family and log_softmax against PyTorch.
#include "tessera/kernels/cummax/cummax.h"
#include "tessera/kernels/cumprod/cumprod.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/softmax/softmax.h"

#include "golden.h"
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

namespace tessera {
namespace {

TEST_F(Golden, Min) {
  each("min", {"x"}, [&](const X& x) -> Results {
    const auto [y, indices] = min(x[0], integer("dim"));
    EXPECT_EQ(argmin(x[0], integer("dim")).values(), indices.values());
    return {{"y", y}, {"indices", indices}};
  });
}

TEST_F(Golden, Cumulative) {
  each("cumulative", {"x"}, [&](const X& x) -> Results {
    const int dim = integer("dim");
    if (case_.starts_with("cumprod")) return {{"y", cumprod(x[0], dim)}};
    const auto [y, indices] = case_.starts_with("cummax") ? cummax(x[0], dim) : cummin(x[0], dim);
    return {{"y", y}, {"indices", indices}};
  });
}

TEST_F(Golden, LogSoftmax) {
  each("log_softmax", {"x"}, [&](const X& x) -> Results {
    return {{"y", log_softmax(x[0], integer("dim"))}};
  });
}

TEST_F(Golden, Reduce) {
  using Dims = std::initializer_list<int>;
  using Function = std::function<Tensor(const Tensor&, Dims)>;
  const auto of_norm = [](double p) {
    return [p](const Tensor& x, Dims dims) { return vector_norm(x, p, dims); };
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::map<std::string, Function> functions{
      {"prod", [](const Tensor& x, Dims dims) { return prod(x, dims); }},
      {"amax", [](const Tensor& x, Dims dims) { return amax(x, dims); }},
      {"amin", [](const Tensor& x, Dims dims) { return amin(x, dims); }},
      {"var_0", [](const Tensor& x, Dims dims) { return var(x, dims, 0); }},
      {"var", [](const Tensor& x, Dims dims) { return var(x, dims); }},
      {"std_0", [](const Tensor& x, Dims dims) { return stddev(x, dims, 0); }},
      {"std", [](const Tensor& x, Dims dims) { return stddev(x, dims); }},
      {"norm_1", of_norm(1)},
      {"norm_2", of_norm(2)},
      {"norm_inf", of_norm(kInf)},
      {"norm_-inf", of_norm(-kInf)},
      {"norm_3", of_norm(3)},
      {"norm_0.5", of_norm(0.5)}};
  each("reduce", {"x"}, [&](const X& x) -> Results {
    std::string name = case_;
    const bool two = name.ends_with("_two");
    if (two) name.resize(name.size() - 4);
    if (!functions.contains(name)) name = name.substr(0, name.rfind('_'));
    const Function& f = functions.at(name);
    return {{"y", two ? f(x[0], {0, 2}) : f(x[0], {1})}};
  });
}

}  // namespace
}  // namespace tessera

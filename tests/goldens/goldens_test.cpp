// SPDX-License-Identifier: Apache-2.0
// Rooms against PyTorch: forward and gradients of every case in tests/goldens/*.safetensors.
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/rms_norm/rms_norm.h"
#include "tessera/kernels/rope/rope.h"
#include "tessera/kernels/scatter/scatter.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/kernels/swiglu/swiglu.h"
#include "tessera/kernels/topk/topk.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/io/safetensors.h"

#include "golden.h"
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

namespace tessera {
namespace {

TEST_F(Golden, Softmax) {
  each("softmax", {"x"}, [&](const X& x) -> Results {
    return {{"y", softmax(x[0], integer("dim"))}};
  });
}

TEST_F(Golden, RmsNorm) {
  each("rms_norm", {"x", "weight"}, [&](const X& x) -> Results {
    return {{"y", rms_norm(x[0], x[1], number("eps"), number("weight_offset"))}};
  });
}

TEST_F(Golden, Rope) {
  each("rope", {"x"}, [&](const X& x) -> Results {
    return {{"y", rope(x[0], get("cos"), get("sin"))}};
  });
  for (const auto& name : cases_) {
    case_ = name;
    const Tensor x = get("x");
    const auto [cos, sin] = rope_tables(x.size(1), x.size(3), number("theta"), integer("offset"));
    expect_close(cos, get("cos"), case_ + "/cos");
    expect_close(sin, get("sin"), case_ + "/sin");
  }
}

TEST_F(Golden, Swiglu) {
  each("swiglu", {"gate", "up"}, [](const X& x) -> Results { return {{"y", swiglu(x[0], x[1])}}; });
}

TEST_F(Golden, Attention) {
  each("scaled_dot_product_attention", {"q", "k", "v"}, [&](const X& x) -> Results {
    const auto [y, lse] = scaled_dot_product_attention_with_lse(
        x[0], x[1], x[2],
        {.mask = flag("causal") ? AttentionMask::causal() : AttentionMask(),
         .scale = number("scale")});
    return {{"y", y}, {"lse", lse}};
  });
}

TEST_F(Golden, AttentionHeadsInner) {
  each("scaled_dot_product_attention", {"q", "k", "v"}, [&](const X& x) -> Results {
    const auto swap = [](const Tensor& t) {
      return contiguous(transpose(t, 1, 2));
    };  // (B, T, H, D)
    const auto [y, lse] = scaled_dot_product_attention_with_lse(
        swap(x[0]), swap(x[1]), swap(x[2]),
        {.mask = flag("causal") ? AttentionMask::causal() : AttentionMask(), .heads_inner = true});
    return {{"y", transpose(y, 1, 2)}, {"lse", lse}};
  });
}

TEST_F(Golden, CrossEntropy) {
  each("cross_entropy", {"logits"}, [&](const X& x) -> Results {
    const auto result =
        cross_entropy(x[0], get("targets"), {.ignore_index = integer("ignore_index")});
    return {{"sum", result.sum}, {"count", result.count}};
  });
}

TEST_F(Golden, Embedding) {
  each("embedding", {"weight"}, [&](const X& x) -> Results {
    return {{"y", embedding(x[0], get("indices"))}};
  });
}

TEST_F(Golden, Gather) {
  each("gather", {"x"}, [&](const X& x) -> Results {
    return {{"y", gather(x[0], integer("dim"), get("index"))}};
  });
}

TEST_F(Golden, ScatterAdd) {
  each("scatter_add", {"x", "src"}, [&](const X& x) -> Results {
    return {{"y", scatter_add(x[0], integer("dim"), get("index"), x[1])}};
  });
}

TEST_F(Golden, Scatter) {
  open("scatter");
  for (const auto& name : cases_) {
    case_ = name;
    const bool value = !has("src");
    const std::vector<std::string> inputs{"x", "src"};
    run({inputs.begin(), inputs.end() - (value ? 1 : 0)}, [&](const X& x) -> Results {
      const Tensor index = get("index");
      return {{"y", value ? scatter(x[0], integer("dim"), index, number("value"))
                          : scatter(x[0], integer("dim"), index, x[1])}};
    });
  }
}

TEST_F(Golden, ScatterReduce) {
  using R = ScatterReduction;
  const std::map<std::string, R> reductions{
      {"sum", R::sum}, {"prod", R::prod}, {"mean", R::mean}, {"amax", R::amax}, {"amin", R::amin}};
  each("scatter_reduce", {"x", "src"}, [&](const X& x) -> Results {
    return {{"y", scatter_reduce(x[0], 1, get("index"), x[1], reductions.at(attribute("reduce")),
                                 flag("include_self"))}};
  });
}

TEST_F(Golden, LogSumExp) {
  each("logsumexp", {"x"}, [&](const X& x) -> Results {
    return {{"y", logsumexp(x[0], {integer("dim")})}};
  });
}

TEST_F(Golden, Max) {
  each("max", {"x"}, [&](const X& x) -> Results {
    const auto [y, indices] = max(x[0], integer("dim"));
    return {{"y", y}, {"indices", indices}};
  });
}

TEST_F(Golden, TopK) {
  each("topk", {"x"}, [&](const X& x) -> Results {
    const auto [y, indices] = topk(x[0], integer("k"), integer("dim"), flag("largest"));
    return {{"y", y}, {"indices", indices}};
  });
}

TEST_F(Golden, MatMul) {
  each("matmul", {"a", "b"}, [&](const X& x) -> Results {
    return {{"y", matmul(x[0], x[1], flag("transpose_a"), flag("transpose_b"))}};
  });
}

TEST_F(Golden, Pointwise) {
  const std::map<std::string, std::function<Tensor(const Tensor&)>> functions{
      {"silu", silu},
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"gelu_tanh", [](const Tensor& x) { return gelu(x, true); }},
      {"tanh", [](const Tensor& x) { return tanh(x); }},
      {"exp", [](const Tensor& x) { return exp(x); }},
      {"sin", [](const Tensor& x) { return sin(x); }},
      {"cos", [](const Tensor& x) { return cos(x); }},
      {"log", [](const Tensor& x) { return log(x); }},
      {"rsqrt", rsqrt}};
  each("pointwise", {"x"}, [&](const X& x) -> Results {
    return {{"y", functions.at(case_)(x[0])}};
  });
}

TEST_F(Golden, Cat) {
  each("cat", {"x0", "x1", "x2"}, [&](const X& x) -> Results {
    return {{"y", cat(x, integer("dim"))}};
  });
}

TEST_F(Golden, AdamW) {
  open("adamw");
  case_ = "start";
  const AdamWOptions options{.lr = number("lr"),
                             .beta1 = number("beta1"),
                             .beta2 = number("beta2"),
                             .eps = number("eps"),
                             .weight_decay = number("weight_decay")};
  const std::vector<Tensor> p{get("p0"), get("p1")};
  const std::vector<Tensor> first{zeros_like(p[0]), zeros_like(p[1])},
      second{zeros_like(p[0]), zeros_like(p[1])};
  for (int step = 1; step <= 5; ++step) {
    case_ = "step_" + std::to_string(step);
    adamw_(p, {get("g0"), get("g1")}, first, second, step, options);
    expect_close(p[0], get("p0"), case_ + "/p0");
    expect_close(p[1], get("p1"), case_ + "/p1");
  }
  case_ = "final";
  for (size_t i = 0; i < 2; ++i) {
    expect_close(first[i], get("exp_avg" + std::to_string(i)), "exp_avg");
    expect_close(second[i], get("exp_avg_sq" + std::to_string(i)), "exp_avg_sq");
  }
}

TEST_F(Golden, ClipGradNorm) {
  open("clip_grad_norm");
  for (const auto& name : cases_) {
    case_ = name;
    std::vector<Tensor> parameters;
    for (const char* g : {"g0", "g1", "g2"}) {
      parameters.push_back(zeros_like(get(g)).set_requires_grad());
      parameters.back().set_grad(get(g));
    }
    const double norm = optim::clip_grad_norm_(parameters, number("max_norm")).item();
    EXPECT_NEAR(norm, get("norm").item(), 1e-6 * norm) << case_;
    for (size_t i = 0; i < parameters.size(); ++i)
      expect_close(parameters[i].grad(), get("c" + std::to_string(i)), case_);
  }
}

}  // namespace
}  // namespace tessera

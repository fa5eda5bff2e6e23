// SPDX-License-Identifier: Apache-2.0
// For tests of model families: what holds for every decoder, whatever its layers.
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/family.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/models/llama4/llama4.h"
#include "tessera/models/qwen3/qwen3.h"
#include "tessera/nn/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::test {

/// A Llama of some thousand parameters; vocabulary 50, 16 positions.
inline llama3::Config tiny_llama3(int64_t n_layers) {
  return {.dim = 32,
          .n_layers = n_layers,
          .n_heads = 4,
          .n_kv_heads = 2,
          .ffn_dim = 64,
          .vocab_size = 50,
          .max_seq_len = 16,
          .rope_theta = 10000,
          .norm_eps = 1e-5};
}

constexpr int64_t kMeshVocabulary = 131;
/// A decoder of two layers for tests on meshes, `llama3`, `llama3` with a `tied` head, `qwen3`,
/// `llama4` with a chunked layer and one with experts, or `gpt2` with dropout. Degrees of tensor
/// parallelism up to 8 divide the heads, but 3 and 8 divide neither vocabulary nor positions nor
/// the hidden size of Llama's feed-forward.
inline models::ModelConfig mesh_decoder(const std::string& family, DType dtype) {
  constexpr int64_t kPositions = 37;
  if (family == "gpt2") {
    return models::ModelConfig::of<gpt2::Model>("gpt2", "",
                                                {.dim = 48,
                                                 .n_layers = 2,
                                                 .n_heads = 24,
                                                 .vocab_size = kMeshVocabulary,
                                                 .max_seq_len = kPositions,
                                                 .embedding_dropout = 0.1,
                                                 .residual_dropout = 0.2,
                                                 .dtype = dtype});
  }
  if (family == "llama4") {
    return models::ModelConfig::of<llama4::Model>(
        "llama4", "",
        {.dim = 50,
         .n_layers = 2,
         .n_heads = 48,
         .n_kv_heads = 24,
         .head_dim = 2,
         .ffn_dim = 100,
         .moe = {.num_experts = 6, .top_k = 2, .moe_inter_dim = 20},
         .interleave_moe_layer_step = 2,
         .vocab_size = kMeshVocabulary,
         .max_seq_len = kPositions,
         .nope_layer_interval = 2,
         .attention_chunk_size = 4,
         .floor_scale = 3,
         .dtype = dtype});
  }
  if (family == "qwen3") {
    return models::ModelConfig::of<qwen3::Model>("qwen3", "",
                                                 {.dim = 50,
                                                  .n_layers = 2,
                                                  .n_heads = 48,
                                                  .n_kv_heads = 24,
                                                  .head_dim = 2,
                                                  .ffn_dim = 100,
                                                  .vocab_size = kMeshVocabulary,
                                                  .max_seq_len = kPositions,
                                                  .dtype = dtype});
  }
  return models::ModelConfig::of<llama3::Model>("llama3", "",
                                                {.dim = 96,
                                                 .n_layers = 2,
                                                 .n_heads = 48,
                                                 .n_kv_heads = 24,
                                                 .ffn_dim = 100,
                                                 .vocab_size = kMeshVocabulary,
                                                 .max_seq_len = kPositions,
                                                 .enable_weight_tying = family == "tied",
                                                 .dtype = dtype});
}

constexpr int64_t kSmallVocabulary = 23, kSmallDim = 24;
/// A decoder for tests whose numbers of ranks and sizes are their own: families as of mesh_decoder,
/// 8 positions, dropout in `gpt2` alone. The feed-forward of Llama divides by neither 2 nor 4.
inline models::ModelConfig small_decoder(const std::string& family, int64_t n_layers,
                                         DType dtype = DType::f32, double dropout = 0) {
  if (family == "gpt2") {
    return models::ModelConfig::of<gpt2::Model>("gpt2", "",
                                                {.dim = kSmallDim,
                                                 .n_layers = n_layers,
                                                 .n_heads = 4,
                                                 .vocab_size = kSmallVocabulary,
                                                 .max_seq_len = 8,
                                                 .embedding_dropout = dropout,
                                                 .residual_dropout = dropout,
                                                 .dtype = dtype});
  }
  return models::ModelConfig::of<llama3::Model>("llama3", "",
                                                {.dim = kSmallDim,
                                                 .n_layers = n_layers,
                                                 .n_heads = 4,
                                                 .n_kv_heads = 2,
                                                 .ffn_dim = 21,
                                                 .vocab_size = kSmallVocabulary,
                                                 .max_seq_len = 8,
                                                 .enable_weight_tying = family == "tied",
                                                 .dtype = dtype});
}

inline Tensor ids(const std::vector<double>& values, const Shape& shape) {
  return from_values(values, shape, DType::i64);
}
/// Two rows of four tokens, and targets of which one does not count.
inline Tensor two_rows() { return ids({1, 2, 3, 4, 9, 8, 7, 6}, {2, 4}); }
inline Tensor their_targets() { return ids({2, 3, 4, -100, 8, 7, 6, 5}, {2, 4}); }

inline std::vector<std::string> parameter_names(nn::Module& root) {
  std::vector<std::string> names;
  for (const auto& p : nn::named_parameters(root)) names.push_back(p.name);
  return names;
}

/// Root of the mean of squares.
inline double deviation(const Tensor& t) {
  return norm({t}).item() / std::sqrt(static_cast<double>(t.numel()));
}

/// Flavors have so many parameters, and give logits over `vocabulary`; nothing gets bytes.
template <class Model, class Flavor>
void expect_sizes(Flavor flavor, int64_t vocabulary,
                  std::initializer_list<std::pair<std::string_view, int64_t>> sizes) {
  for (const auto& [name, count] : sizes) {
    Model model(flavor(name));
    EXPECT_EQ(nn::parameter_count(model), count) << name;
    const NoGrad guard;
    const Tensor logits = model.forward(empty({1, 8}, DType::i64, kMeta));
    EXPECT_TRUE(logits.device().is_meta());
    EXPECT_EQ(logits.shape(), (Shape{1, 8, vocabulary})) << name;
  }
}

/// The loss without logits and its gradients are those of the logits; gives its mean.
template <class Model> double expect_loss_without_logits(const typename Model::Config& config) {
  const auto run = [&config](bool fused) {
    Model model(config);
    nn::initialize(model, 3);
    const Tensor tokens = two_rows(), targets = their_targets();
    models::Loss loss;
    if (fused) {
      loss = model.loss(tokens, targets, model.metadata(4));
    } else {
      const CrossEntropyResult made = cross_entropy(model.forward(tokens), targets);
      loss = {made.sum, made.count};
    }
    EXPECT_EQ(loss.count.item(), 7);
    backward(loss.sum);
    std::vector<double> values{loss.sum.item()};
    for (const Tensor& p : nn::parameters(model)) {
      for (double v : p.grad().values()) values.push_back(v);
    }
    return values;
  };
  const auto a = run(true), b = run(false);
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5 * (1 + std::abs(b[i]))) << i;
  return a[0] / 7;
}

/// Given in parts of `lengths` tokens, a row ends in the logits that it has as a whole.
inline void expect_cached_logits(const models::LanguageModel& model, const Tensor& tokens,
                                 models::Cache& cache, std::initializer_list<int64_t> lengths) {
  const NoGrad guard;
  const Tensor whole = model.forward(tokens);  // (B, T, V)
  int64_t at = 0;
  for (const int64_t length : lengths) {
    const Tensor last = model.next_logits(slice(tokens, 1, {at, at + length}), cache);  // (B, 1, V)
    at += length;
    const auto got = last.values(), want = slice(whole, 1, {at - 1, at}).values();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << at;
  }
}

/// A model in f64 computes in f64, and its gradients are the slopes of its loss.
inline void expect_gradients_of_differences(models::LanguageModel& model) {
  nn::initialize(model, 3);
  const Tensor tokens = two_rows(), targets = their_targets();
  const auto loss = [&] { return model.loss(tokens, targets, model.metadata(4)).sum; };
  const Tensor sum = loss();
  EXPECT_EQ(sum.dtype(), DType::f64);
  EXPECT_EQ(model.forward(tokens).dtype(), DType::f64);
  backward(sum);
  const NoGrad guard;
  for (const auto& p : nn::named_parameters(model)) {
    ASSERT_EQ(p.tensor.grad().dtype(), DType::f64) << p.name;
    double* x = p.tensor.detach().data<double>();
    for (int64_t i : {int64_t{1}, p.tensor.numel() / 2}) {
      const double at = x[i], h = 1e-5;
      x[i] = at + h;
      const double above = loss().item();
      x[i] = at - h;
      const double below = loss().item();
      x[i] = at;
      const double slope = (above - below) / (2 * h);
      EXPECT_NEAR(p.tensor.grad().values()[static_cast<size_t>(i)], slope,
                  1e-8 * (1 + std::abs(slope)))
          << p.name << ' ' << i;
    }
  }
}

/// What a model of vocabulary 50 and 16 positions must refuse.
inline void expect_typed_errors(models::LanguageModel& model) {
  nn::initialize(model, 0);
  EXPECT_THROW((void)model.metadata(17), ValueError);
  EXPECT_THROW((void)model.forward(ids({1, 2}, {2})), ShapeError);
  EXPECT_THROW((void)model.forward(ids({1, 50}, {1, 2})), IndexError);
  EXPECT_THROW((void)model.forward(from_values({1, 2}, {1, 2})), DTypeError);
}

}  // namespace tessera::test

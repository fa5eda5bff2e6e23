// SPDX-License-Identifier: Apache-2.0
// Generation whose texts are cut over ranks: the logits after a prompt and after each later token
// are those of one rank, in f64, and a rank keeps its share of the cache alone.
#include "tessera/nn/context/generation_cut.h"

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

namespace tessera::models {
namespace {

using nn::ContextMethod;
using nn::LoadBalancer;

struct Setting {
  std::string family;
  int cp = 1, tp = 1;
  ContextMethod method = ContextMethod::all_gather;
  LoadBalancer balancer = LoadBalancer::head_tail;
  int64_t rows = 1;
  std::vector<int64_t> lengths = {};  // of the prompt and of later steps
  [[nodiscard]] std::string text() const {
    std::string all = concat(family, ", cp ", cp, ", tp ", tp, ", ", method, ", ", balancer, ", ",
                             rows, " rows of");
    for (const int64_t n : lengths) all += concat(' ', n);
    return all;
  }
  [[nodiscard]] int64_t tokens() const {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }
};

Tensor tokens_of(const Setting& s) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < s.rows * s.tokens(); ++i)
    ids.push_back((31 * i + i * i / 3) % test::kMeshVocabulary);
  return from_span(ids, {s.rows, s.tokens()});
}

// The logits after each step.
using Logits = std::vector<std::vector<double>>;
Logits steps(const Setting& s, const LanguageModel& model, Cache& cache,
             const std::function<Tensor(const Tensor&)>& placed) {
  Logits all;
  int64_t at = 0;
  for (const int64_t n : s.lengths) {
    const Tensor ids = contiguous(slice(tokens_of(s), 1, {at, at + n}));
    const Tensor next = model.next_logits(placed(ids), cache);
    all.push_back((next.is_distributed() ? full_tensor(next) : next).values());
    at += n;
  }
  return all;
}

Logits on_one_rank(const Setting& s) {
  const Session session({.threads = 1});
  const auto model = test::mesh_decoder(s.family, DType::f64).make();
  nn::initialize(*model, 5);
  const NoGrad guard;
  const nn::EvalMode evaluating(*model);
  Cache cache = model->make_cache(s.tokens());
  return steps(s, *model, cache, [](const Tensor& x) { return x; });
}

void expect_one_rank(const Setting& s) {
  SCOPED_TRACE(s.text());
  const Logits want = on_one_rank(s);
  test::on_ranks(s.cp * s.tp, [&](World&) {
    Mesh mesh = Mesh::make({{"cp", s.cp}, {"tp", s.tp}});
    nn::ContextParallelOptions options{.method = s.method, .balancer = s.balancer};
    if (s.method == ContextMethod::ring_ulysses) {
      options.axes = {"ring", "heads"};
      mesh = mesh.unflatten("cp", {{"ring", s.cp / 2}, {"heads", 2}});
    }
    const auto model = test::mesh_decoder(s.family, DType::f64).make();
    if (s.tp > 1) nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan({}));
    fully_shard(*model, mesh, {options.axes});
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    const NoGrad guard;
    const nn::EvalMode evaluating(*model);
    Cache cache = model->make_cache(s.tokens());
    cache.cut.emplace(options);
    const Logits got = steps(
        s, *model, cache, [&](const Tensor& x) { return distribute(x, Layout::replicated(mesh)); });
    for (size_t i = 0; i < want.size(); ++i) {
      for (size_t j = 0; j < want[i].size(); ++j)
        ASSERT_NEAR(got[i][j], want[i][j], 1e-10) << "step " << i << ", element " << j;
    }
    // A part of the prompt, rounded up, and of the later tokens.
    const int64_t most =
        (s.lengths[0] + s.cp - 1) / s.cp + (s.tokens() - s.lengths[0] + s.cp - 1) / s.cp;
    for (const nn::KvCache& layer : cache.layers) {
      EXPECT_EQ(layer.length, s.tokens());
      EXPECT_LE(layer.k.size(1), most);
    }
  });
}

TEST(GenerationCut, LogitsAreThoseOfOneRank) {
  const ContextMethod methods[] = {ContextMethod::all_gather, ContextMethod::ring,
                                   ContextMethod::ulysses, ContextMethod::ring_ulysses};
  const LoadBalancer balancers[] = {LoadBalancer::none, LoadBalancer::head_tail,
                                    LoadBalancer::document_head_tail, LoadBalancer::round_robin};
  const std::vector<int64_t> lengths[] = {
      {1, 1, 1, 1, 1}, {2, 3, 1, 1}, {3, 1, 1}, {13, 1, 1, 5, 1}, {29, 1, 1, 1, 4}};
  // Every family meets every method on three and four ranks, the rest takes turns.
  size_t turn = 0;
  for (const std::string family : {"llama3", "qwen3", "gpt2", "llama4"}) {
    for (const ContextMethod method : methods) {
      const bool two_axes = method == ContextMethod::ring_ulysses;
      for (const int cp :
           test::long_form() ? std::vector{1, 2, 3, 4} : std::vector{two_axes ? 4 : 3}) {
        if (two_axes && cp != 4) continue;
        for (size_t i = 0; i < (test::long_form() ? std::size(lengths) : 1); ++i, ++turn) {
          expect_one_rank({.family = family,
                           .cp = cp,
                           .method = method,
                           .balancer = balancers[turn % 4],
                           .rows = 1 + static_cast<int64_t>(turn % 3),
                           .lengths = lengths[turn % 5]});
        }
      }
    }
    expect_one_rank({family, 2, 2, methods[turn % 3], LoadBalancer::head_tail, 2, {1, 1, 1, 2}});
    expect_one_rank({family, 2, 2, methods[(turn + 1) % 3], balancers[turn % 4], 1, {11, 1, 3}});
    ++turn;
  }
}

// One collective of a layer for each token, of one query: its bytes do not grow with the text.
TEST(GenerationCut, ATokenSendsWhatAttentionFindsAlone) {
  test::on_ranks(3, [](World&) {
    const Mesh mesh = Mesh::make({{"cp", 3}});
    const auto model = test::mesh_decoder("llama3", DType::f32).make();
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    const NoGrad guard;
    Cache cache = model->make_cache(30);
    cache.cut.emplace(nn::ContextParallelOptions{});
    const auto next = [&](int64_t n) {
      (void)model->next_logits(distribute(full({2, n}, 7, DType::i64), Layout::replicated(mesh)),
                               cache);
    };
    next(20);
    const CommTrace trace;
    next(1);
    EXPECT_EQ(trace.count(), 2) << trace;
    // 3 ranks' 2 rows of 48 heads of 2 and a log-sum-exp, in 2 layers.
    EXPECT_EQ(trace.bytes("all_gather"), 2 * 3 * 2 * 48 * 3 * 4) << trace;
  });
}

// A forward that fails is as if it had not been: the next prompt may have another length.
TEST(GenerationCut, WhatDoesNotFitIsRefusedAndNothingIsLost) {
  test::on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"cp", 2}});
    const auto model = test::mesh_decoder("llama3", DType::f64).make();
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    const auto ids = [&](int64_t n) {
      return distribute(full({1, n}, 7, DType::i64), Layout::replicated(mesh));
    };
    Cache cache = model->make_cache(9);
    cache.cut.emplace(nn::ContextParallelOptions{});
    EXPECT_NE(test::error_of([&] { (void)model->next_logits(ids(4), cache); }).find("NoGrad"),
              std::string::npos);
    const NoGrad guard;
    EXPECT_NE(test::error_of([&] {
                (void)model->next_logits(ids(10), cache);
              }).find("the cache holds 0 of 9 tokens, and 10 more do not fit"),
              std::string::npos);
    (void)model->next_logits(ids(7), cache);
    EXPECT_NE(test::error_of([&] {
                (void)model->next_logits(ids(3), cache);
              }).find("the cache holds 7 of 9 tokens, and 3 more do not fit"),
              std::string::npos);
    (void)model->next_logits(ids(2), cache);
    EXPECT_EQ(cache.layers[0].length, 9);

    nn::GenerationCut cut{nn::ContextParallelOptions{}};
    EXPECT_NE(test::error_of([&] { (void)cut.next(ids(1), 4, {}); }).find("begin with the prompt"),
              std::string::npos);
    const nn::AttentionMetadata packed{.documents = zeros({1, 4}, DType::i64)};
    EXPECT_NE(test::error_of([&] {
                (void)cut.next(ids(4), 0, std::span(&packed, 1));
              }).find("a cache stores no documents"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Whole decoders whose sequences are cut, with fully_shard over the same ranks and tensor
// parallelism beside it: loss and every gradient of one rank, in f64, with and without activation
// checkpointing.
#include "tessera/nn/context/context_parallel.h"

#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/tests/support/decoders.h"
#include "tessera/tests/support/gradients.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera::models {
namespace {

using Mode = nn::ActivationCheckpointConfig::Mode;
using nn::ContextMethod;
using nn::LoadBalancer;

constexpr int64_t kRows = 3, kLength = 29;

struct Setting {
  std::string family = "llama3";
  int dp = 1, cp = 1, tp = 1;
  nn::ContextParallelOptions options = {};
  bool packed = true;
  Mode checkpoint = Mode::none;
  [[nodiscard]] std::string text() const {
    return concat(family, ", dp ", dp, ", cp ", cp, ", tp ", tp, ", ", options.method, ", ",
                  options.balancer, packed ? ", packed" : "", ", checkpoint mode ",
                  static_cast<int>(checkpoint));
  }
};

struct Result {
  double loss = 0, count = 0;
  test::Values gradients;
};

// (B, T) of f(row, column).
Tensor made(int64_t (*f)(int64_t, int64_t)) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < kRows * kLength; ++i) all.push_back(f(i / kLength, i % kLength));
  return from_span(all, {kRows, kLength});
}
// A document of each row starts every 7 + 5 * row tokens.
int64_t document(int64_t row, int64_t column) { return column / (7 + 5 * row); }
int64_t place(int64_t row, int64_t column) { return column % (7 + 5 * row); }
int64_t token(int64_t row, int64_t column) {
  return (row * 31 + column * column + 3 * column) % test::kMeshVocabulary;
}
int64_t target(int64_t row, int64_t column) {
  return column % 6 == 4 ? -100 : token(row, column + 1);
}

Result run(const Setting& s) {
  Result result;
  test::on_ranks(s.dp * s.cp * s.tp, [&](World& world) {
    Mesh mesh = Mesh::make({{"dp", s.dp}, {"cp", s.cp}, {"tp", s.tp}});
    const bool two = s.options.axes.size() == 2;
    if (two) mesh = mesh.unflatten("cp", {{s.options.axes[0], s.cp / 2}, {s.options.axes[1], 2}});
    const auto model = test::mesh_decoder(s.family, DType::f64).make();
    if (s.tp > 1) nn::tensor_parallel(*model, mesh, model->tensor_parallel_plan({}));
    nn::apply_activation_checkpoint(model->units(), {.mode = s.checkpoint});
    std::vector<std::string> data = {"dp"};
    data.insert(data.end(), s.options.axes.begin(), s.options.axes.end());
    fully_shard(*model, mesh, {data});
    nn::initialize(*model, 5, nn::laid_out(*model, mesh));
    Context::current().call_keys.set_seed(3);

    const Layout rows = Layout::replicated(mesh).with("dp", Shard(0));
    Metadata metadata = model->metadata(kLength);
    if (s.packed)
      metadata =
          metadata.with_documents(distribute(made(place), rows), distribute(made(document), rows));
    const nn::SequenceCut cut(s.options, rows, {kRows, kLength}, metadata.of());
    for (nn::AttentionMetadata& kind : metadata.kinds) kind = cut.metadata(kind);
    const Loss loss = model->loss(cut.cut(distribute(made(token), rows)),
                                  cut.cut(distribute(made(target), rows)), metadata);
    backward(loss.sum);
    Result here{full_tensor(loss.sum).item(), full_tensor(loss.count).item(), {}};
    for (const auto& p : nn::named_parameters(*model)) {
      EXPECT_EQ(layout_of(p.tensor.grad()), layout_of(p.tensor)) << p.name;
      here.gradients[p.name] = full_tensor(p.tensor.grad()).values();
    }
    if (world.rank() == 0) result = std::move(here);
  });
  return result;
}

TEST(ContextParallel, DecodersHaveLossAndGradientsOfOneRank) {
  const auto options = [](ContextMethod method, LoadBalancer balancer) {
    nn::ContextParallelOptions o{.method = method, .balancer = balancer};
    if (method == ContextMethod::ring_ulysses) o.axes = {"ring", "heads"};
    return o;
  };
  for (const std::string family : {"llama3", "qwen3", "gpt2"}) {
    for (const bool packed : {false, true}) {
      // One rank without anything cut.
      Result want;
      {
        const Session session;
        const auto model = test::mesh_decoder(family, DType::f64).make();
        nn::initialize(*model, 5);
        Context::current().call_keys.set_seed(3);
        Metadata metadata = model->metadata(kLength);
        if (packed) metadata = metadata.with_documents(made(place), made(document));
        const Loss loss = model->loss(made(token), made(target), metadata);
        backward(loss.sum);
        want = {loss.sum.item(), loss.count.item(), {}};
        for (const auto& p : nn::named_parameters(*model))
          want.gradients[p.name] = p.tensor.grad().values();
      }
      double worst = 0;
      for (Setting s :
           {Setting{"", 2, 2, 1, options(ContextMethod::all_gather, LoadBalancer::head_tail)},
            {"", 1, 4, 1, options(ContextMethod::ring, LoadBalancer::round_robin)},
            {"", 1, 3, 1, options(ContextMethod::ulysses, LoadBalancer::none)},
            {"", 1, 4, 1, options(ContextMethod::ring_ulysses, LoadBalancer::head_tail)},
            {"", 1, 2, 2, options(ContextMethod::ring, LoadBalancer::head_tail)},
            {"", 1, 2, 2, options(ContextMethod::ulysses, LoadBalancer::head_tail)},
            {"", 1, 1, 1, options(ContextMethod::ring, LoadBalancer::head_tail)}}) {
        s.family = family, s.packed = packed;
        // Dropout has the masks of one rank where tokens have their places.
        if (family == "gpt2") s.options.balancer = LoadBalancer::none;
        if (packed && s.options.balancer == LoadBalancer::head_tail)
          s.options.balancer = LoadBalancer::document_head_tail;
        if (packed) s.checkpoint = s.tp > 1 ? Mode::selective : Mode::full;
        const Result got = run(s);
        EXPECT_NEAR(got.loss, want.loss, 1e-10 * want.loss) << s.text();
        EXPECT_EQ(got.count, want.count) << s.text();
        worst = std::max(
            worst, test::expect_same_gradients(got.gradients, want.gradients, 1e-10, s.text()));
      }
      std::cout << family << (packed ? ", packed" : "") << ": worst gradient " << worst << '\n';
    }
  }
}

}  // namespace
}  // namespace tessera::models

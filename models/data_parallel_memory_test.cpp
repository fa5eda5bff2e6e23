// SPDX-License-Identifier: Apache-2.0
// The memory of one rank under fully_shard, by kind, against formulas of shapes alone: what the
// allocator counts after initialisation, inside forward, at the peak of backward and after a step.
#include "tessera/core/context.h"
#include "tessera/dist/dtensor.h"
#include "tessera/models/data_parallel.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/memory_formula.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

namespace tessera::models {
namespace {

using test::MemoryFormula, test::MemorySizes;

void expect_within(int64_t counted, int64_t formula, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(formula),
              0.05 * static_cast<double>(formula))
      << what;
}

void check(const MemorySizes& s) {
  const MemoryFormula f(s);
  test::on_ranks(s.ranks, [&](World& world) {
    Context& context = world.session().context();
    const Ref<Allocator>& memory = context.allocator(kCpu);
    const auto live = [&] { return memory->stats().live; };
    const Mesh mesh = Mesh::make({{"dp_shard", s.ranks}});
    llama3::Model model({.dim = s.dim,
                         .n_layers = s.layers,
                         .n_heads = s.heads,
                         .n_kv_heads = s.heads,
                         .ffn_dim = s.hidden,
                         .vocab_size = s.vocabulary,
                         .max_seq_len = s.length});
    const Tensor ids = full({1, s.length}, 3, DType::i64);
    const Tensor tokens = make_distributed(ids, {s.ranks, s.length}, Layout::of(mesh, {Shard(0)}));
    fully_shard(model, mesh, {{"dp_shard"}, {}});
    const int64_t empty_rank = live();
    nn::initialize(model, 5, nn::laid_out(model, mesh));
    expect_within(live() - empty_rank, f.parameters(), "parameters");

    const Metadata metadata = model.metadata(s.length);
    const int64_t ready = live();
    const std::vector<Tensor> parameters = nn::parameters(model);
    optim::AdamW optimizer(parameters, {.lr = 1e-3});
    const auto end_reductions = [&] {
      for (const Tensor& p : parameters) {
        if (const Tensor g = p.grad(); g.defined()) (void)local(g).data<float>();
      }
    };
    // The first step makes the states, and tells the order of the units.
    backward(model.loss(tokens, tokens, metadata).sum);
    optimizer.step();
    optimizer.zero_grad();
    const int64_t held = live();
    expect_within(held - ready, 2 * f.parameters(), "optimizer states");

    // In the middle block, between attention and its feed-forward: it and the next are gathered.
    const auto middle = static_cast<size_t>(s.layers / 2);
    const auto& block = dynamic_cast<const TransformerBlock&>(*model.units()[middle]);
    int64_t inside = 0;
    auto hook = const_cast<TransformerBlock&>(block).feed_forward->register_forward_pre_hook(
        [&](const nn::Module&, TensorList&) { inside = live(); });
    const Tensor loss = model.loss(tokens, tokens, metadata).sum;
    hook.remove();
    expect_within(inside - held - static_cast<int64_t>(middle) * f.of_block, 2 * f.block,
                  "gathered");
    // The last unit stays gathered, since backward needs it first.
    expect_within(live() - held - f.last, f.activations(), "activations");

    // Every op waits for the reductions before it, so that the count does not depend on time.
    context.op_hook = [&](const OpRow&, const void*, Tensors, Tensors) { end_reductions(); };
    memory->reset_peak();
    backward(loss);
    context.op_hook = nullptr;
    end_reductions();
    expect_within(memory->stats().peak - held, f.backward(), "peak of backward");
    expect_within(live() - held, f.parameters(), "gradients");
  });
}

TEST(DataParallelMemory, IsThatOfTheFormulaByKind) {
  check({.ranks = 4,
         .layers = 4,
         .dim = 256,
         .heads = 8,
         .hidden = 512,
         .vocabulary = 256,
         .length = 16});
}

// About 3 GiB for all ranks together.
TEST(DataParallelMemory, IsThatOfTheFormulaAtFullSize) {
  if (!test::long_form()) return;
  check({.ranks = 8,
         .layers = 8,
         .dim = 1024,
         .heads = 16,
         .hidden = 2816,
         .vocabulary = 1024,
         .length = 64});
}

}  // namespace
}  // namespace tessera::models

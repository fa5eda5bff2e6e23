// SPDX-License-Identifier: Apache-2.0
// A model of one's own under fully_shard and tensor_parallel: four ranks share its batch and its
// parameters over one mesh axis and its matmuls over another, and train as one rank does.
#include <cmath>
#include <iostream>
#include <tessera/tessera.h>

using namespace tessera;

namespace {

struct Block final : nn::Layer<Block> {
  void visit(nn::Visitor& v) override {
    v.child("up", up);
    v.child("down", down);
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return x + down(tanh(up(x))); }
  nn::Linear up{16, 64, nn::Init::normal(0.2)}, down{64, 16, nn::Init::normal(0.1)};
};

struct Net final : nn::Layer<Net> {
  void visit(nn::Visitor& v) override {
    v.child("first", first);
    v.child("second", second);
    v.child("head", head);
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return head(second(first(x))); }
  Block first, second;
  nn::Linear head{16, 1, nn::Init::normal(0.2)};
};

// The last of 50 losses.
double last_loss(int shards, int parts) {
  double last = 0;
  run_ranks(shards * parts, [&](World& world) {
    const Mesh mesh = Mesh::make({{"dp", shards}, {"tp", parts}});
    Net net;
    nn::TensorParallelPlan plan;
    plan.add({"first", "second"}, nn::whole_inputs())
        .add({"first.up", "second.up"}, nn::column_parallel())
        .add({"first.down", "second.down"}, nn::row_parallel(Replicate()));
    nn::tensor_parallel(net, mesh, plan);
    // Children before their parent, which takes what is left.
    for (nn::Module* unit : {static_cast<nn::Module*>(&net.first),
                             static_cast<nn::Module*>(&net.second), static_cast<nn::Module*>(&net)})
      nn::fully_shard(*unit, mesh, {.shard = {"dp"}});
    nn::initialize(net, /*seed=*/2, nn::laid_out(net, mesh));  // each rank makes its own shards

    const Layout by_rows = Layout::of(mesh, {Shard(0), Replicate()});
    const Tensor x = normal({64, 16}, {.seed = 1}, 0, 1, DType::f32, by_rows);
    const Tensor target = sin(sum(x, {1}, true));
    optim::AdamW optimizer(nn::parameters(net), {.lr = 3e-3});
    for (int step = 0; step < 50; ++step) {
      const Tensor loss = mse_loss(net(x), target);
      backward(loss);
      optim::clip_grad_norm_(nn::parameters(net), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      const double value = full_tensor(loss).item();
      if (world.rank() == 0) last = value;
    }
    if (world.rank() == 0 && world.size() > 1) std::cout << describe(net.first.up.weight) << '\n';
  });
  return last;
}

}  // namespace

int main() {
  const double alone = last_loss(1, 1), together = last_loss(2, 2);
  std::cout << "loss on one rank " << alone << ", on 2 x 2 ranks " << together << '\n';
  return alone < 0.1 && std::abs(together - alone) < 1e-3 * alone ? 0 : 1;
}

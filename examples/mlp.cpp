// SPDX-License-Identifier: Apache-2.0
// The README's program: a small network fits sin(x1 + ... + x8) with AdamW.
#include <iostream>
#include <tessera/tessera.h>
using namespace tessera;

int main() {
  const Session session;  // a rank's context and its tape
  const Tensor x = normal({256, 8}, {.seed = 1}), target = sin(sum(x, {1}, true));
  const auto init = nn::Init::normal(0.3);
  nn::Sequential net(nn::Linear(8, 32, init), nn::Tanh(), nn::Linear(32, 1, init));
  nn::initialize(net, /*seed=*/2);
  optim::AdamW optimizer(nn::parameters(net), {.lr = 1e-2});

  Tensor loss;
  for (int step = 1; step <= 300; ++step) {
    backward(loss = mse_loss(net(x), target));
    optimizer.step();
    optimizer.zero_grad();
    if (step % 100 == 0) std::cout << "step " << step << "  loss " << loss.item() << '\n';
  }
  return loss.item() < 0.1 ? 0 : 1;
}

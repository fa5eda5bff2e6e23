// SPDX-License-Identifier: Apache-2.0
// Fits y = 3 x - 1 from noisy points by gradient descent.
#include <cmath>
#include <iostream>
#include <tessera/tessera.h>

int main() {
  using namespace tessera;
  const Session session;
  const Tensor x = uniform({200}, {.seed = 1}, -1, 1);
  const Tensor y = 3 * x - 1 + normal({200}, {.seed = 2}, 0, 0.05);

  Tensor slope = tensor(0).set_requires_grad(), offset = tensor(0).set_requires_grad();
  optim::SGD optimizer({slope, offset}, {.lr = 0.5});
  for (int step = 0; step < 100; ++step) {
    const Tensor loss = mse_loss(x * slope + offset, y);
    backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (step % 20 == 0) std::cout << "step " << step << "  loss " << loss.item() << '\n';
  }
  std::cout << "y = " << slope.item() << " x + " << offset.item() << '\n';
  return std::abs(slope.item() - 3) < 0.05 && std::abs(offset.item() + 1) < 0.05 ? 0 : 1;
}

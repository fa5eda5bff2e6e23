// SPDX-License-Identifier: Apache-2.0
// Fits y = a x + b to eight points by gradient descent: tensors, gradients, an update.
#include <cmath>
#include <iostream>

#include "tessera/tessera.h"

using tessera::Tensor;

int main() {
  const tessera::Session session;
  const Tensor x = tessera::tensor({-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2});  // (8)
  const Tensor y = x * 3.0 + 0.5;                                          // (8)

  Tensor a = tessera::tensor(0), b = tessera::tensor(0);
  for (int step = 0; step < 100; ++step) {
    a.set_requires_grad();
    b.set_requires_grad();
    const Tensor error = a * x + b - y;  // (8)
    const Tensor loss = tessera::mean(error * error);
    const std::vector<Tensor> gradients = tessera::grad({loss}, {a, b});
    a = a.detach() - gradients[0] * 0.1;
    b = b.detach() - gradients[1] * 0.1;
    if (step % 20 == 0) std::cout << "step " << step << "  loss " << loss.item() << "\n";
  }
  std::cout << "y = " << a.item() << " x + " << b.item() << "\n";
  return std::abs(a.item() - 3) < 1e-3 && std::abs(b.item() - 0.5) < 1e-3 ? 0 : 1;
}

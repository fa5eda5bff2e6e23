// SPDX-License-Identifier: Apache-2.0
// Runs the op and its gradient, and checks both against what is known.
#include "squared_relu.h"

#include <iostream>

int main() {
  const tessera::Session session;
  tessera::Tensor x = tessera::tensor({-1, 0, 1, 2});
  x.set_requires_grad();
  const tessera::Tensor y = own::squared_relu(x);
  tessera::backward(tessera::sum(y));
  std::cout << y << "\n" << x.grad() << "\n";
  const bool right = y.values() == std::vector<double>{0, 0, 1, 4} &&
                     x.grad().values() == std::vector<double>{0, 0, 2, 4};
  return right ? 0 : 1;
}

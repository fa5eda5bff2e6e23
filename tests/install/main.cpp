// SPDX-License-Identifier: Apache-2.0
// What the installed library must do for a user: run ops, differentiate, throw errors that can be
// caught.
#include <iostream>
#include <tessera/tessera.h>

int main() {
  const tessera::Session session;
  tessera::Tensor x = tessera::tensor({{1, 2}, {3, 4}});
  x.set_requires_grad();
  tessera::backward(tessera::sum(x * x));
  std::cout << x.grad() << "\n";
  if (x.grad().values() != std::vector<double>{2, 4, 6, 8}) return 1;
  try {
    (void)(x + tessera::tensor({1, 2, 3}));
  } catch (const tessera::ShapeError& error) {
    std::cout << error.what() << "\n";
    return 0;
  }
  return 2;
}

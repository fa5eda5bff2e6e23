// SPDX-License-Identifier: Apache-2.0
// Runs the op and its gradient, and puts the op through the laws and their mutation run.
#include "tessera/laws/judge.h"

#include "squared_relu.h"

#include <iostream>

int main(int argc, char** argv) {
  const tessera::Session session;
  tessera::Tensor x = tessera::tensor({-1, 0, 1, 2});
  x.set_requires_grad();
  const tessera::Tensor y = own::squared_relu(x);
  tessera::backward(tessera::sum(y));
  std::cout << y << "\n" << x.grad() << "\n";
  const tessera::OpRow* const rows[] = {&tessera::RowOf<own::op::SquaredRelu>::row};
  return tessera::laws::judge_main(rows, argc, argv);
}

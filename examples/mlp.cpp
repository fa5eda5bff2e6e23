// SPDX-License-Identifier: Apache-2.0
// The README's program: a small network fits sin(x1 + ... + x8) with AdamW.
#include "tessera/tessera.h"

#include <iostream>
using namespace tessera;

int main() {
  const Session session;  // a rank's context and its tape
  const Tensor x = normal({256, 8}, {.seed = 1}), target = sin(sum(x, {1}, true));
  Tensor w1 = normal({32, 8}, {.seed = 2}, 0, 0.3).set_requires_grad();
  Tensor w2 = normal({1, 32}, {.seed = 3}, 0, 0.3).set_requires_grad();
  std::vector<Tensor> parameters{w1, w2}, first, second;
  for (const Tensor& p : parameters)
    first.push_back(zeros_like(p)), second.push_back(zeros_like(p));

  double last = 0;
  for (int64_t step = 1; step <= 300; ++step) {
    const Tensor gap = linear(tanh(linear(x, w1)), w2) - target, loss = mean(gap * gap);
    backward(loss);
    adamw_(parameters, {w1.grad(), w2.grad()}, first, second, step, {.lr = 1e-2});
    for (Tensor& p : parameters) p.set_grad({});
    last = loss.item();
    if (step % 100 == 0) std::cout << "step " << step << "  loss " << last << '\n';
  }
  return last < 0.1 ? 0 : 1;
}

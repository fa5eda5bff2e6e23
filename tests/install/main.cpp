// SPDX-License-Identifier: Apache-2.0
// What the installed library must do for a user: run ops, differentiate, throw errors that can be
// caught, run ranks.
#include <iostream>
#include <tessera/tessera.h>

namespace {

// The squares of 0..4, summed over three ranks.
bool sums_over_ranks() {
  bool right = false;
  tessera::run_ranks(3, [&](tessera::World& world) {
    const tessera::Mesh mesh = tessera::Mesh::make({{"dp", 3}});
    const tessera::Tensor x = tessera::distribute(tessera::tensor({0, 1, 2, 3, 4}),
                                                  tessera::Layout::of(mesh, {tessera::Shard(0)}));
    const double total = tessera::full_tensor(tessera::sum(x * x)).item();
    if (world.rank() == 0) right = total == 30;
  });
  return right;
}

}  // namespace

int main() {
  if (!sums_over_ranks()) return 3;
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

// SPDX-License-Identifier: Apache-2.0
// Data parallel training without a wrapper: weights are replicated, the batch is sharded over the
// mesh's axis, and layouts do the rest. The program for four ranks is that for one rank.
#include <iostream>
#include <tessera/tessera.h>

using namespace tessera;

int main() {
  run_ranks(4, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", 4}});
    const Layout everywhere = Layout::of(mesh, {Replicate()});
    const Layout by_rows = Layout::of(mesh, {Shard(0)});
    const Tensor x = normal({64, 8}, {1, 1}, 0, 1, DType::f32, by_rows);  // each rank 16 rows
    const Tensor truth = normal({8, 1}, {1, 2}, 0, 1, DType::f32, everywhere);
    const Tensor y = matmul(x, truth);
    Tensor w = full({8, 1}, 0, DType::f32, everywhere);
    w.set_requires_grad();
    double loss = 0;
    for (int step = 0; step < 100; ++step) {
      const Tensor error = matmul(x, w) - y;
      const Tensor mean_square = mean(error * error);  // partial: each rank has a part of the sum
      backward(mean_square);                           // so has w.grad(); no communication so far
      const NoGrad guard;
      w -= 0.3 * redistribute(w.grad(), everywhere);  // one all_reduce
      w.set_grad({});
      loss = full_tensor(mean_square).item();
    }
    if (world.rank() == 0) std::cout << describe(w) << "loss " << loss << '\n';
    if (loss > 1e-6) throw NumericError("the fit did not converge");
  });
}

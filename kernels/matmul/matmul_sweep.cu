// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's first algorithms for the products of a linear layer and of its gradients, at the
// widths of a 1B and a 124M model.
#include "tessera/kernels/matmul/cublas_product.cuh"
#include "tessera/kernels/sweep.h"

namespace tessera {
namespace {

struct Linear {
  const char* name;
  int64_t tokens, from, to;
};
constexpr Linear kLinears[] = {
    {"1B, q k v", 16384, 2048, 3072},  {"1B, attention's output", 16384, 2048, 2048},
    {"1B, gate", 16384, 2048, 8192},   {"1B, down", 16384, 8192, 2048},
    {"124M, q k v", 16384, 768, 2304}, {"124M, up", 16384, 768, 3072},
    {"124M, down", 16384, 3072, 768}};

// `operands` gives a, b and the product of a linear layer.
template <class F>
void add(Sweep& sweep, const char* name, bool transpose_a, bool transpose_b, F operands) {
  SweptKernel kernel{.name = name};
  for (const Linear& l : kLinears) {
    const std::array<Shape, 3> shapes = operands(l);
    kernel.cases.push_back({l.name,
                            {{shapes[0]}, {shapes[1]}},
                            {{shapes[2]}},
                            2.0 * static_cast<double>(l.tokens * l.from * l.to)});
  }
  for (int64_t i = 0; i < op::kMostAlgorithms; ++i) {
    const int64_t algorithm = i == 0 ? op::kAlgorithm : i <= op::kAlgorithm ? i - 1 : i;
    kernel.variants.push_back(
        {concat("algorithm ", algorithm), [=](Tensors in, Outputs out, Stream stream) {
           if (!op::run(op::Matrices(in[0], transpose_a), op::Matrices(in[1], transpose_b),
                        op::Matrices(out[0], false), 1, false, stream, algorithm))
             fail<DeviceError>("matmul", "cuBLASLt has fewer algorithms for this shape");
         }});
  }
  sweep.push_back(std::move(kernel));
}

}  // namespace

void sweep_matmul(Sweep& sweep) {
  using Shapes = std::array<Shape, 3>;
  add(sweep, "matmul, a linear layer", false, true, [](const Linear& l) {
    return Shapes{Shape{l.tokens, l.from}, Shape{l.to, l.from}, Shape{l.tokens, l.to}};
  });
  add(sweep, "matmul, the gradient of its input", false, false, [](const Linear& l) {
    return Shapes{Shape{l.tokens, l.to}, Shape{l.to, l.from}, Shape{l.tokens, l.from}};
  });
  add(sweep, "matmul, the gradient of its weight", true, false, [](const Linear& l) {
    return Shapes{Shape{l.tokens, l.to}, Shape{l.tokens, l.from}, Shape{l.to, l.from}};
  });
}

}  // namespace tessera

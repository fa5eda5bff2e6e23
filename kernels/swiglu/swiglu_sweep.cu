// SPDX-License-Identifier: Apache-2.0
// Variants of swiglu's kernels, at the widths of a 1B model and of 128 narrow experts.
#include "tessera/kernels/sweep.h"
#include "tessera/kernels/swiglu/swiglu.cuh"

namespace tessera {

void sweep_swiglu(Sweep& sweep) {
  using namespace op;
  const auto cases = [](size_t in, size_t out) {
    std::vector<SweepCase> all;
    for (const auto& [name, shape] : {std::pair{"1B, 4 x 4096", Shape{16384, 8192}},
                                      std::pair{"128 experts, 8 of 1024", Shape{8192, 256}}})
      all.push_back({name, {in, {shape}}, {out, {shape}}});
    return all;
  };
  sweep.push_back(
      {"swiglu", cases(2, 1),
       variants_of<2, 8, 16>(swiglu_cuda::kTuning, {128, 256, 512}, [](auto bytes, int threads) {
         return [threads](Tensors in, Outputs out, Stream stream) {
           swiglu_cuda::forward<bf16, decltype(bytes)::value>(Swiglu{}, in, out, stream, threads);
         };
       })});
  sweep.push_back(
      {"swiglu_backward", cases(3, 2),
       variants_of<2, 8, 16>(swiglu_cuda::kTuning, {128, 256, 512}, [](auto bytes, int threads) {
         return [threads](Tensors in, Outputs out, Stream stream) {
           swiglu_cuda::backward<bf16, decltype(bytes)::value>(SwigluBackward{}, in, out, stream,
                                                               threads);
         };
       })});
}

}  // namespace tessera

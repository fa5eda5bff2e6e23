// SPDX-License-Identifier: Apache-2.0
// Variants of rms_norm's kernels, at the widths of a 1B model and of a mixture of experts.
#include "tessera/kernels/rms_norm/rms_norm.cuh"
#include "tessera/kernels/sweep.h"

namespace tessera {

void sweep_rms_norm(Sweep& sweep) {
  using namespace op;
  using Operand = SweepCase::Operand;
  std::vector<SweepCase> forward, backward;
  for (const auto& [name, rows, d] :
       {std::tuple{"1B, 4 x 4096", int64_t{16384}, int64_t{2048}},
        std::tuple{"128 experts, 1 x 1024", int64_t{1024}, int64_t{1024}}}) {
    const Operand x{{rows, d}}, weight{{d}}, rstd{{rows}, DType::f32};
    forward.push_back({name, {x, weight}, {x, rstd}});
    backward.push_back({name, {x, weight, rstd, x}, {x, weight}});
  }
  sweep.push_back(
      {"rms_norm", forward,
       variants_of<2, 8, 16>(rms_norm_cuda::kTuning, {64, 128, 256}, [](auto bytes, int threads) {
         return [threads](Tensors in, Outputs out, Stream stream) {
           rms_norm_cuda::forward<bf16, decltype(bytes)::value>(in[0], {}, in[1], out[0], {},
                                                                out[1], 1e-5, 0, stream, threads);
         };
       })});
  sweep.push_back(
      {"rms_norm_backward", backward,
       variants_of<2, 8, 16>(rms_norm_cuda::kTuning, {128, 256, 512}, [](auto bytes, int threads) {
         return [threads](Tensors in, Outputs out, Stream stream) {
           rms_norm_cuda::backward<bf16, decltype(bytes)::value>(
               in[0], in[1], in[2], in[3], {}, out[0], out[1], 0, stream, threads);
         };
       })});
}

}  // namespace tessera

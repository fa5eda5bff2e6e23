// SPDX-License-Identifier: Apache-2.0
// CUDA adamw_: the step's constants are made on the device from the 0-dim inputs, so that a
// captured graph can be replayed with other values.
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/tensor_list.cuh"

namespace tessera::op {
namespace {

// The step's constants, rounded once to the parameters' type, as on the CPU.
template <class T> struct StepConstants {
  T decay, beta1, rest1, beta2, rest2, root_correction2, eps, step_size;
};

template <class T>
__global__ void make_constants(AdamW op, const double* lr, const double* step,
                               StepConstants<T>* c) {
  c->decay = static_cast<T>(1 - *lr * op.weight_decay);
  c->beta1 = static_cast<T>(op.beta1);
  c->rest1 = static_cast<T>(1 - op.beta1);
  c->beta2 = static_cast<T>(op.beta2);
  c->rest2 = static_cast<T>(1 - op.beta2);
  c->root_correction2 = static_cast<T>(std::sqrt(1 - ::pow(op.beta2, *step)));
  c->eps = static_cast<T>(op.eps);
  c->step_size = static_cast<T>(*lr / (1 - ::pow(op.beta1, *step)));
}

template <class T>
__global__ void step_kernel(ListBatch<4> batch, const StepConstants<T>* constants) {
  const StepConstants<T> c = *constants;
  const auto [tensor, begin, end] = batch.place();
  T* parameter = static_cast<T*>(batch.pointers[tensor][0]);
  const T* gradient = static_cast<const T*>(batch.pointers[tensor][1]);
  T* first = static_cast<T*>(batch.pointers[tensor][2]);
  T* second = static_cast<T*>(batch.pointers[tensor][3]);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const T g = gradient[i], p = parameter[i];
    const T m = c.beta1 * first[i] + c.rest1 * g;
    const T v = c.beta2 * second[i] + c.rest2 * (g * g);
    first[i] = m;
    second[i] = v;
    parameter[i] = p * c.decay - c.step_size * (m / (std::sqrt(v) / c.root_correction2 + c.eps));
  }
}

}  // namespace

void AdamW::cuda(Tensors in, Outputs, Stream stream) const {
  const size_t n = (in.size() - 2) / 4;
  WrittenRows written(stream);
  std::vector<ListEntry<4>> entries;
  entries.reserve(n);
  for (size_t i = 2; i < 2 + n; ++i) {
    entries.push_back({written.add(in[i]), row_major(in[n + i], stream), written.add(in[2 * n + i]),
                       written.add(in[3 * n + i])});
  }
  for (DType t : {DType::f64, DType::f32}) {
    dispatch<dtypes>(t, [&]<class T>() {
      Tensor bytes;
      for_each_batch<4>(entries, t, [&](const ListBatch<4>& batch, unsigned blocks) {
        if (!bytes.defined()) {
          bytes = empty({sizeof(StepConstants<T>)}, DType::u8, stream.device);
          make_constants<<<1, 1, 0, handle(stream)>>>(
              *this, in[0].data<double>(), in[1].data<double>(),
              static_cast<StepConstants<T>*>(bytes.raw_data()));
          check_launch(name);
        }
        step_kernel<<<blocks, kThreads, 0, handle(stream)>>>(
            batch, static_cast<const StepConstants<T>*>(bytes.raw_data()));
        check_launch(name);
      });
    });
  }
  written.done();
}

}  // namespace tessera::op

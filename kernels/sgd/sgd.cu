// SPDX-License-Identifier: Apache-2.0
// CUDA sgd_: what changes from step to step is read on the device, so that a captured graph can be
// replayed with other values. Entries of one combination of dtypes share launches.
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/sgd/sgd.h"
#include "tessera/kernels/shared/tensor_list.cuh"

namespace tessera::op {
namespace {

struct Settings {
  double momentum = 0, rest = 0, decay = 0, sign = 1;
  bool nesterov = false;
};

template <class P, class G>
__global__ void plain_kernel(ListBatch<2> batch, Settings s, const double* rate, const bool* skip,
                             const double* grad_factor) {
  if (*skip) return;
  using C = compute_t<P>;
  const auto [tensor, begin, end] = batch.place();
  const C lr = static_cast<C>(*rate), sign = static_cast<C>(s.sign),
          decay = static_cast<C>(s.decay),
          factor = grad_factor ? static_cast<C>(*grad_factor) : C(1);
  P* parameter = static_cast<P*>(batch.pointers[tensor][0]);
  const G* gradient = static_cast<const G*>(batch.pointers[tensor][1]);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const C p = static_cast<C>(parameter[i]);
    const C g = sign * static_cast<C>(scaled(gradient[i], factor)) + decay * p;
    parameter[i] = static_cast<P>(p - lr * g);
  }
}

template <class P, class G, class B>
__global__ void momentum_kernel(ListBatch<3> batch, Settings s, const double* rate,
                                const bool* skip, const double* step, const double* grad_factor) {
  if (*skip) return;
  using C = compute_t<P>;
  const auto [tensor, begin, end] = batch.place();
  const C lr = static_cast<C>(*rate), sign = static_cast<C>(s.sign),
          decay = static_cast<C>(s.decay), momentum = static_cast<C>(s.momentum),
          rest = static_cast<C>(s.rest), factor = grad_factor ? static_cast<C>(*grad_factor) : C(1);
  const bool first = *step == 1;
  P* parameter = static_cast<P*>(batch.pointers[tensor][0]);
  const G* gradient = static_cast<const G*>(batch.pointers[tensor][1]);
  B* buffer = static_cast<B*>(batch.pointers[tensor][2]);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const C p = static_cast<C>(parameter[i]);
    const C g = sign * static_cast<C>(scaled(gradient[i], factor)) + decay * p;
    const C b = first ? g : momentum * static_cast<C>(buffer[i]) + rest * g;
    buffer[i] = static_cast<B>(b);
    parameter[i] = static_cast<P>(p - lr * (s.nesterov ? g + momentum * b : b));
  }
}

// Null: left out.
const double* factor_in(const Tensor& grad_factor) {
  return grad_factor.defined() ? grad_factor.device_data<double>() : nullptr;
}

// Calls f.operator()<P, G>() for the dtypes that a parameter and its gradient may have.
template <class F> void each_pair(F&& f) {
  f.template operator()<double, double>();
  f.template operator()<float, float>();
  f.template operator()<bf16, bf16>();
  f.template operator()<bf16, float>();
}

template <int kRoles>
std::vector<ListEntry<kRoles>> with_dtypes(const std::vector<ListEntry<kRoles>>& entries,
                                           std::array<DType, kRoles> types) {
  std::vector<ListEntry<kRoles>> found;
  for (const ListEntry<kRoles>& e : entries) {
    bool same = true;
    for (size_t role = 0; role < kRoles; ++role) same = same && e[role].dtype() == types[role];
    if (same) found.push_back(e);
  }
  return found;
}

}  // namespace

void Sgd::cuda(Tensors in, Outputs, Stream stream) const {
  const Tensors lists = in.subspan(first_list);
  const size_t n = lists.size() / 2;
  const Settings settings{.decay = weight_decay, .sign = maximize ? -1.0 : 1.0};
  WrittenRows written(stream);
  std::vector<ListEntry<2>> entries;
  for (size_t i = 0; i < n; ++i)
    entries.push_back({written.add(lists[i]), row_major(lists[n + i], stream)});
  each_pair([&]<class P, class G>() {
    for_each_batch<2>(with_dtypes<2>(entries, {dtype_of<P>, dtype_of<G>}), dtype_of<P>,
                      [&](const ListBatch<2>& batch, unsigned blocks) {
                        launch(plain_kernel<P, G>, blocks, kThreads, 0, stream, batch, settings,
                               in[0].device_data<double>(), in[1].device_data<bool>(),
                               factor_in(in[2]));
                      });
  });
  written.done();
}

void SgdMomentum::cuda(Tensors in, Outputs, Stream stream) const {
  const Tensors lists = in.subspan(first_list);
  const size_t n = lists.size() / 3;
  const Settings settings{momentum, 1 - dampening, weight_decay, maximize ? -1.0 : 1.0, nesterov};
  WrittenRows written(stream);
  std::vector<ListEntry<3>> entries;
  for (size_t i = 0; i < n; ++i)
    entries.push_back(
        {written.add(lists[i]), row_major(lists[n + i], stream), written.add(lists[2 * n + i])});
  const auto run = [&]<class P, class G, class B>() {
    for_each_batch<3>(with_dtypes<3>(entries, {dtype_of<P>, dtype_of<G>, dtype_of<B>}), dtype_of<P>,
                      [&](const ListBatch<3>& batch, unsigned blocks) {
                        launch(momentum_kernel<P, G, B>, blocks, kThreads, 0, stream, batch,
                               settings, in[0].device_data<double>(), in[1].device_data<bool>(),
                               in[2].device_data<double>(), factor_in(in[3]));
                      });
  };
  each_pair([&]<class P, class G>() {
    if constexpr (sizeof(P) == 8) {
      run.template operator()<P, G, double>();
    } else {
      run.template operator()<P, G, float>();
      run.template operator()<P, G, bf16>();
    }
  });
  written.done();
}

}  // namespace tessera::op

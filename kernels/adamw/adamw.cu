// SPDX-License-Identifier: Apache-2.0
// CUDA adamw_: the step's constants are made on the device from the 0-dim inputs, so that a
// captured graph can be replayed with other values. Entries of one combination of dtypes share
// launches; stochastic rounding takes a launch per parameter, since each has its own stream.
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/adamw/stochastic_rounding_impl.h"
#include "tessera/kernels/multi_tensor/multi_tensor.h"
#include "tessera/kernels/shared/piece_index_impl.h"
#include "tessera/kernels/shared/tensor_list.cuh"

#include <type_traits>

namespace tessera::op {
namespace {

// The step's constants, rounded once to the type of the arithmetic, as on the CPU.
template <class C> struct StepConstants {
  C decay, beta1, rest1, beta2, rest2, scale2, eps, step_size, factor;
  uint64_t step;
  bool skip;
};

struct Settings {
  double beta1, beta2, eps, weight_decay;
};

template <class C>
__global__ void make_constants(Settings op, const double* lr, const double* step, const bool* skip,
                               const double* factor, StepConstants<C>* c) {
  c->decay = static_cast<C>(1 - *lr * op.weight_decay);
  c->beta1 = static_cast<C>(op.beta1);
  c->rest1 = static_cast<C>(1 - op.beta1);
  c->beta2 = static_cast<C>(op.beta2);
  c->rest2 = static_cast<C>(1 - op.beta2);
  c->scale2 = static_cast<C>(1 / std::sqrt(1 - ::pow(op.beta2, *step)));
  c->eps = static_cast<C>(op.eps);
  c->step_size = static_cast<C>(*lr / (1 - ::pow(op.beta1, *step)));
  c->factor = factor ? static_cast<C>(*factor) : C(1);
  c->step = static_cast<uint64_t>(*step);
  c->skip = *skip;
}

// How what is bf16 is rounded.
struct Rounding {
  bool stochastic = false;
  RngKey key;
  PieceIndex piece;
};

template <class T, class C> __device__ T rounded(C x, bool stochastic, uint32_t sixteen) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (stochastic) return rng::round_stochastic(x, sixteen);
  }
  return static_cast<T>(x);
}

template <class P, class G, class M>
__global__ void step_kernel(ListBatch<4> batch, const StepConstants<compute_t<P>>* constants,
                            Rounding rounding) {
  using C = compute_t<P>;
  const StepConstants<C> c = *constants;
  if (c.skip) return;
  const auto [tensor, begin, end] = batch.place();
  P* parameter = static_cast<P*>(batch.pointers[tensor][0]);
  const G* gradient = static_cast<const G*>(batch.pointers[tensor][1]);
  M* first = static_cast<M*>(batch.pointers[tensor][2]);
  M* second = static_cast<M*>(batch.pointers[tensor][3]);
  const bool random = rounding.stochastic;
  const RngKey key = rng::at_step(rounding.key, c.step);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const C g = static_cast<C>(scaled(gradient[i], c.factor)), p = static_cast<C>(parameter[i]);
    const C m = c.beta1 * static_cast<C>(first[i]) + c.rest1 * g;
    const C v = c.beta2 * static_cast<C>(second[i]) + c.rest2 * (g * g);
    const C q = p * c.decay - c.step_size * (m / (std::sqrt(v) * c.scale2 + c.eps));
    const uint64_t at = random ? rounding.piece.global(i) : 0;
    const uint32_t word = random ? rng::word(rng::word_key(key, at), at) : 0;
    first[i] = rounded<M>(m, random, rng::first_bits(word));
    second[i] = rounded<M>(v, random, rng::second_bits(word));
    parameter[i] = rounded<P>(q, random, rng::parameter_bits(word));
  }
}

}  // namespace

void AdamW::cuda(Tensors in, Outputs, Stream stream) const {
  const Tensors lists = in.subspan(first_list);
  const size_t n = lists.size() / 4;
  WrittenRows written(stream);
  std::vector<ListEntry<4>> entries;
  std::vector<Rounding> roundings(streams.of.size());
  entries.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const Tensor& p = lists[i];
    entries.push_back({written.add(p), row_major(lists[n + i], stream),
                       written.add(lists[2 * n + i]), written.add(lists[3 * n + i])});
    if (streams.of.empty()) continue;
    roundings[i] = {true,
                    {seed, streams.of[i]},
                    places.empty() ? PieceIndex(p.numel())
                                   : PieceIndex(p.shape(), places[i].start, places[i].whole)};
  }
  const double* factor = in[3].defined() ? in[3].device_data<double>() : nullptr;
  Tensor constants[2];  // of f32 and of f64, made when first used
  const auto run = [&]<class P, class G, class M>() {
    using C = compute_t<P>;
    Tensor& bytes = constants[dtype_of<C> == DType::f64];
    const auto step = [&](const std::vector<ListEntry<4>>& group, const Rounding& rounding) {
      for_each_batch<4>(group, dtype_of<P>, [&](const ListBatch<4>& batch, unsigned blocks) {
        if (!bytes.defined()) {
          bytes = empty({sizeof(StepConstants<C>)}, DType::u8, stream.device);
          launch(make_constants<C>, 1, 1, 0, stream, Settings{beta1, beta2, eps, weight_decay},
                 in[0].device_data<double>(), in[1].device_data<double>(),
                 in[2].device_data<bool>(), factor,
                 static_cast<StepConstants<C>*>(bytes.raw_device_data()));
        }
        launch(step_kernel<P, G, M>, blocks, kThreads, 0, stream, batch,
               static_cast<const StepConstants<C>*>(bytes.raw_device_data()), rounding);
      });
    };
    std::vector<ListEntry<4>> alike;
    for (size_t i = 0; i < n; ++i) {
      const ListEntry<4>& e = entries[i];
      if (e[0].dtype() != dtype_of<P> || e[1].dtype() != dtype_of<G> || e[2].dtype() != dtype_of<M>)
        continue;
      if (streams.of.empty()) alike.push_back(e);
      else step({e}, roundings[i]);
    }
    step(alike, {});
  };
  run.template operator()<double, double, double>();
  run.template operator()<float, float, float>();
  run.template operator()<float, float, bf16>();
  run.template operator()<bf16, bf16, float>();
  run.template operator()<bf16, bf16, bf16>();
  run.template operator()<bf16, float, float>();
  run.template operator()<bf16, float, bf16>();
  written.done();
}

}  // namespace tessera::op

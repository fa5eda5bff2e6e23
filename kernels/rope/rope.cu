// SPDX-License-Identifier: Apache-2.0
// CUDA rope: a thread turns the pairs of a pack, which it reads where they lie; of heads that packs
// do not fill, a thread makes one value from itself and the other of its pair.
#include "tessera/kernels/rope/rope.h"
#include "tessera/kernels/shared/block_reduce.cuh"
#include "tessera/kernels/shared/pack.cuh"

namespace tessera::op {
namespace {

struct Sizes {
  int64_t values, t, h, d, half, table_rows;
  bool inverse, halves;
};
constexpr int kBytes = 16;  // of a load

// x as (batch, t, h, d), the heads' values side by side.
template <class T> struct Tokens {
  const T* at;
  int64_t batch, step_of_batch, step_of_token, step_of_head;
};

// positions: null where token t of a sequence has row t of the tables.
template <class T>
__global__ void rotate(const T* x, const compute_t<T>* cos, const compute_t<T>* sin,
                       const int64_t* positions, T* y, Sizes z) {
  using C = compute_t<T>;
  for (int64_t i = first_item(); i < z.values; i += item_step()) {
    const int64_t at = i % z.d;
    if (at >= 2 * z.half) {
      y[i] = x[i];
      continue;
    }
    const int64_t token = i / z.d / z.h, row = positions ? positions[token] : token % z.t;
    if (row < 0 || row >= z.table_rows) {
      y[i] = static_cast<T>(not_a_number<C>());
      continue;
    }
    const int64_t pair = z.halves ? at % z.half : at / 2;
    const bool second = z.halves ? at >= z.half : at % 2 != 0;
    const int64_t distance = z.halves ? z.half : 1, other = second ? i - distance : i + distance;
    const C c = cos[row * z.half + pair], s = sin[row * z.half + pair];
    const C turn = second == z.inverse ? -s : s;
    y[i] = static_cast<T>(static_cast<C>(x[i]) * c + static_cast<C>(x[other]) * turn);
  }
}

// The pairs of `left` and `right`, which lie in one pack or half a head apart.
template <class C> __device__ __forceinline__ void turn(C& left, C& right, C c, C s) {
  const C first = left;
  left = first * c + right * -s;
  right = right * c + first * s;
}

// A block takes a token, a thread a pack of some of its heads, of halves two: threadIdx.x says
// which, threadIdx.y of which head.
template <class T, int kPack, bool kHalves>
__global__ void rotate_packs(Tokens<T> x, const compute_t<T>* cos, const compute_t<T>* sin,
                             const int64_t* positions, T* y, Sizes z) {
  using C = compute_t<T>;
  const int64_t at = threadIdx.x * kPack;  // of the first value
  const bool turns = kHalves ? at < z.half : at < 2 * z.half;
  // The packs of halves' second half are the first's threads'; those behind are copied.
  if (kHalves && at >= z.half && at < 2 * z.half) return;
  for (int64_t b = blockIdx.y; b < x.batch; b += gridDim.y) {
    for (int64_t t = blockIdx.x; t < z.t; t += gridDim.x) {
      const int64_t token = b * z.t + t, row = positions ? positions[token] : t;
      const bool inside = row >= 0 && row < z.table_rows;
      C c[kPack], s[kPack];
      for (int e = 0; turns && e < (kHalves ? kPack : kPack / 2); ++e) {
        const int64_t from = row * z.half + (kHalves ? at : at / 2) + e;
        c[e] = inside ? cos[from] : not_a_number<C>();
        s[e] = inside ? (z.inverse ? -sin[from] : sin[from]) : not_a_number<C>();
      }
      const T* in = x.at + b * x.step_of_batch + t * x.step_of_token + at;
      T* out = y + token * z.h * z.d + at;
      for (int64_t head = threadIdx.y; head < z.h; head += blockDim.y) {
        Pack<T, kPack> left = load_pack<kPack>(in + head * x.step_of_head);
        if (turns && kHalves) {
          Pack<T, kPack> right = load_pack<kPack>(in + head * x.step_of_head + z.half);
#pragma unroll
          for (int e = 0; e < kPack; ++e) {
            C a = static_cast<C>(left.v[e]), other = static_cast<C>(right.v[e]);
            turn(a, other, c[e], s[e]);
            left.v[e] = static_cast<T>(a), right.v[e] = static_cast<T>(other);
          }
          store_pack(out + head * z.d + z.half, right);
        } else if (turns) {
#pragma unroll
          for (int e = 0; e < kPack / 2; ++e) {
            C a = static_cast<C>(left.v[2 * e]), other = static_cast<C>(left.v[2 * e + 1]);
            turn(a, other, c[e], s[e]);
            left.v[2 * e] = static_cast<T>(a), left.v[2 * e + 1] = static_cast<T>(other);
          }
        }
        store_pack(out + head * z.d, left);
      }
    }
  }
}

// Whether packs of kPack may be read of each head; `tokens` is x then.
template <int kPack, class T> bool fits(const Tensor& x, const Sizes& z, Tokens<T>& tokens) {
  const int r = x.rank();
  if (r > 4 || x.strides()[r - 1] != 1 || z.d % kPack != 0) return false;
  if ((z.halves ? z.half : 2 * z.half) % kPack != 0 || z.d / kPack > kThreads) return false;
  tokens = {x.device_data<T>(), r == 4 ? x.shape()[0] : 1, r == 4 ? x.strides()[0] : 0,
            x.strides()[r - 3], x.strides()[r - 2]};
  return tokens.step_of_batch % kPack == 0 && tokens.step_of_token % kPack == 0 &&
         tokens.step_of_head % kPack == 0 && aligned<kPack>(tokens.at);
}

}  // namespace

void Rope::cuda(Tensors in, Outputs y, Stream stream) const {
  if (y[0].numel() == 0) return;
  const Tensor cos = row_major(in[1], stream), sin = row_major(in[2], stream);
  const Tensor positions = in.size() > 3 && in[3].defined() ? row_major(in[3], stream) : Tensor();
  const int64_t* const places = positions.defined() ? positions.device_data<int64_t>() : nullptr;
  const Shape& s = in[0].shape();  // (..., t, h, d)
  const int r = s.rank();
  const Sizes z{in[0].numel(),  s[r - 3],       s[r - 2], s[r - 1],
                cos.shape()[1], cos.shape()[0], inverse,  halves};
  dispatch<dtypes>(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    constexpr int kPack = kPackOf<T, kBytes>;
    const C *cosines = cos.device_data<C>(), *sines = sin.device_data<C>();
    T* const out = y[0].device_data<T>();
    Tokens<T> tokens;
    if (fits<kPack>(in[0], z, tokens)) {
      const auto packs = static_cast<unsigned>(z.d / kPack);
      const auto blocks = [](int64_t n, int64_t most) {
        return static_cast<unsigned>(std::min(n, most));
      };
      const auto kernel = halves ? rotate_packs<T, kPack, true> : rotate_packs<T, kPack, false>;
      return launch(kernel, dim3(blocks(z.t, kMaxBlocks), blocks(tokens.batch, kMaxBlocks)),
                    dim3(packs, blocks(z.h, kThreads / packs)), 0, stream, tokens, cosines, sines,
                    places, out, z);
    }
    const Tensor x = row_major(in[0], stream);
    launch(rotate<T>, blocks_for(z.values), kThreads, 0, stream, x.device_data<T>(), cosines, sines,
           places, out, z);
  });
}

}  // namespace tessera::op

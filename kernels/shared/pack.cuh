// SPDX-License-Identifier: Apache-2.0
// Several elements in one load or store, and how a kernel of such loads is spread: what a sweep
// varies (kernels/sweep.h).
#pragma once

#include "tessera/kernels/shared/launch.cuh"

namespace tessera {

template <class T, int n> struct alignas(sizeof(T) * n) Pack { T v[n]; };

template <int n, class T> __device__ __forceinline__ Pack<T, n> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, n>*>(from);
}
template <class T, int n> __device__ __forceinline__ void store_pack(T* to, const Pack<T, n>& x) {
  *reinterpret_cast<Pack<T, n>*>(to) = x;
}

/// Whether packs of n elements may begin at all of these; null says nothing.
template <int n, class... T> bool aligned(const T*... p) {
  return ((reinterpret_cast<uintptr_t>(p) % (sizeof(T) * n) == 0) && ...);
}

/// The constants of a kernel: bytes that a thread loads at once, and threads of a block.
struct Tuning {
  int bytes, threads;
};
/// Elements of a pack.
template <class T, int bytes>
inline constexpr int kPackOf = bytes > static_cast<int>(sizeof(T))
                                   ? bytes / static_cast<int>(sizeof(T))
                                   : 1;

/// Calls f<n>() with the elements of a pack of `bytes`, if packs fill the rows (`whole`) and may
/// begin at all pointers; f<1>() otherwise.
template <int bytes, class F, class T, class... More>
void with_pack(bool whole, F&& f, const T* p, const More*... more) {
  constexpr int n = kPackOf<T, bytes>;
  if (whole && aligned<n>(p, more...)) f.template operator()<n>();
  else f.template operator()<1>();
}

}  // namespace tessera

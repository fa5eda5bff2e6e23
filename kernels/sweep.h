// SPDX-License-Identifier: Apache-2.0
// Variants of device kernels that differ in their constants, at the shapes of models:
// `bench_kernels` times them on a device, and the room's constant becomes what was fastest. They
// lie in libtessera_sweep.so, which nothing but that program opens. A room's variants are in its
// `*_sweep.cu`, listed in kernels/sweep_table.cpp.
#pragma once

#include "tessera/core/op_types.h"

#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera {

/// A call of the kernel: row-major operands of the device. `name` says the model and the place.
struct SweepCase {
  struct Operand {
    Shape shape;
    DType dtype = DType::bf16;
  };
  std::string name;
  std::vector<Operand> in, out;
  double flops = 0;  ///< that it needs; its bytes are those of all operands, once
};

struct SweepVariant {
  std::string name;
  /// Queues the call. DeviceError if the device has no such variant.
  std::function<void(Tensors in, Outputs out, Stream stream)> run;
};

/// The first variant is what libtessera_cuda.so runs.
struct SweptKernel {
  std::string name;
  std::vector<SweepCase> cases;
  std::vector<SweepVariant> variants;
};
using Sweep = std::vector<SweptKernel>;

/// A variant for each of `bytes` and of `threads`; make(std::integral_constant<int, bytes>,
/// threads) gives its run.
template <int... bytes, class Tuning, class Make>
std::vector<SweepVariant> variants_of(const Tuning& chosen, std::initializer_list<int> threads,
                                      const Make& make) {
  std::vector<SweepVariant> all;
  const auto add = [&]<int b>(bool first) {
    for (int t : threads)
      if ((b == chosen.bytes && t == chosen.threads) == first)
        all.push_back({concat(b, " bytes a load, ", t, " threads"),
                       make(std::integral_constant<int, b>{}, t)});
  };
  (add.template operator()<bytes>(true), ...);
  (add.template operator()<bytes>(false), ...);
  return all;
}

}  // namespace tessera

/// What libtessera_sweep.so exports: appends all kernels.
extern "C" TESSERA_API void tessera_sweep(tessera::Sweep& sweep);

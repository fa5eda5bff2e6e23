// SPDX-License-Identifier: Apache-2.0
// What a program asks of the runtime: each call takes microseconds of the host where a device is.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include "counts.h"
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

namespace tessera {
namespace {

int64_t calls_made() {
  cuda_emulation::Counts counts;
  cuda_emulation_counts(&counts);
  return counts.calls;
}

// Once memory is cached and kernels are known.
int64_t calls_of(const std::function<void()>& work) {
  for (int i = 0; i < 3; ++i) work();
  const int64_t before = calls_made();
  work();
  return calls_made() - before;
}

TEST(CudaCalls, AnOpIsOneLaunch) {
  unsetenv("TESSERA_NO_CUDA_MEMORY_CACHING");  // which takes each block from the runtime
  const Session session({.threads = 1});
  const Tensor a = ones({8, 8}, DType::f32, cuda(0)), b = ones({8, 8}, DType::f32, cuda(0));
  Tensor w = ones({8, 8}, DType::f32, cuda(0));
  w.set_requires_grad();
  EXPECT_EQ(calls_of([&] { (void)(a + b); }), 1);
  EXPECT_EQ(calls_of([&] { (void)(w + b); }), 1);
  EXPECT_EQ(calls_of([&] { (void)empty({1000}, DType::f32, cuda(0)); }), 0);
  EXPECT_EQ(calls_of([&] { (void)matmul(a, b); }), 1);
  EXPECT_EQ(calls_of([&] {
              const Tensor y = (w + a) * b;
              (void)grad({y}, {w}, {.grad_outputs = {a}});
            }),
            3);
}

// Its copy and two orders of streams: before its first use, and after its last one.
TEST(CudaCalls, ATensorFromTheHostIsAFew) {
  unsetenv("TESSERA_NO_CUDA_MEMORY_CACHING");
  const Session session({.threads = 1});
  const Tensor host = ones({1000});
  EXPECT_LE(calls_of([&] { (void)to_device(host, cuda(0)); }), 12);
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// What only an emulated cuDNN can show: a graph with another operation in any place is noticed, and
// a call that cuDNN refuses is done by Tessera's kernels.
#include "tessera/core/process.h"
#include "tessera/tests/support/attention_cases.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <dlfcn.h>

namespace tessera::test {
namespace {

// Each test is a process of its own under ctest: the library is opened once.
class CudnnCuda : public testing::Test {
 protected:
  void SetUp() override {
    (void)setenv("TESSERA_CUDNN_LIBRARY", TESSERA_CUDNN_EMULATION, 1);
    if (!Process::get().cuda_available()) GTEST_SKIP() << "no GPU";
  }
  template <class F> static F function(const char* name) {
    void* const library = dlopen(TESSERA_CUDNN_EMULATION, RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<F>(dlsym(library, name));
  }
};

const AttentionTest kWindow{
    "Window", 1, 4, 2, 30, 30, 16, 16, AttentionMask::causal() & AttentionMask::window(7)};

TEST_F(CudnnCuda, EachOperationOfTheGraphsCounts) {
  ASSERT_TRUE(has_cudnn()) << cudnn_text();
  const auto plant = function<void (*)(int)>("cudnn_emulation_mutant");
  const auto operations = function<int (*)()>("cudnn_emulation_operations");
  for (const bool deterministic : {true, false}) {  // from the smaller graph to the larger
    const Session session({.threads = 1, .deterministic = deterministic});
    EXPECT_LT(attention_errors(kWindow, cuda(), 3).worst(), 1e-2);
    ASSERT_GT(operations(), 25);
    for (int n = 0; n < operations(); ++n) {
      plant(n);
      const double error = attention_errors(kWindow, cuda(), 3).worst();
      EXPECT_FALSE(error < 3e-2) << "operation " << n << " may be another: " << error;
    }
    plant(-1);
  }
}

TEST_F(CudnnCuda, WhatItRefusesIsNamedOnceAndDoneByTesserasKernels) {
  ASSERT_TRUE(has_cudnn()) << cudnn_text();
  const auto refuse = function<void (*)(bool)>("cudnn_emulation_refuse");
  refuse(true);
  const Session session({.threads = 1});
  for (int i = 0; i < 2; ++i) EXPECT_LT(attention_errors(kWindow, cuda(), 3).worst(), 2e-2);
  refuse(false);
  EXPECT_EQ(noted_cudnn_refusals(), std::vector<std::string>{"[cudnn] no engine takes the graph"});
}

// Backward is cut by key heads, so that the last slice is smaller and lse begins on 4 bytes, or by
// sequences.
TEST_F(CudnnCuda, DeterministicBackwardRunsInSlices) {
  (void)setenv("TESSERA_CUDNN_WORKSPACE", "70000", 1);  // two heads of 65 queries and keys
  ASSERT_TRUE(has_cudnn()) << cudnn_text();
  const Session session({.threads = 1, .deterministic = true});
  for (const AttentionTest& a : {AttentionTest{"Heads", 2, 5, 5, 65, 65, 16, 16},
                                 AttentionTest{"Sequences", 5, 1, 1, 65, 65, 16, 16},
                                 AttentionTest{"Groups", 1, 6, 3, 65, 65, 16, 16}})
    EXPECT_LT(attention_errors(a, cuda(), 3).worst(), 1e-2) << a;
  EXPECT_EQ(noted_cudnn_refusals(), std::vector<std::string>());
}

TEST_F(CudnnCuda, AnOlderOneIsNotUsed) {
  (void)setenv("TESSERA_EMULATED_CUDNN_VERSION", "91700", 1);
  EXPECT_FALSE(has_cudnn());
  EXPECT_EQ(cudnn_text(), "it is of version 9.17.0, expected 9.18.0 or a later 9");
  const Session session({.threads = 1});
  EXPECT_LT(attention_errors(kWindow, cuda(), 3).worst(), 2e-2);
}

}  // namespace
}  // namespace tessera::test

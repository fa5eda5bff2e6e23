// SPDX-License-Identifier: Apache-2.0
// Does cuDNN itself take the graphs? It makes plans for a device that is described to it, so that
// every case of the table is asked for on a machine without one: an H100, by JSON. And what do its
// statuses mean?
#include "tessera/kernels/cudnn/attention_graphs_impl.h"
#include "tessera/tests/support/attention_cases.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

namespace tessera::cudnn {
namespace {

constexpr const char* kH100 = R"({"maxGridSize": [2147483647, 65535, 65535],
  "maxBlockSize": [1024, 1024, 64], "deviceVer": 900, "deviceName": "NVIDIA H100 80GB HBM3",
  "cudaDeviceId": 0, "driverVer": 13000, "regsPerBlock": 65536, "multiProcessorCount": 132,
  "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "l2CacheSize": 52428800, "warpSize": 32,
  "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "pciDeviceId": 0,
  "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "isTccDriver": 0,
  "supportCoopLaunch": 1, "totalGlobalMem": 85017493504})";

using test::AttentionTest;

AttentionBackwardGraph graph_of(const AttentionTest& g, bool deterministic) {
  const auto layout = [](int64_t b, int64_t h, int64_t t, int64_t d) -> Layout {
    return {{b, h, t, d}, {t * h * d, d, h * d, 1}};  // heads inside
  };
  AttentionBackwardGraph x;
  x.type = g.dtype == DType::bf16 ? DataType::bf16 : DataType::f16;
  x.q = x.dq = layout(g.b, g.h, g.t, g.d);
  x.k = x.dk = layout(g.b, g.h_kv, g.s, g.d);
  x.v = x.dv = layout(g.b, g.h_kv, g.s, g.dv);
  x.o = x.dout = layout(g.b, g.h, g.t, g.dv);
  x.scale = 0.125;
  const auto band = band_of(g.mask, g.s);
  x.causal = band->causal, x.window = band->window;
  x.deterministic = deterministic;
  return x;
}

class CudnnPlans : public testing::TestWithParam<AttentionTest> {
 protected:
  void SetUp() override {
    // In the place of the driver, whether there is one or not.
    ASSERT_TRUE(dlopen(TESSERA_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL)) << dlerror();
    (void)setenv("TESSERA_CUDNN_LIBRARY", TESSERA_CUDNN, 0);
    ASSERT_TRUE(Library::get()) << Library::why_not();
  }
};

TEST_P(CudnnPlans, AreMadeForWhatTheTableGivesIt) {
  const AttentionTest& g = GetParam();
  const AttentionCase c = test::case_of(g);
  const AttentionChoice choice = choose_attention(c, true);
  ASSERT_EQ(choice.path, AttentionPath::cudnn) << choice.why_not_cudnn;
  const auto timed = [&](const char* what, auto&& make) {
    const auto before = std::chrono::steady_clock::now();
    const int64_t workspace = make();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - before;
    std::printf("%-16s %-14s %13lld bytes of workspace, plan in %.1f s\n", g.name.c_str(), what,
                static_cast<long long>(workspace), seconds.count());
    return workspace;
  };
  timed("forward", [&] {
    return attention_plan(*Library::get(), {nullptr, kH100}, graph_of(g, false)).plan.workspace();
  });
  for (const bool deterministic : {false, true}) {
    AttentionTest slice = g;
    if (deterministic) {
      const AttentionSlices slices = deterministic_slices(c);
      slice.b = slices.batch;
      slice.h = g.h / g.h_kv * slices.kv_heads, slice.h_kv = slices.kv_heads;
    }
    const int64_t workspace = timed(deterministic ? "deterministic" : "backward", [&] {
      const auto plan = attention_backward_plan(*Library::get(), {nullptr, kH100},
                                                graph_of(slice, deterministic));
      const int64_t rows = slice.b * slice.h * g.t;
      return plan.plan.workspace() + rows * 4 + (plan.sums ? rows * g.d * 4 : 0);
    });
    // What an estimate counts.
    const int64_t counted = cudnn_backward_workspace(c, deterministic);
    EXPECT_LE(workspace, counted) << (deterministic ? "deterministic" : "");
    EXPECT_GE(static_cast<double>(workspace), 0.9 * static_cast<double>(counted) - 4096);
    if (deterministic) {
      EXPECT_LE(workspace, most_cudnn_workspace() + most_cudnn_workspace() / 4);
    }
  }
}

const AttentionMask kCausal = AttentionMask::causal();
INSTANTIATE_TEST_SUITE_P(
    , CudnnPlans,
    testing::Values(AttentionTest{"llama3_1B", 4, 32, 8, 4096, 4096, 64, 64},
                    AttentionTest{"llama3_8B", 1, 32, 8, 8192, 8192, 128, 128},
                    AttentionTest{"gpt2_124M", 16, 12, 12, 1024, 1024, 64, 64},
                    AttentionTest{"deepseek_192", 1, 16, 16, 4096, 4096, 192, 128},
                    AttentionTest{"heads_256", 1, 16, 8, 4096, 4096, 256, 256},
                    AttentionTest{"heads_96", 1, 16, 8, 1000, 1000, 96, 96},
                    AttentionTest{"heads_8", 1, 4, 2, 65, 65, 8, 8},
                    AttentionTest{"two_tokens", 1, 4, 2, 2, 2, 64, 64},
                    AttentionTest{"f16", 1, 4, 1, 127, 127, 128, 128, kCausal, DType::f16},
                    AttentionTest{"all_keys", 2, 8, 8, 512, 768, 64, 64, AttentionMask()},
                    AttentionTest{"more_keys", 1, 4, 1, 127, 200, 64, 64},
                    AttentionTest{"window", 2, 8, 2, 4096, 4096, 128, 128,
                                  kCausal& AttentionMask::window(1024)},
                    AttentionTest{"short_window", 2, 8, 8, 500, 500, 64, 64,
                                  kCausal& AttentionMask::window(3)}),
    [](const auto& given) { return given.param.name; });

// A row that refuses what cuDNN would take costs speed; one that is missing, an attempt.
TEST_F(CudnnPlans, OfHeadsThatAreNoMultipleOf8AreRefusedByCudnnToo) {
  const AttentionTest odd{"", 1, 2, 2, 65, 65, 12, 12};
  EXPECT_EQ(choose_attention(test::case_of(odd), true).why_not_cudnn,
            "a head size is no multiple of 8");
  EXPECT_THROW((void)attention_plan(*Library::get(), {nullptr, kH100}, graph_of(odd, false)),
               NotSupported);
  EXPECT_THROW(
      (void)attention_backward_plan(*Library::get(), {nullptr, kH100}, graph_of(odd, false)),
      NotSupported);
}

TEST_F(CudnnPlans, WhatIsNotSupportedIsToldFromOtherFailures) {
  const auto check = [](int status) {
    Library::get()->check(static_cast<Status>(status), "cudnnBackendFinalize");
  };
  for (const int status : {3000, 3001, 3007})
    EXPECT_TRUE(test::error_of<NotSupported>([&] {
                  check(status);
                }).starts_with("[cudnn] cudnnBackendFinalize failed: CUDNN_STATUS_NOT_SUPPORTED"))
        << status;
  try {
    check(2000);
    FAIL() << "nothing was thrown";
  } catch (const NotSupported& error) {
    FAIL() << error.what();
  } catch (const DeviceError& error) {
    EXPECT_TRUE(std::string(error.what()).find("CUDNN_STATUS_BAD_PARAM") != std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::cudnn

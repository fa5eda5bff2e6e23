// SPDX-License-Identifier: Apache-2.0
// Does cuDNN itself take the graphs? It makes plans for a device that is described to it, so that
// every case of the table is asked for on a machine without one: an H100, by JSON.
#include "tessera/core/error.h"
#include "tessera/kernels/attention/device_path.h"
#include "tessera/kernels/cudnn/attention_graphs_impl.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <iostream>

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

struct Given {
  const char* name;
  int64_t b, h, h_kv, t, s, d, dv;
  AttentionMask mask = AttentionMask::causal();
  DType dtype = DType::bf16;
};
std::ostream& operator<<(std::ostream& out, const Given& g) { return out << g.name; }

AttentionCase case_of(const Given& g) {
  return {.dtype = g.dtype,
          .batch = g.b,
          .heads = g.h,
          .kv_heads = g.h_kv,
          .queries = g.t,
          .keys = g.s,
          .d = g.d,
          .dv = g.dv,
          .mask = g.mask};
}

AttentionBackwardGraph graph_of(const Given& g, bool deterministic) {
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

class CudnnPlans : public testing::TestWithParam<Given> {
 protected:
  void SetUp() override {
    // In the place of the driver, whether there is one or not.
    ASSERT_TRUE(dlopen(TESSERA_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL)) << dlerror();
    (void)setenv("TESSERA_CUDNN_LIBRARY", TESSERA_CUDNN, 0);
    ASSERT_TRUE(Library::get()) << Library::why_not();
  }
};

TEST_P(CudnnPlans, AreMadeForWhatTheTableGivesIt) {
  const Given& g = GetParam();
  const AttentionCase c = case_of(g);
  const AttentionChoice choice = choose_attention(c, true);
  ASSERT_EQ(choice.path, AttentionPath::cudnn) << choice.why_not_cudnn;
  const auto timed = [&](const char* what, auto&& make) {
    const auto before = std::chrono::steady_clock::now();
    const int64_t workspace = make();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - before;
    std::printf("%-16s %-14s %13lld bytes of workspace, plan in %.1f s\n", g.name, what,
                static_cast<long long>(workspace), seconds.count());
    return workspace;
  };
  timed("forward", [&] {
    return attention_plan(*Library::get(), {nullptr, kH100}, graph_of(g, false)).plan.workspace();
  });
  for (const bool deterministic : {false, true}) {
    Given slice = g;
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
    testing::Values(
        Given{"llama3_1B", 4, 32, 8, 4096, 4096, 64, 64},
        Given{"llama3_8B", 1, 32, 8, 8192, 8192, 128, 128},
        Given{"gpt2_124M", 16, 12, 12, 1024, 1024, 64, 64},
        Given{"deepseek_192", 1, 16, 16, 4096, 4096, 192, 128},
        Given{"heads_256", 1, 16, 8, 4096, 4096, 256, 256},
        Given{"heads_96", 1, 16, 8, 1000, 1000, 96, 96}, Given{"heads_8", 1, 4, 2, 65, 65, 8, 8},
        Given{"two_tokens", 1, 4, 2, 2, 2, 64, 64},
        Given{"f16", 1, 4, 1, 127, 127, 128, 128, kCausal, DType::f16},
        Given{"all_keys", 2, 8, 8, 512, 768, 64, 64, AttentionMask()},
        Given{"more_keys", 1, 4, 1, 127, 200, 64, 64},
        Given{"window", 2, 8, 2, 4096, 4096, 128, 128, kCausal& AttentionMask::window(1024)},
        Given{"short_window", 2, 8, 8, 500, 500, 64, 64, kCausal& AttentionMask::window(3)}),
    [](const auto& test) { return std::string(test.param.name); });

// A row that refuses what cuDNN would take costs speed; one that is missing, an attempt.
TEST_F(CudnnPlans, OfHeadsThatAreNoMultipleOf8AreRefusedByCudnnToo) {
  const Given odd{"", 1, 2, 2, 65, 65, 12, 12};
  EXPECT_EQ(choose_attention(case_of(odd), true).why_not_cudnn, "a head size is no multiple of 8");
  EXPECT_THROW((void)attention_plan(*Library::get(), {nullptr, kH100}, graph_of(odd, false)),
               NotSupported);
  EXPECT_THROW(
      (void)attention_backward_plan(*Library::get(), {nullptr, kH100}, graph_of(odd, false)),
      NotSupported);
}

}  // namespace
}  // namespace tessera::cudnn

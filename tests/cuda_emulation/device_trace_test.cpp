// SPDX-License-Identifier: Apache-2.0
// Device times over an emulated CUPTI, whose records come shuffled and in small buffers.
#include "tessera/autograd/autograd.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/softmax/softmax.h"
#include "tessera/tests/support/error_of.h"

#include "counts.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

namespace tessera {
namespace {

DeviceTrace& trace() { return Process::get().cuda().trace(); }

int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Launches by mark and name.
std::map<std::pair<uint64_t, std::string>, int> launches(const DeviceWorks& works) {
  std::map<std::pair<uint64_t, std::string>, int> all;
  for (const DeviceWork& w : works.all) ++all[{w.mark, w.name}];
  return all;
}

class CudaTrace : public testing::Test {
 protected:
  CudaTrace() : session_({.threads = 1}), x_(ones({40, 8}, DType::f32, cuda(0))) {
    (void)(x_ + x_);
    (void)softmax(x_, -1);
    Process::get().cuda().synchronize(0);
  }
  Session session_;
  Tensor x_;
};

TEST_F(CudaTrace, KernelsHaveTheMarkOfTheirLaunchAndTheHostsTime) {
  cuda_emulation::Counts before, after;
  cuda_emulation_counts(&before);
  const int64_t start = now();
  trace().start(0);
  trace().mark(1);
  for (int i = 0; i < 3; ++i) (void)(x_ + x_);
  trace().mark(2);
  (void)softmax(x_, -1);
  trace().mark(0);
  (void)(x_ * x_);
  const DeviceWorks works = trace().stop(0);
  const int64_t end = now();
  cuda_emulation_counts(&after);

  std::map<uint64_t, int> by_mark;
  int64_t last = start;
  for (const DeviceWork& w : works.all) {
    ++by_mark[w.mark];
    EXPECT_GE(w.begin, last) << w.name;
    EXPECT_LE(w.begin, w.end) << w.name;
    EXPECT_LE(w.end, end) << w.name;
    last = w.begin;
  }
  EXPECT_EQ(by_mark, (std::map<uint64_t, int>{{0, 1}, {1, 3}, {2, 1}}));
  EXPECT_EQ(works.dropped, 0);
  // Each launch is there, by the name that the runtime counted.
  std::map<std::string, int64_t> traced;
  for (const DeviceWork& w : works.all) ++traced[w.name];
  for (const auto& [name, times] : after.launches)
    EXPECT_EQ(traced[name], times - before.launches[name]) << name;
  // Nothing is kept while nobody traces.
  (void)(x_ + x_);
  Process::get().cuda().synchronize(0);
  trace().start(0);
  EXPECT_TRUE(trace().stop(0).all.empty());
}

TEST_F(CudaTrace, KernelsOfAGraphHaveTheMarkOfItsLaunch) {
  Tensor y;
  const Ref<CudaGraph> graph = capture_graph(cuda(0), 1 << 20, [&] { y = softmax(x_ + x_, -1); });
  trace().start(0);
  for (const uint64_t mark : {5, 6}) {
    trace().mark(mark);
    graph->launch();
  }
  const DeviceWorks works = trace().stop(0);
  std::map<uint64_t, int> by_mark;
  for (const DeviceWork& w : works.all) ++by_mark[w.mark];
  EXPECT_EQ(by_mark, (std::map<uint64_t, int>{{5, 2}, {6, 2}}));
}

TEST_F(CudaTrace, CopiesHaveTheirBytes) {
  trace().start(0);
  trace().mark(3);
  const Tensor there = to_device(zeros({10}), cuda(0));
  (void)to_device(there, kCpu);
  const DeviceWorks works = trace().stop(0);
  EXPECT_EQ(launches(works), (std::map<std::pair<uint64_t, std::string>, int>{{{3, "copy"}, 2}}));
  for (const DeviceWork& w : works.all) EXPECT_EQ(w.bytes, 40);
}

TEST_F(CudaTrace, DevicesAreTracedApart) {
  trace().start(0);
  trace().start(1);
  const Tensor y = ones({8}, DType::f32, cuda(1));
  (void)(y + y);
  Process::get().cuda().synchronize(1);
  EXPECT_TRUE(trace().stop(0).all.empty());
  EXPECT_EQ(trace().stop(1).all.size(), 2u);
  EXPECT_EQ(test::error_of<UsageError>([] { (void)trace().stop(1); }),
            "[trace] cuda:1 is not traced");
  trace().start(0);
  EXPECT_EQ(test::error_of<UsageError>([] { trace().start(0); }),
            "[trace] cuda:0 is traced already");
  (void)trace().stop(0);
}

TEST_F(CudaTrace, RecordsThatAreLostAreCounted) {
  setenv("TESSERA_EMULATED_CUPTI_DROPS", "2", 1);
  trace().start(0);
  for (int i = 0; i < 5; ++i) (void)(x_ + x_);
  const DeviceWorks works = trace().stop(0);
  unsetenv("TESSERA_EMULATED_CUPTI_DROPS");
  EXPECT_EQ(works.dropped, 2);
  EXPECT_EQ(works.all.size(), 3u);
}

// In a process of its own, since CUPTI is opened once.
TEST(CudaTraceDeathTest, AnotherVersionOfCuptiIsRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto refused = [] {
    setenv("TESSERA_EMULATED_CUPTI_VERSION", "140000", 1);
    std::fputs(test::error_of<DeviceError>([] { (void)trace(); }).c_str(), stderr);
    std::_Exit(3);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(3),
              "CUPTI is of version 140000, and this library reads records of version 130001");
}

}  // namespace
}  // namespace tessera

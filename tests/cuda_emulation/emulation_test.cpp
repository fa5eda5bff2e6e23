// SPDX-License-Identifier: Apache-2.0
// The emulation does what CUDA describes, and shows what CUDA leaves undefined: threads in any
// order, streams that only events bind, and kernels that would hang or fail.
#include "counts.h"
#include "cub/device/device_segmented_radix_sort.cuh"
#include "cublasLt.h"
#include "cuda_runtime.h"
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace cuda_emulation {
namespace {

class Emulation : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("TESSERA_EMULATED_DEVICES", "2", 1); }
  void SetUp() override {
    (void)cudaDeviceReset();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    for (cudaStream_t& s : streams_)
      ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    (void)cudaDeviceReset();
    for (void* block : blocks_) EXPECT_EQ(cudaFreeAsync(block, streams_[0]), cudaSuccess);
    for (cudaStream_t s : streams_) EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
  }

  template <class T> T* device(size_t count) {
    void* block = nullptr;
    EXPECT_EQ(cudaMallocAsync(&block, count * sizeof(T), streams_[0]), cudaSuccess);
    blocks_.push_back(block);
    return static_cast<T*>(block);
  }
  template <class T> T* device(const std::vector<T>& values) {
    T* block = device<T>(values.size());
    EXPECT_EQ(cudaMemcpyAsync(block, values.data(), values.size() * sizeof(T),
                              cudaMemcpyHostToDevice, streams_[0]),
              cudaSuccess);
    return block;
  }
  template <class T> std::vector<T> host(const T* block, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), block, count * sizeof(T), cudaMemcpyDeviceToHost,
                              streams_[0]),
              cudaSuccess);
    return values;
  }
  template <class... P, class... A>
  cudaError_t start(int stream, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                    A... args) {
    const cudaLaunchConfig_t config{grid, block, shared, streams_[stream]};
    return cudaLaunchKernelEx(&config, kernel, args...);
  }
  /// What went wrong in the kernel of `start`.
  template <class... P, class... A>
  std::string fault(void (*kernel)(P...), int threads, size_t shared, A... args) {
    EXPECT_EQ(start(0, kernel, 2, threads, shared, args...), cudaSuccess);
    const cudaError_t status = cudaStreamSynchronize(streams_[0]);
    EXPECT_EQ(status, cudaErrorLaunchFailure);
    const std::string text = cudaGetErrorString(status);
    (void)cudaDeviceReset();
    return text;
  }

  cudaStream_t streams_[2] = {};
  std::vector<void*> blocks_;
};

// The sum of 0 .. blockDim.x - 1 of each block, by shuffles and shared memory.
void sum_of_block(int* y, bool waits) {
  auto& sums = block_shared<int[32]>();
  int value = static_cast<int>(threadIdx.x);
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  if (waits) __syncthreads();
  int total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += sums[w];
  if (threadIdx.x == blockDim.x / 2) y[blockIdx.x] = total;
}

TEST_F(Emulation, BarriersAndShufflesJoinABlockInAnyOrder) {
  for (const int threads : {32, 64, 256, 1024}) {
    int* y = device<int>(3);
    for (int i = 0; i < 6; ++i) {
      ASSERT_EQ(start(0, sum_of_block, 3, threads, 0, y, true), cudaSuccess);
      EXPECT_EQ(host(y, 3), std::vector<int>(3, threads * (threads - 1) / 2));
    }
  }
}

TEST_F(Emulation, AMissingBarrierGivesOtherNumbers) {
  int* y = device<int>(1);
  std::set<int> seen;
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(start(0, sum_of_block, 1, 256, 0, y, false), cudaSuccess);
    seen.insert(host(y, 1)[0]);
  }
  EXPECT_GT(seen.size(), 1U);
}

void shifted(int* y) {
  const int up = __shfl_up_sync(0xffffffffU, static_cast<int>(threadIdx.x), 3);
  y[threadIdx.x] = up + 100 * __shfl_sync(0xffffffffU, up, 31);
}

TEST_F(Emulation, ShufflesUpKeepTheFirstLanes) {
  int* y = device<int>(64);
  ASSERT_EQ(start(0, shifted, 1, 64, 0, y), cudaSuccess);
  const std::vector<int> got = host(y, 64);
  for (int t = 0; t < 64; ++t)
    EXPECT_EQ(got[static_cast<size_t>(t)], (t % 32 < 3 ? t : t - 3) + 100 * (t / 32 * 32 + 28));
}

void leaves(int from) {
  if (static_cast<int>(threadIdx.x) >= from) return;
  __syncthreads();
}
void parts(int from) {
  if (static_cast<int>(threadIdx.x) >= from) __syncthreads();
  else __syncthreads();
}
void wrong_lane() { (void)__shfl_sync(0x0000ffffU, 1, threadIdx.x % 32 < 16 ? 20 : 0); }
void half_warp() {
  if (threadIdx.x % 2 == 0) (void)__shfl_sync(0xffffffffU, 1, 0);
}
void one_type_twice() {
  auto& a = block_shared<int[8]>();
  auto& b = block_shared<int[8]>();
  a[0] = b[0];
}
void takes_shared() {
  auto& a = block_shared<int[1024]>();
  a[threadIdx.x] = launch_shared()[0];
}

TEST_F(Emulation, AKernelThatWouldHangIsNamedWithItsPlace) {
  EXPECT_NE(fault(leaves, 64, 0, 40).find("24 left the kernel; 40 wait at the barrier "),
            std::string::npos);
  EXPECT_NE(fault(parts, 64, 0, 40).find("wait for each other"), std::string::npos);
  EXPECT_NE(fault(half_warp, 64, 0).find("32 wait for their warp at "), std::string::npos);
  EXPECT_NE(fault(half_warp, 32, 0).find("emulation_test.cpp"), std::string::npos);
  EXPECT_NE(fault(wrong_lane, 32, 0).find("not in the mask"), std::string::npos);
  EXPECT_NE(fault(one_type_twice, 32, 0).find("two shared arrays of one type"), std::string::npos);
}

TEST_F(Emulation, SharedMemoryIsCountedWithStaticArrays) {
  EXPECT_EQ(start(0, takes_shared, 1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_NE(fault(takes_shared, 32, 45 << 10).find("4096 + 46080, are more than 49152"),
            std::string::npos);
  ASSERT_EQ(start(0, takes_shared, 1, 32, 44 << 10), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  ASSERT_EQ(
      cudaFuncSetAttribute(takes_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 45 << 10),
      cudaSuccess);
  ASSERT_EQ(start(0, takes_shared, 1, 32, 45 << 10), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
}

TEST_F(Emulation, ImpossibleLaunchesAreRefused) {
  EXPECT_EQ(start(0, leaves, 0, 32, 0, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start(0, leaves, 1, 0, 0, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start(0, leaves, 1, 1025, 0, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start(0, leaves, dim3(1, 65536), 32, 0, 0), cudaErrorInvalidConfiguration);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(start(0, leaves, 1, 32, 0, 32), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

void put(int* y, int value) { *y = value; }

TEST_F(Emulation, OnlyEventsOrderStreams) {
  int* y = device<int>(1);
  std::set<int> seen;
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(start(0, put, 1, 1, 0, y, 1), cudaSuccess);
    ASSERT_EQ(start(1, put, 1, 1, 0, y, 2), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    seen.insert(host(y, 1)[0]);
  }
  EXPECT_EQ(seen, (std::set<int>{1, 2}));
  cudaEvent_t first = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&first, cudaEventDisableTiming), cudaSuccess);
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(start(1, put, 1, 1, 0, y, 1), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(first, streams_[1]), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(streams_[0], first, 0), cudaSuccess);
    ASSERT_EQ(start(0, put, 1, 1, 0, y, 2), cudaSuccess);
    EXPECT_EQ(host(y, 1)[0], 2);
  }
  EXPECT_EQ(cudaEventDestroy(first), cudaSuccess);
}

TEST_F(Emulation, PinnedMemoryIsReadWhenTheCopyRuns) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, sizeof(int), cudaHostAllocDefault), cudaSuccess);
  int* y = device<int>(1);
  std::set<int> seen;
  for (int i = 0; i < 60; ++i) {
    *static_cast<int*>(pinned) = 1;
    ASSERT_EQ(cudaMemcpyAsync(y, pinned, sizeof(int), cudaMemcpyHostToDevice, streams_[0]),
              cudaSuccess);
    *static_cast<int*>(pinned) = 2;
    seen.insert(host(y, 1)[0]);
  }
  EXPECT_EQ(seen, (std::set<int>{1, 2}));
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(Emulation, NewMemoryIsNotANumberAndNotFreedTwice) {
  const float* x = device<float>(5);
  for (const float value : host(x, 5)) EXPECT_NE(value, value);
  void* block = blocks_.back();
  blocks_.pop_back();
  EXPECT_EQ(cudaFreeAsync(block, streams_[1]), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(block, streams_[1]), cudaErrorInvalidValue);
}

TEST_F(Emulation, CountsLaunchesByNameAndWaitsOfTheHost) {
  int* y = device<int>(1);
  Counts before, after;
  cuda_emulation_counts(&before);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(start(0, put, 1, 1, 0, y, i), cudaSuccess);
  EXPECT_EQ(host(y, 1)[0], 2);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);  // the read has waited for all
  cuda_emulation_counts(&after);
  EXPECT_EQ(after.launches["cuda_emulation::put"] - before.launches["cuda_emulation::put"], 3);
  EXPECT_EQ(after.waits - before.waits, 1);
  const char* name = "";
  ASSERT_EQ(cudaFuncGetName(&name, reinterpret_cast<const void*>(put)), cudaSuccess);
  EXPECT_NE(std::string(name).find("put"), std::string::npos);
}

TEST_F(Emulation, SortsSegmentsStably) {
  const std::vector<uint16_t> keys{3, 1, 0x101, 2, 9, 1, 0};
  std::vector<int64_t> values(keys.size());
  std::iota(values.begin(), values.end(), 0);
  const std::vector<int64_t> ends{0, 5, 5, 7};
  const uint16_t* k = device(keys);
  const int64_t *v = device(values), *e = device(ends);
  auto* sorted_keys = device<uint16_t>(7);
  auto* sorted = device<int64_t>(7);
  size_t bytes = 0;
  const auto sort = [&](void* scratch) {
    return cub::DeviceSegmentedRadixSort::SortPairs(scratch, bytes, k, sorted_keys, v, sorted, 7, 3,
                                                    e, e + 1, 0, 8, streams_[0]);
  };
  ASSERT_EQ(sort(nullptr), cudaSuccess);
  char* scratch = device<char>(bytes);
  ASSERT_EQ(sort(scratch), cudaSuccess);
  EXPECT_EQ(host(sorted, 7), (std::vector<int64_t>{1, 2, 3, 0, 4, 6, 5}));  // by the low byte
  EXPECT_EQ(host(sorted_keys, 7), (std::vector<uint16_t>{1, 0x101, 2, 3, 9, 0, 1}));
  --bytes;
  EXPECT_EQ(sort(scratch), cudaErrorInvalidValue);
}

// C (3 x 2) = 2 A B + C of column-major matrices, A and B stored transposed or not.
TEST_F(Emulation, MultipliesByItsLayoutsAlone) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      // The library has an algorithm for these strides.
      const int64_t m = 3, n = 2, k = 4, lda = (ta ? k : m) + 3, ldb = (tb ? n : k) + 2;
      const auto a = [&](int64_t i, int64_t p) { return static_cast<float>(i + 1 - 2 * p); };
      const auto b = [&](int64_t p, int64_t j) { return static_cast<float>(3 * j - p); };
      std::vector<float> as(static_cast<size_t>(lda * 4)), bs(static_cast<size_t>(ldb * 4)), want;
      for (int64_t p = 0; p < k; ++p) {
        for (int64_t i = 0; i < m; ++i)
          as[static_cast<size_t>(ta ? i * lda + p : p * lda + i)] = a(i, p);
        for (int64_t j = 0; j < n; ++j)
          bs[static_cast<size_t>(tb ? p * ldb + j : j * ldb + p)] = b(p, j);
      }
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          float sum = 5;
          for (int64_t p = 0; p < k; ++p) sum += 2 * a(i, p) * b(p, j);
          want.push_back(sum);
        }
      }
      const float *pa = device(as), *pb = device(bs);
      float* pc = device(std::vector<float>(6, 5.0F));
      cublasLtMatmulDesc_t product = nullptr;
      cublasLtMatrixLayout_t la = nullptr, lb = nullptr, lc = nullptr;
      cublasLtMatmulPreference_t preference = nullptr;
      ASSERT_EQ(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                CUBLAS_STATUS_SUCCESS);
      const cublasOperation_t ops[] = {ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                                       tb ? CUBLAS_OP_T : CUBLAS_OP_N};
      (void)cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &ops[0],
                                           sizeof(ops[0]));
      (void)cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &ops[1],
                                           sizeof(ops[1]));
      const auto size = [](int64_t x) { return static_cast<uint64_t>(x); };
      (void)cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, size(ta ? k : m), size(ta ? m : k), lda);
      (void)cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, size(tb ? n : k), size(tb ? k : n), ldb);
      (void)cublasLtMatrixLayoutCreate(&lc, CUDA_R_32F, size(m), size(n), m);
      (void)cublasLtMatmulPreferenceCreate(&preference);
      cublasLtMatmulHeuristicResult_t found{};
      int count = 0;
      ASSERT_EQ(cublasLtMatmulAlgoGetHeuristic(nullptr, product, la, lb, lc, lc, preference, 1,
                                               &found, &count),
                CUBLAS_STATUS_SUCCESS);
      const float two = 2, one = 1;
      const auto multiply = [&](const float* from, cublasLtMatrixLayout_t layout) {
        return cublasLtMatmul(nullptr, product, &two, from, layout, pb, lb, &one, pc, lc, pc, lc,
                              &found.algo, nullptr, 0, streams_[0]);
      };
      EXPECT_EQ(multiply(pa, lc), CUBLAS_STATUS_INVALID_VALUE);      // of another problem
      EXPECT_EQ(multiply(pa + 1, la), CUBLAS_STATUS_INVALID_VALUE);  // 256 bytes were promised
      ASSERT_EQ(multiply(pa, la), CUBLAS_STATUS_SUCCESS);
      EXPECT_EQ(host(pc, 6), want);
      (void)cublasLtMatmulDescDestroy(product);
      for (cublasLtMatrixLayout_t l : {la, lb, lc}) (void)cublasLtMatrixLayoutDestroy(l);
      (void)cublasLtMatmulPreferenceDestroy(preference);
    }
  }
}

}  // namespace
}  // namespace cuda_emulation

// SPDX-License-Identifier: Apache-2.0
// The twins of PTX instructions against the tables of the PTX ISA, written out here lane by lane,
// and against products in f64.
#include "tessera/core/float_types.h"

#include "cuda_ptx.h"
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace cuda_emulation {
namespace {

using tessera::bf16, tessera::f16;

constexpr size_t kLanes = 32;

// A kernel's arguments lie in pinned memory, which host and device share.
template <class T> struct Pinned {
  explicit Pinned(size_t count, T value = {}) {
    void* block = nullptr;
    EXPECT_EQ(cudaHostAlloc(&block, count * sizeof(T), cudaHostAllocDefault), cudaSuccess);
    p = static_cast<T*>(block);
    for (size_t i = 0; i < count; ++i) p[i] = value;
  }
  ~Pinned() { EXPECT_EQ(cudaFreeHost(p), cudaSuccess); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T& operator[](size_t i) { return p[i]; }
  T* p = nullptr;
};

class Ptx : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("TESSERA_EMULATED_DEVICES", "2", 1); }
  void SetUp() override {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    (void)cudaDeviceReset();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  /// What went wrong in the kernel, empty if nothing.
  template <class... P, class... A> std::string run(void (*kernel)(P...), int threads, A... args) {
    const cudaLaunchConfig_t config{1, static_cast<unsigned>(threads), 0, stream_};
    EXPECT_EQ(cudaLaunchKernelEx(&config, kernel, args...), cudaSuccess);
    const cudaError_t status = cudaStreamSynchronize(stream_);
    if (status == cudaSuccess) return {};
    std::string text = cudaGetErrorString(status);
    (void)cudaDeviceReset();
    return text;
  }
  template <class... P, class... A>
  void expect_fault(const char* what, void (*kernel)(P...), int threads, A... args) {
    const std::string text = run(kernel, threads, args...);
    EXPECT_NE(text.find(what), std::string::npos) << text;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

struct Place {
  int row, column;
  bool operator==(const Place&) const = default;
};

// --- mma ----------------------------------------------------------------------------------------------------------
// The tables of "Matrix Fragments for mma.m16n8k16 with floating point type", as the ISA words
// them.

Place place_of_a(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {(i >= 0 && i < 2) || (i >= 4 && i < 6) ? group : group + 8,
          i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8};
}
Place place_of_b(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8, group};
}
Place place_of_d(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

template <class T> void multiply(const uint32_t* a, const uint32_t* b, float* d) {
  const unsigned t = threadIdx.x;
  float sums[4];
  uint32_t left[4], right[2];
  for (unsigned i = 0; i < 4; ++i) sums[i] = d[t * 4 + i], left[i] = a[t * 4 + i];
  for (unsigned i = 0; i < 2; ++i) right[i] = b[t * 2 + i];
  mma_16x8x16<T>(sums, left, right);
  for (unsigned i = 0; i < 4; ++i) d[t * 4 + i] = sums[i];
}

template <class T> class PtxMma : public Ptx {};
using Narrow = testing::Types<bf16, f16>;
TYPED_TEST_SUITE(PtxMma, Narrow);

TYPED_TEST(PtxMma, IsTheProductOfItsFragments) {
  using T = TypeParam;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto draw = [&] { return T(normal(random)); };
  constexpr size_t kWarps = 2;  // each with matrices of its own
  Pinned<uint32_t> a(kWarps * kLanes * 4), b(kWarps * kLanes * 2);
  Pinned<float> d(kWarps * kLanes * 4);
  for (int repeat = 0; repeat < 6; ++repeat) {  // in several orders
    double left[kWarps][16][16], right[kWarps][16][8], sums[kWarps][16][8];
    for (size_t w = 0; w < kWarps; ++w) {
      for (int lane = 0; lane < 32; ++lane) {
        const size_t t = w * kLanes + static_cast<size_t>(lane);
        const auto put = [](uint32_t& r, int i, T x) {
          r = i % 2 ? (r & 0xffff) | static_cast<uint32_t>(x.bits) << 16
                    : (r & 0xffff0000) | x.bits;
        };
        for (int i = 0; i < 8; ++i) {
          const T x = draw();
          const Place at = place_of_a(lane, i);
          left[w][at.row][at.column] = x;
          put(a[t * 4 + static_cast<size_t>(i) / 2], i, x);
        }
        for (int i = 0; i < 4; ++i) {
          const T x = draw();
          const Place in_b = place_of_b(lane, i), in_d = place_of_d(lane, i);
          right[w][in_b.row][in_b.column] = x;
          put(b[t * 2 + static_cast<size_t>(i) / 2], i, x);
          sums[w][in_d.row][in_d.column] = d[t * 4 + static_cast<size_t>(i)] = normal(random);
        }
      }
    }
    ASSERT_EQ(this->run(multiply<T>, kWarps * kLanes, a.p, b.p, d.p), "");
    for (size_t w = 0; w < kWarps; ++w) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
          const Place at = place_of_d(lane, i);
          double want = sums[w][at.row][at.column];
          for (int k = 0; k < 16; ++k) want += left[w][at.row][k] * right[w][k][at.column];
          EXPECT_NEAR(d[(w * kLanes + static_cast<size_t>(lane)) * 4 + static_cast<size_t>(i)],
                      want, 2e-5);
        }
      }
    }
  }
}

TEST_F(Ptx, MmaTakesWhatF16AndBf16Hold) {
  Pinned<uint32_t> a(kLanes * 4), b(kLanes * 2);
  Pinned<float> d(kLanes * 4);
  a[0] = 0x0001;  // the smallest f16, at (0, 0)
  b[0] = 0x7bff;  // the largest, at (0, 0)
  ASSERT_EQ(run(multiply<f16>, 32, a.p, b.p, d.p), "");
  EXPECT_EQ(d[0], std::ldexp(65504.0F, -24));
  EXPECT_EQ(d[1], 0);
  b[0] = 0x7f80;  // bf16's infinity, times what is zero elsewhere
  ASSERT_EQ(run(multiply<bf16>, 32, a.p, b.p, d.p), "");
  EXPECT_EQ(d[0], INFINITY);
  EXPECT_TRUE(std::isnan(d[2]));  // 0 * infinity, at (8, 0)
  EXPECT_EQ(d[3], 0);
}

void lacks_a_lane(float* d) {
  if (threadIdx.x % 32 == 31) return;
  const uint32_t zero[4] = {};
  float sums[4] = {};
  mma_16x8x16<bf16>(sums, zero, {0, 0});
  d[0] = sums[0];
}
void parts_of_a_warp(float* d) {
  const uint32_t zero[4] = {};
  float sums[4] = {};
  if (threadIdx.x % 2 == 0) mma_16x8x16<bf16>(sums, zero, {0, 0});
  else mma_16x8x16<bf16>(sums, zero, {0, 0});
  d[0] = sums[0];
}

TEST_F(Ptx, AWarpThatLacksALaneIsAnError) {
  Pinned<float> d(1);
  expect_fault("1 left the kernel; 31 wait for their warp at ", lacks_a_lane, 32, d.p);
  expect_fault("16 wait for their warp at ", parts_of_a_warp, 32, d.p);
  expect_fault("24 wait for their warp at ", lacks_a_lane, 24, d.p);  // no whole warp
}

// --- ldmatrix -----------------------------------------------------------------------------------------------------

struct alignas(16) Matrices {
  uint16_t at[32][8];  // four of 8 x 8
};

template <bool kTrans> void load(uint32_t* got) {
  auto& x = block_shared<Matrices>();
  for (unsigned i = 0; i < 8; ++i)
    x.at[threadIdx.x][i] = static_cast<uint16_t>(threadIdx.x * 8 + i);
  __syncthreads();
  uint32_t r[4];
  if constexpr (kTrans) ldmatrix_x4_trans(r, x.at[threadIdx.x]);
  else ldmatrix_x4(r, x.at[threadIdx.x]);
  for (unsigned i = 0; i < 4; ++i) got[threadIdx.x * 4 + i] = r[i];
}

TEST_F(Ptx, LdmatrixGivesEachLaneTwoElementsOfARowOrAColumn) {
  Pinned<uint32_t> got(kLanes * 4);
  const auto element = [](int matrix, int row, int column) {
    return static_cast<uint32_t>(matrix * 64 + row * 8 + column);
  };
  ASSERT_EQ(run(load<false>, 32, got.p), "");
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      EXPECT_EQ(got[static_cast<size_t>(lane * 4 + m)],
                element(m, lane / 4, lane % 4 * 2) | element(m, lane / 4, lane % 4 * 2 + 1) << 16);
    }
  }
  ASSERT_EQ(run(load<true>, 32, got.p), "");
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      EXPECT_EQ(got[static_cast<size_t>(lane * 4 + m)],
                element(m, lane % 4 * 2, lane / 4) | element(m, lane % 4 * 2 + 1, lane / 4) << 16);
    }
  }
}

void loads_from(const uint16_t* global, int elements_off) {
  auto& x = block_shared<Matrices>();
  uint32_t r[4];
  ldmatrix_x4(r, global ? global : &x.at[0][0] + elements_off);
}

TEST_F(Ptx, LdmatrixReadsWholeRowsOfSharedMemory) {
  Pinned<uint16_t> global(8);
  EXPECT_EQ(run(loads_from, 32, static_cast<uint16_t*>(nullptr), 31 * 8), "");
  expect_fault("outside of shared memory", loads_from, 32, global.p, 0);
  expect_fault("outside of shared memory", loads_from, 32, static_cast<uint16_t*>(nullptr), 32 * 8);
  expect_fault("does not begin on 16 bytes", loads_from, 32, static_cast<uint16_t*>(nullptr), 4);
}

// --- cp.async -----------------------------------------------------------------------------------------------------

struct alignas(16) Words {
  int at[64][4];
};

// Two groups of a copy each; y[4]: the first word as it is before any wait, after a wait for all
// but one group of the first, of the second, and at the end.
void copies_in_groups(const int* x, int* y) {
  auto& words = block_shared<Words>();
  int *first = words.at[0], *second = words.at[1];
  first[0] = second[0] = -1;
  cp_async(first, x, 16);
  cp_async_commit();
  cp_async(second, x + 4, 16);
  cp_async_commit();
  y[0] = first[0];
  cp_async_wait<2>();
  y[1] = first[0];
  cp_async_wait<1>();
  y[2] = first[0];
  y[3] = second[0];
  cp_async_wait<0>();
  y[4] = second[0];
  cp_async(first, x + 4, 16);  // in no group yet
  cp_async_wait<0>();
  y[5] = first[0];
}

TEST_F(Ptx, ACopyLandsWhenItsGroupIsWaitedFor) {
  Pinned<int> x(8), y(6);
  x[0] = 5, x[4] = 7;
  ASSERT_EQ(run(copies_in_groups, 1, x.p, y.p), "");
  EXPECT_EQ(std::vector<int>(y.p, y.p + 6), (std::vector<int>{-1, -1, 5, -1, 7, 5}));
}

void copies_part(const int* x, int* y, int bytes) {
  auto& words = block_shared<Words>();
  cp_async(words.at[0], x, bytes);
  cp_async_commit();
  cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) y[i] = words.at[0][i];
}

TEST_F(Ptx, WhatACopyDoesNotReadBecomesZero) {
  Pinned<int> x(4, -1), y(4);
  for (const int bytes : {0, 2, 8, 16}) {
    ASSERT_EQ(run(copies_part, 1, x.p, y.p, bytes), "");
    const auto* got = reinterpret_cast<const unsigned char*>(y.p);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(got[i], i < bytes ? 0xff : 0) << bytes;
  }
  expect_fault("reads 0 to 16 bytes", copies_part, 1, x.p, y.p, 17);
}

// Each thread copies what another one reads.
void shares_copies(const int* x, int* y, bool waits) {
  auto& words = block_shared<Words>();
  const unsigned t = threadIdx.x;
  cp_async(words.at[t], x + t * 4, 16);
  cp_async_commit();
  cp_async_wait<0>();
  if (waits) __syncthreads();
  y[t] = words.at[63 - t][0];
}

TEST_F(Ptx, OtherThreadsSeeACopyAfterABarrier) {
  Pinned<int> x(4 * 64), y(64);
  for (int i = 0; i < 64; ++i) x[static_cast<size_t>(i) * 4] = i;
  for (int repeat = 0; repeat < 6; ++repeat) {
    ASSERT_EQ(run(shares_copies, 64, x.p, y.p, true), "");
    for (int i = 0; i < 64; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], 63 - i);
    ASSERT_EQ(run(shares_copies, 64, x.p, y.p, false), "");
    int early = 0;
    for (int i = 0; i < 64; ++i) early += y[static_cast<size_t>(i)] == -1;  // poison
    EXPECT_GT(early, 0);
  }
}

// Powers of 2 but for 2^-22, on both sides of them; nothing below the smallest normal number.
TEST(PtxExp2, IsNearAndNeverSubnormal) {
  int above = 0, below = 0;
  for (float x = -126; x < 128; x += 0.37F) {
    const double error = exp2_approx(x) / std::exp2(static_cast<double>(x)) - 1;
    EXPECT_LE(std::abs(error), 0x1p-21) << x;
    ++(error > 0 ? above : below);
  }
  EXPECT_GT(above, 100);
  EXPECT_GT(below, 100);
  EXPECT_EQ(exp2_approx(-126.5F), 0);
  EXPECT_EQ(exp2_approx(-std::numeric_limits<float>::infinity()), 0);
  EXPECT_TRUE(std::isnan(exp2_approx(std::numeric_limits<float>::quiet_NaN())));
}

void copies_between(const int* x, int to, int from) {
  auto& words = block_shared<Words>();
  cp_async(&words.at[0][0] + to, x + from, 16);
}
void copies_within() {
  auto& words = block_shared<Words>();
  cp_async(words.at[0], words.at[1], 16);
}
void copies_out(int* x) { cp_async(x, x + 4, 16); }

TEST_F(Ptx, ACopysAddressesAreChecked) {
  Pinned<int> x(8);
  EXPECT_EQ(run(copies_between, 1, x.p, 63 * 4, 4), "");
  expect_fault("multiple of 16 bytes", copies_between, 1, x.p, 2, 0);
  expect_fault("multiple of 16 bytes", copies_between, 1, x.p, 0, 2);
  expect_fault("writes outside of shared memory", copies_between, 1, x.p, 64 * 4, 0);
  expect_fault("writes outside of shared memory", copies_out, 1, x.p);
  expect_fault("reads shared memory", copies_within, 1);
}

}  // namespace
}  // namespace cuda_emulation

// SPDX-License-Identifier: Apache-2.0
// The emulated NCCL does what NVIDIA's describes, and says what was wrong where that one would hang
// or write other bytes.
#include "nccl.h"

#include "cuda_emulation.h"
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

class Nccl : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("TESSERA_EMULATED_DEVICES", "2", 1); }
};

// One rank: its device, stream and communicator.
struct Rank {
  int rank;
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;

  float* device(const std::vector<float>& values) const {
    void* block = nullptr;
    const size_t bytes = values.size() * sizeof(float);
    EXPECT_EQ(cudaMallocAsync(&block, bytes, stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(block, values.data(), bytes, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    return static_cast<float*>(block);
  }
  std::vector<float> host(const float* block, size_t count) const {
    std::vector<float> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), block, count * sizeof(float), cudaMemcpyDeviceToHost,
                              stream),
              cudaSuccess);
    return values;
  }
  [[nodiscard]] ncclResult_t state(ncclComm_t of = nullptr) const {
    ncclResult_t now = ncclInProgress;
    for (int i = 0; now == ncclInProgress && i < 100'000; ++i) {
      EXPECT_EQ(ncclCommGetAsyncError(of ? of : comm, &now), ncclSuccess);
      std::this_thread::yield();
    }
    return now;
  }
  /// Until an error comes.
  [[nodiscard]] std::string error() const {
    ncclResult_t now = ncclSuccess;
    for (int i = 0; (now == ncclSuccess || now == ncclInProgress) && i < 100'000; ++i) {
      EXPECT_EQ(ncclCommGetAsyncError(comm, &now), ncclSuccess);
      std::this_thread::yield();
    }
    return ncclGetLastError(comm);
  }
};

void on_ranks(int n, const std::function<void(Rank&)>& fn, bool same_device = false) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      Rank rank{r};
      const int device = same_device ? 0 : r;
      ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithPriority(&rank.stream, cudaStreamNonBlocking, -1), cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      (void)ncclCommInitRankConfig(&rank.comm, n, id, r, &config);
      fn(rank);
      (void)ncclCommAbort(rank.comm);
      EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
    });
  }
  for (auto& t : threads) t.join();
}

TEST_F(Nccl, SumsAndFinalizes) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    for (int round = 0; round < 20; ++round) {
      float* const x = r.device({1, static_cast<float>(r.rank)});
      (void)ncclAllReduce(x, x, 2, ncclFloat32, ncclSum, r.comm, r.stream);
      ASSERT_EQ(r.state(), ncclSuccess);
      EXPECT_EQ(r.host(x, 2), (std::vector<float>{2, 1}));
    }
    EXPECT_EQ(ncclCommFinalize(r.comm), ncclInProgress);
    EXPECT_EQ(r.state(), ncclSuccess);
  });
}

TEST_F(Nccl, MessagesOfAGroupMeetInAnyOrder) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    float* const x = r.device({static_cast<float>(r.rank), 0});
    (void)ncclGroupStart();
    (void)ncclSend(x, 1, ncclFloat32, 1 - r.rank, r.comm, r.stream);
    (void)ncclRecv(x + 1, 1, ncclFloat32, 1 - r.rank, r.comm, r.stream);
    (void)ncclGroupEnd();
    ASSERT_EQ(r.state(), ncclSuccess);
    EXPECT_EQ(r.host(x, 2)[1], static_cast<float>(1 - r.rank));
  });
}

TEST_F(Nccl, SplitsByColorAndKey) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    ncclComm_t turned = nullptr, alone = nullptr;
    (void)ncclCommSplit(r.comm, 0, -r.rank, &turned, nullptr);
    ASSERT_EQ(r.state(turned), ncclSuccess);
    float* const x = r.device({static_cast<float>(r.rank)});
    (void)ncclBroadcast(x, x, 1, ncclFloat32, 0, turned, r.stream);  // rank 0 is rank 1 of before
    ASSERT_EQ(r.state(turned), ncclSuccess);
    EXPECT_EQ(r.host(x, 1)[0], 1);
    (void)ncclCommSplit(r.comm, r.rank == 0 ? 3 : NCCL_SPLIT_NOCOLOR, 0, &alone, nullptr);
    EXPECT_EQ(alone != nullptr, r.rank == 0);
    if (alone) {
      EXPECT_EQ(r.state(alone), ncclSuccess);
      (void)ncclCommAbort(alone);
    }
    (void)ncclCommAbort(turned);
  });
}

TEST_F(Nccl, RanksThatDisagreeAreToldHow) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    float* const x = r.device({1, 2});
    (void)ncclAllReduce(x, x, r.rank == 0 ? 1 : 2, ncclFloat32, ncclSum, r.comm, r.stream);
    const std::string text = r.error();
    EXPECT_NE(text.find("AllReduce 1 float32 sum"), std::string::npos) << text;
    EXPECT_NE(text.find("AllReduce 2 float32 sum"), std::string::npos) << text;
  });
}

TEST_F(Nccl, MemoryOfAnotherDeviceIsRefused) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    std::vector<float> host(1);
    (void)ncclAllReduce(host.data(), host.data(), 1, ncclFloat32, ncclSum, r.comm, r.stream);
    EXPECT_NE(r.error().find("do not lie in one allocation on the communicator's device"),
              std::string::npos);
  });
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreRefused) {
  on_ranks(
      2,
      [](Rank& r) {
        const std::string text = r.error();
        EXPECT_NE(text.find("Duplicate GPU detected"), std::string::npos) << text;
      },
      true);
}

TEST_F(Nccl, ACallBeforeTheLastIsTakenIsAnError) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    float* const x = r.device({1});
    ncclResult_t code = ncclSuccess;
    for (int i = 0; i < 100 && code != ncclInvalidUsage; ++i)
      code = ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r.comm, r.stream);
    EXPECT_EQ(code, ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(r.comm)).find("in progress"), std::string::npos);
  });
}

// A stream that waits for a peer goes on when its communicator is aborted, by another thread too.
TEST_F(Nccl, AnAbortEndsWhatWaits) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    if (r.rank == 1) return;
    float* const x = r.device({1});
    (void)ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r.comm, r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      (void)ncclCommAbort(std::exchange(r.comm, nullptr));
    });
    EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
    other.join();
  });
}

TEST_F(Nccl, ALateErrorComesWhileItIsPolled) {
  setenv("TESSERA_EMULATED_NCCL_ERROR", "1:2", 1);
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    float* const x = r.device({1});
    (void)ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r.comm, r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    EXPECT_EQ(r.host(x, 1)[0], 2);
    (void)ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r.comm, r.stream);
    if (r.rank == 1) {
      EXPECT_NE(r.error().find("broke"), std::string::npos);
    }
  });
  unsetenv("TESSERA_EMULATED_NCCL_ERROR");
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// The emulated NCCL does what NVIDIA's describes, among threads and among processes, and says what
// was wrong where that one would hang or write other bytes.
#include "nccl.h"

#include "cuda_emulation.h"
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLongest = std::chrono::seconds(60);

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
    return poll(of ? of : comm, [](ncclResult_t now) { return now != ncclInProgress; });
  }
  /// Until an error comes.
  [[nodiscard]] std::string error() const {
    (void)poll(comm, [](ncclResult_t now) { return now != ncclSuccess && now != ncclInProgress; });
    return ncclGetLastError(comm);
  }

 private:
  template <class F> static ncclResult_t poll(ncclComm_t of, F done) {
    ncclResult_t now = ncclInProgress;
    for (const auto end = Clock::now() + kLongest; Clock::now() < end;) {
      EXPECT_EQ(ncclCommGetAsyncError(of, &now), ncclSuccess);
      if (done(now)) break;
      std::this_thread::yield();
    }
    return now;
  }
};

using RankFunction = std::function<void(Rank&)>;

void run_rank(int n, int r, const ncclUniqueId& id, int device, const RankFunction& fn) {
  Rank rank{r};
  ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithPriority(&rank.stream, cudaStreamNonBlocking, -1), cudaSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  (void)ncclCommInitRankConfig(&rank.comm, n, id, r, &config);
  fn(rank);
  (void)ncclCommAbort(rank.comm);
  EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
}

void on_threads(int n, const RankFunction& fn, bool same_device) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] { run_rank(n, r, id, same_device ? 0 : r, fn); });
  for (auto& t : threads) t.join();
}

// What each process ended with, as waitpid says it.
std::vector<int> on_processes(int n, const RankFunction& fn, bool same_device = false) {
  struct Told {
    std::atomic<bool> is;
    ncclUniqueId id;
  };
  auto* const told = static_cast<Told*>(
      mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> children;
  for (int r = 0; r < n; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      if (r == 0) {
        EXPECT_EQ(ncclGetUniqueId(&told->id), ncclSuccess);
        told->is = true;
      }
      while (!told->is) std::this_thread::yield();
      run_rank(n, r, told->id, same_device ? 0 : r, fn);
      (void)std::fflush(stdout);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) EXPECT_EQ(waitpid(child, &ends.emplace_back(), 0), child);
  munmap(told, sizeof(Told));
  return ends;
}

// By parameter: whether its ranks are processes.
class Nccl : public testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() { setenv("TESSERA_EMULATED_DEVICES", "2", 1); }
  void SetUp() override { setenv("NCCL_RUNTIME_CONNECT", "0", 1); }

  static void on_ranks(int n, const RankFunction& fn, bool same_device = false) {
    if (!GetParam()) return on_threads(n, fn, same_device);
    EXPECT_EQ(on_processes(n, fn, same_device), std::vector<int>(static_cast<size_t>(n)));
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Nccl, testing::Bool(),
                         [](const auto& ranks) { return ranks.param ? "Processes" : "Threads"; });

TEST_P(Nccl, SumsAndFinalizes) {
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

// Its ranks connect in it: NCCL keeps it in progress until all have come.
TEST_P(Nccl, TheFirstCallWaitsForAllRanks) {
  constexpr auto kLate = std::chrono::milliseconds(100);
  for (const bool message : {false, true}) {
    setenv("NCCL_RUNTIME_CONNECT", message ? "0" : "1", 1);
    on_ranks(2, [&](Rank& r) {
      ASSERT_EQ(r.state(), ncclSuccess);
      float* const x = r.device({1, 1});
      const auto start = Clock::now();
      const auto call = [&] {
        if (!message) (void)ncclAllReduce(x, x, 2, ncclFloat32, ncclSum, r.comm, r.stream);
        else if (r.rank == 0) (void)ncclSend(x, 2, ncclFloat32, 1, r.comm, r.stream);
        else (void)ncclRecv(x, 2, ncclFloat32, 0, r.comm, r.stream);
        ASSERT_EQ(r.state(), ncclSuccess);
      };
      if (r.rank == 1) std::this_thread::sleep_for(kLate);
      call();
      if (r.rank == 0) {
        EXPECT_GE(Clock::now() - start, kLate / 2) << message;
      }
      (void)r.host(x, 2);
      const auto second = Clock::now();
      if (r.rank == 1) std::this_thread::sleep_for(10 * kLate);
      call();
      if (r.rank == 0) {
        EXPECT_LT(Clock::now() - second, 5 * kLate) << message;
      }
      (void)r.host(x, 2);
    });
  }
}

TEST_P(Nccl, MovesWhatEachCollectiveSays) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    constexpr size_t kEach = 300'000;  // more than a page, and not a multiple of one
    const auto mine = static_cast<float>(r.rank);
    std::vector<float> values(2 * kEach);
    std::iota(values.begin(), values.end(), 1000 * mine);
    const auto ends = [&](const float* block) { return r.host(block, 2 * kEach); };

    float* x = r.device(values);
    (void)ncclAllGather(x + kEach * static_cast<size_t>(r.rank), x, kEach, ncclFloat32, r.comm,
                        r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    EXPECT_EQ(ends(x)[0], 0);
    EXPECT_EQ(ends(x)[2 * kEach - 1], 1000 + 2 * kEach - 1);

    x = r.device(values);
    (void)ncclReduceScatter(x, x + kEach * static_cast<size_t>(r.rank), kEach, ncclFloat32, ncclMax,
                            r.comm, r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    EXPECT_EQ(ends(x)[kEach * static_cast<size_t>(r.rank)], 1000 + mine * kEach);

    x = r.device(values);
    (void)ncclReduce(x, x, 2 * kEach, ncclFloat32, ncclAvg, 1, r.comm, r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    EXPECT_EQ(ends(x)[7], 7 + 500 * mine);

    x = r.device(values);
    (void)ncclBroadcast(x, x, 2 * kEach, ncclFloat32, 1, r.comm, r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    EXPECT_EQ(ends(x)[9], 1009);
  });
}

TEST_P(Nccl, MessagesOfAGroupMeetInAnyOrder) {
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

TEST_P(Nccl, SplitsByColorAndKey) {
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

TEST_P(Nccl, RanksThatDisagreeAreToldHow) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    float* const x = r.device({1, 2});
    (void)ncclAllReduce(x, x, r.rank == 0 ? 1 : 2, ncclFloat32, ncclSum, r.comm, r.stream);
    const std::string text = r.error();
    EXPECT_NE(text.find("AllReduce 1 float32 sum"), std::string::npos) << text;
    EXPECT_NE(text.find("AllReduce 2 float32 sum"), std::string::npos) << text;
  });
}

TEST_P(Nccl, MemoryOfAnotherDeviceIsRefused) {
  on_ranks(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    std::vector<float> host(1);
    (void)ncclAllReduce(host.data(), host.data(), 1, ncclFloat32, ncclSum, r.comm, r.stream);
    EXPECT_NE(r.error().find("do not lie in one allocation on the communicator's device"),
              std::string::npos);
  });
}

TEST_P(Nccl, TwoRanksOnOneDeviceAreRefused) {
  on_ranks(
      2,
      [](Rank& r) {
        const std::string text = r.error();
        EXPECT_NE(text.find("Duplicate GPU detected"), std::string::npos) << text;
      },
      true);
}

TEST_P(Nccl, ACallBeforeTheLastIsTakenIsAnError) {
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
TEST_P(Nccl, AnAbortEndsWhatWaits) {
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

// As with NCCL: only an abort ends it.
TEST(NcclProcesses, ADeadRankLeavesItsPeerWaiting) {
  setenv("TESSERA_EMULATED_DEVICES", "2", 1);
  setenv("NCCL_RUNTIME_CONNECT", "0", 1);
  const std::vector<int> ends = on_processes(2, [](Rank& r) {
    ASSERT_EQ(r.state(), ncclSuccess);
    float* const x = r.device({1});
    (void)ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r.comm, r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    EXPECT_EQ(r.host(x, 1)[0], 2);
    if (r.rank == 1) (void)std::raise(SIGKILL);
    (void)ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r.comm, r.stream);
    ASSERT_EQ(r.state(), ncclSuccess);
    for (const auto end = Clock::now() + std::chrono::milliseconds(100); Clock::now() < end;)
      EXPECT_EQ(cudaStreamQuery(r.stream), cudaErrorNotReady);
    EXPECT_EQ(ncclCommAbort(std::exchange(r.comm, nullptr)), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
  });
  EXPECT_EQ(ends[0], 0);
  EXPECT_TRUE(WIFSIGNALED(ends[1]) && WTERMSIG(ends[1]) == SIGKILL);
}

TEST_P(Nccl, ALateErrorComesWhileItIsPolled) {
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

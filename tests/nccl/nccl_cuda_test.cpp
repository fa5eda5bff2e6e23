// SPDX-License-Identifier: Apache-2.0
// The back end `nccl`, each rank on a device of its own: as many threads as there are devices, or
// a launcher's processes. By `./dev mpirun -n 2 build/cuda/bin/tessera_nccl_tests` several
// processes may share one GPU: each takes a host id of its own, for NCCL refuses two ranks on one
// GPU of a host.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/nccl/nccl.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/sort/sort.h"
#include "tessera/tests/support/launched_main.h"
#include "tessera/tests/support/tessera_main.h"

#include <cstdlib>
#include <numeric>

namespace tessera {
namespace {

int devices() { return Process::get().cuda().device_count(); }
bool emulated() {
  return Process::get().cuda().device_name(0).find("emulated") != std::string::npos;
}
Device device_of(World& w) { return cuda(w.rank() % devices()); }

Tensor on_gpu(const std::vector<double>& values, DType dtype = DType::f32) {
  return to_device(from_values(values, {static_cast<int64_t>(values.size())}, dtype),
                   device_of(World::current()));
}
std::vector<double> values_of(const Tensor& x) { return to_device(x, kCpu).values(); }

void on_all_ranks(const test::RankFunction& fn) {
  const Launch launch = detect_launch();
  test::on_ranks(launch.size > 1 ? launch.size : std::min(devices(), 4), fn);
}

void on_nccl(const std::function<void(World&, ProcessGroup&)>& fn) {
  on_all_ranks([&](World& w) {
    const Ref<ProcessGroup> group =
        make_nccl_group(w.group().split(0, 0, "host of nccl"), device_of(w));
    w.group().barrier()->wait();  // no rank fails while another still starts
    fn(w, *group);
  });
}

std::vector<double> ramp(int64_t n, double start) {
  std::vector<double> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), start);
  return v;
}

// The text of the error that `fn` throws.
template <class E, class F> std::string error_text(F&& fn) {
  try {
    fn();
  } catch (const E& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(NcclCuda, Reductions) {
  on_nccl([](World& w, ProcessGroup& g) {
    const int n = g.size();
    for (const DType dtype :
         {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32}) {
      const Tensor sum = on_gpu({1, 2, static_cast<double>(w.rank())}, dtype);
      g.all_reduce(sum)->wait();
      EXPECT_EQ(values_of(sum), (std::vector<double>{1.0 * n, 2.0 * n, n * (n - 1) / 2.0}))
          << dtype;
      const Tensor largest = on_gpu({static_cast<double>(w.rank())}, dtype);
      g.all_reduce(largest, ReduceOp::max)->wait();
      EXPECT_EQ(values_of(largest)[0], n - 1);
      const Tensor least = on_gpu({static_cast<double>(w.rank() + 3)}, dtype);
      g.all_reduce(least, ReduceOp::min)->wait();
      EXPECT_EQ(values_of(least)[0], 3);
    }
    const Tensor mean = on_gpu({4.0 * w.rank()});
    g.all_reduce(mean, ReduceOp::avg)->wait();
    EXPECT_EQ(values_of(mean)[0], 2.0 * (n - 1));
    const Tensor rooted = on_gpu({1});
    g.reduce(rooted, n - 1)->wait();
    EXPECT_EQ(values_of(rooted)[0], w.rank() == n - 1 ? n : 1);
  });
}

TEST(NcclCuda, UnevenForms) {
  on_nccl([](World& w, ProcessGroup& g) {
    const int n = g.size(), me = w.rank();
    Counts counts;
    for (int p = 0; p < n; ++p) counts.push_back(p == 1 ? 0 : p + 2);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t own = counts[static_cast<size_t>(me)];
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + me, int64_t{0});
    const auto start = static_cast<double>(first);
    const auto blank = [](int64_t size) {
      return on_gpu(std::vector<double>(static_cast<size_t>(size), -1));
    };
    const Tensor all = blank(total);
    g.all_gather(on_gpu(ramp(own, start)), all, counts)->wait();
    EXPECT_EQ(values_of(all), ramp(total, 0));
    const Tensor part = blank(own);
    g.reduce_scatter(on_gpu(ramp(total, 0)), part, ReduceOp::sum, counts)->wait();
    for (int64_t i = 0; i < own; ++i)
      EXPECT_EQ(values_of(part)[static_cast<size_t>(i)], n * (start + static_cast<double>(i)));
  });
}

// Ops take results by the order of streams: nobody waits on the host.
TEST(NcclCuda, ResultsFlowIntoOps) {
  on_nccl([](World&, ProcessGroup& g) {
    const double n = g.size();
    Tensor x = on_gpu({1, 2, 3});
    double expected = 1;
    for (int round = 0; round < 30; ++round) {
      x = x * 0.5;
      (void)g.all_reduce(x);
      expected *= 0.5 * n;
      if (expected > 1e3) x = x * 1e-3, expected *= 1e-3;
    }
    EXPECT_NEAR(values_of(x)[1], 2 * expected, 1e-5 * expected);
  });
}

// A poll of work that is still in flight leaves no error for the checks of other launches.
TEST(NcclCuda, SortsWhileACollectiveIsInFlight) {
  on_nccl([](World& w, ProcessGroup& g) {
    const Tensor sum = on_gpu(ramp(1 << 20, w.rank()));
    const Tensor keys = on_gpu({3, 1, 2, 0});
    (void)sort(keys);  // what it allocates is there
    for (int i = 0; i < 20; ++i) {
      const Ref<Work> work = g.all_reduce(sum);
      (void)work->test();
      EXPECT_EQ(values_of(sort(keys)[0]), (std::vector<double>{0, 1, 2, 3}));
      work->wait();
    }
  });
}

TEST(NcclCuda, SubgroupsAndSplits) {
  on_nccl([](World& w, ProcessGroup& g) {
    const int n = g.size(), me = w.rank();
    const auto turned = g.split(0, -me, "turned");
    EXPECT_EQ(turned->backend(), "nccl");
    EXPECT_EQ(turned->rank(), n - 1 - me);
    const Tensor x = on_gpu({static_cast<double>(me)});
    turned->broadcast(x, 0)->wait();
    EXPECT_EQ(values_of(x)[0], n - 1);
    const auto parity = g.split(me % 2, 0, "parity");
    const Tensor count = on_gpu({1});
    parity->all_reduce(count)->wait();
    EXPECT_EQ(values_of(count)[0], parity->size());
    EXPECT_EQ(static_cast<bool>(g.split(me == 0 ? -1 : 3)), me != 0);
  });
}

// Of each group, in the Context of the rank that made it.
TEST(NcclCuda, TellsWhatConnectingTook) {
  on_all_ranks([](World& w) {
    EXPECT_EQ(nccl_connections().communicators, 0);
    const Ref<ProcessGroup> g = make_nccl_group(w.group().split(0, 0, "host"), device_of(w));
    const NcclConnections one = nccl_connections();
    EXPECT_EQ(one.communicators, 1);
    EXPECT_GT(one.seconds, 0);
    w.group().barrier()->wait();
    (void)g->split(w.rank() % 2, 0, "parity");
    const NcclConnections two = nccl_connections();
    EXPECT_EQ(two.communicators, 2);
    EXPECT_GT(two.seconds, one.seconds);
    EXPECT_GE(one.bytes, 0);
    EXPECT_GE(two.bytes, one.bytes);
    if (!emulated()) return;  // others may work on a GPU, too
    EXPECT_EQ(one.bytes, 3 << 20);
    EXPECT_EQ(two.bytes, 6 << 20);
    w.group().barrier()->wait();
  });
}

// Tags choose; messages of one tag keep their order; what comes early is kept.
TEST(NcclCuda, TagsChooseMessages) {
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;  // nobody to send to
    constexpr int kTags = 4, kEach = 3;
    if (w.rank() == 0) {
      for (int m = 0; m < kEach; ++m)
        for (int tag = 0; tag < kTags; ++tag) (void)g.send(on_gpu({10.0 * tag + m, 1}), 1, tag);
    } else if (w.rank() == 1) {
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int m = 0; m < kEach; ++m) {
          const Tensor x = on_gpu({0, 0});
          (void)g.recv(x, 0, tag);
          EXPECT_EQ(values_of(x)[0], 10.0 * tag + m);
        }
      }
    }
    g.barrier()->wait();
  });
}

// As over the other back ends, nothing waits for what it does not need.
TEST(NcclCuda, RanksMaySendToEachOtherBeforeTheyReceive) {
  on_nccl([](World& w, ProcessGroup& g) {
    const int n = g.size(), me = w.rank();
    if (n == 1) return;
    const Tensor x = on_gpu({static_cast<double>(me)}), y = on_gpu({-1});
    const auto sent = g.send(x, (me + 1) % n);
    g.recv(y, (me + n - 1) % n)->wait();
    sent->wait();
    EXPECT_EQ(values_of(y)[0], (me + n - 1) % n);
  });
}

// Rank 1 does not join the sum before rank 0 has started to send it: by a message of the host.
TEST(NcclCuda, TheHostWaitsForNoBytesUnderWay) {
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;
    const Tensor x = on_gpu({1, 2}), y = on_gpu({0, 0}), go = zeros({1});
    g.barrier()->wait();
    if (w.rank() == 1) w.group().recv(go, 0)->wait();
    (void)g.all_reduce(x);
    if (w.rank() == 0) {
      (void)g.send(x, 1);
      (void)w.group().send(go, 1);
    } else if (w.rank() == 1) {
      (void)g.recv(y, 0);
      EXPECT_EQ(values_of(y), (std::vector<double>{1.0 * g.size(), 2.0 * g.size()}));
    }
    g.barrier()->wait();
  });
}

TEST(NcclCuda, MessagesThatDoNotFitAreAMismatch) {
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;
    const Tensor x = on_gpu(std::vector<double>(w.rank() == 0 ? 2 : 3));
    if (w.rank() == 1) {
      const std::string text = error_text<CollectiveMismatch>([&] { g.recv(x, 0)->wait(); });
      EXPECT_NE(text.find("send f32[2] to 1"), std::string::npos) << text;
      EXPECT_NE(text.find("recv f32[3] from 0"), std::string::npos) << text;
      return;
    }
    const std::string text = error_text<PeerFailed>([&] {
      if (w.rank() == 0) (void)g.send(x, 1);
      g.barrier()->wait();
    });
    EXPECT_NE(text.find("recv f32[3] from 0"), std::string::npos) << text;
  });
}

TEST(NcclCuda, RefusesWhatItCannotDo) {
  on_nccl([](World& w, ProcessGroup& g) {
    EXPECT_THROW(g.all_reduce(from_values({1}, {1})), DeviceError);
    EXPECT_THROW(g.all_reduce(empty({4}, DType::f8_e4m3, device_of(w))), DTypeError);
    const Tensor x = on_gpu({1});
    g.all_reduce(x)->wait();  // these change nothing
    EXPECT_EQ(values_of(x)[0], g.size());
  });
}

// A mesh has a group of the host and one of devices; the tensor's device chooses.
TEST(NcclCuda, AMeshMovesTensorsOfHostAndDevice) {
  on_all_ranks([](World& w) {
    const int n = w.size();
    const Mesh mesh = Mesh::make({{"dp", n}});
    for (const Device device : {kCpu, device_of(w), kCpu}) {
      const Tensor whole = to_device(from_values(ramp(int64_t{5} * n + 1, 0), {5 * n + 1}), device);
      const Tensor x = distribute(whole, Layout::of(mesh, {Shard(0)}));
      EXPECT_EQ(local(x).device(), device);
      EXPECT_EQ(values_of(full_tensor(x * 2)), (values_of(whole * 2)));
    }
    EXPECT_EQ(mesh.group(0).backend() == "nccl", false);
  });
}

TEST(NcclCuda, TwoRanksOnOneDeviceAreNamed) {
  if (devices() < 2) return;  // as many ranks as devices: nobody shares
  run_ranks(2, [](World& w) {
    const std::string text =
        error_text<LaunchError>([&] { make_nccl_group(Ref<ProcessGroup>(&w.group()), cuda(1)); });
    EXPECT_NE(text.find("ranks 0 (cuda:1) and 1 (cuda:1)"), std::string::npos) << text;
    EXPECT_NE(text.find("--device cuda"), std::string::npos) << text;
  });
}

TEST(NcclCuda, SignaturesAreComparedWhereAsked) {
  setenv("TESSERA_NCCL_CHECK", "1", 1);
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;
    const Tensor x = on_gpu(ramp(w.rank() == 0 ? 2 : 3, 0));
    const std::string text = error_text<CollectiveMismatch>([&] { g.all_reduce(x)->wait(); });
    EXPECT_NE(text.find("all_reduce sum f32[2]"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce sum f32[3]"), std::string::npos) << text;
  });
  unsetenv("TESSERA_NCCL_CHECK");
}

TEST(NcclCuda, AnAbortEndsAllRanks) {
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;
    const Tensor x = on_gpu({1});
    if (w.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      g.abort("the test says so");
    }
    const std::string text = error_text<PeerFailed>([&] { g.all_reduce(x)->wait(); });
    EXPECT_NE(text.find("the test says so"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  });
}

TEST(NcclCuda, AStallEndsInATimeoutThatNamesTheRank) {
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;  // nobody else to stall
    g.set_timeout(std::chrono::milliseconds(600));
    const Tensor x = on_gpu({1});
    if (w.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    try {
      g.all_reduce(x)->wait();
      ADD_FAILURE() << "rank 1 was late";
    } catch (const CollectiveTimeout& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1"), std::string::npos) << e.what();
    } catch (const PeerFailed&) {
    }
  });
}

// The rank's thread is in CUDA, where nothing polls: the watchdog gives up, and the device goes on.
TEST(NcclCuda, AWatchdogEndsWorkThatNobodyWaitsFor) {
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;
    g.set_timeout(std::chrono::milliseconds(400));
    const Tensor x = on_gpu({1});
    if (w.rank() == 0) {
      (void)g.all_reduce(x);
      const Tensor y = x + 1.0;
      Process::get().cuda().synchronize(device_of(w).index);
      const std::string text = error_text<CollectiveTimeout>([&] { g.barrier()->wait(); });
      EXPECT_NE(text.find("all_reduce sum f32[1] #1"), std::string::npos) << text;
      EXPECT_NE(text.find("nobody waited"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("flight record"), std::string::npos) << text;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      const std::string text = error_text<PeerFailed>([&] { g.all_reduce(x)->wait(); });
      EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
    }
  });
}

// Two ranks connect by their first message, which takes as long as the other takes to come: that is
// time of the start, not of the operation.
TEST(NcclCuda, ARankMayBeLateForTheFirstMessage) {
  on_nccl([](World& w, ProcessGroup& g) {
    if (g.size() == 1) return;
    g.set_timeout(std::chrono::milliseconds(400));
    const auto late = [&] {
      if (w.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    };
    const Tensor x = on_gpu({static_cast<double>(w.rank())});
    late();
    if (w.rank() == 0) g.send(x, 1)->wait();
    if (w.rank() == 1) {
      g.recv(x, 0)->wait();
      EXPECT_EQ(values_of(x)[0], 0);
    }
    g.set_timeout(std::chrono::seconds(60));
    w.group().barrier()->wait();
    g.set_timeout(std::chrono::milliseconds(400));
    late();
    const int n = g.size();
    const Tensor in = on_gpu(ramp(n, n * w.rank())), out = on_gpu(ramp(n, 0));
    g.all_to_all(in, out)->wait();
    EXPECT_EQ(values_of(out)[static_cast<size_t>(n - 1)], n * (n - 1) + w.rank());
  });
}

TEST(NcclCuda, AFirstMessageThatNobodyTakesNamesItsTime) {
  on_all_ranks([](World& w) {
    if (w.size() == 1) return;
    constexpr auto kConnect = std::chrono::milliseconds(2000);
    w.group().set_timeout(kConnect);
    const Ref<ProcessGroup> g = make_nccl_group(w.group().split(0, 0, "host"), device_of(w));
    w.group().barrier()->wait();
    g->set_timeout(std::chrono::milliseconds(100));
    if (w.rank() == 0) {
      const std::string text =
          error_text<CollectiveTimeout>([&] { g->send(on_gpu({1}), 1)->wait(); });
      EXPECT_NE(text.find("could not connect within 2000 ms"), std::string::npos) << text;
    } else {
      std::this_thread::sleep_for(kConnect + std::chrono::milliseconds(500));
      (void)error_text<PeerFailed>([&] { g->barrier()->wait(); });
    }
  });
}

// An error that NCCL reports some time after the call.
TEST(NcclCuda, ALateErrorEndsAllRanks) {
  if (!emulated() || devices() < 2) return;  // real links do not break at a test's wish
  setenv("TESSERA_EMULATED_NCCL_ERROR", "1:2", 1);
  on_nccl([](World& w, ProcessGroup& g) {
    const Tensor x = on_gpu({1});
    g.all_reduce(x)->wait();
    EXPECT_EQ(values_of(x)[0], g.size());
    w.group().barrier()->wait();  // all have the first sum
    const std::string text = error_text<PeerFailed>([&] { g.all_reduce(x)->wait(); });
    EXPECT_NE(text.find("the link of rank 1 broke"), std::string::npos) << w.rank() << ": " << text;
  });
  unsetenv("TESSERA_EMULATED_NCCL_ERROR");
}

// The group's operations leave the thread's current device as it was.
TEST(NcclCuda, TheCurrentDeviceStays) {
  on_nccl([](World& w, ProcessGroup& g) {
    for (int d = 0; d < devices(); ++d) {
      const Tensor elsewhere = to_device(from_values({3}, {1}), cuda(d));
      const Tensor x = on_gpu({1});
      g.all_reduce(x)->wait();
      EXPECT_EQ(values_of(elsewhere * 2)[0], 6) << w.rank();
      EXPECT_EQ(values_of(x)[0], g.size());
    }
  });
}

// No GPU needed: the library links and opens, or the error says how to get it.
TEST(NcclLibrary, OpensOrSaysWhyNot) {
  test::on_ranks(1, [](World& w) {
    EXPECT_THROW(make_nccl_group(Ref<ProcessGroup>(&w.group()), kCpu), DeviceError);
    if (Process::get().cuda_available()) return;
    try {
      (void)make_nccl_group(Ref<ProcessGroup>(&w.group()), cuda(0));
      ADD_FAILURE() << "there is no GPU here";
    } catch (const LaunchError& e) {
      const std::string text = e.what();
      EXPECT_TRUE(text.find("NCCL") != std::string::npos || text.find("CUDA") != std::string::npos)
          << text;
    } catch (const DeviceError& e) {
      EXPECT_NE(std::string(e.what()).find("CUDA cannot be used"), std::string::npos) << e.what();
    } catch (const PeerFailed& e) {
      ADD_FAILURE() << e.what();
    }
  });
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const auto launch = tessera::detect_launch();
  if (launch.size > 1)
    setenv("NCCL_HOSTID", tessera::concat("tessera-rank-", launch.rank).c_str(), 0);
  if (std::getenv("TESSERA_EMULATED_DEVICES")) setenv("TESSERA_EMULATED_DEVICES", "4", 1);
  if (argc > 1 && std::string_view(argv[1]) == "--as-tessera")
    return tessera::test::tessera_main(argc, argv);
  return tessera::test::launched_main(argc, argv);
}

// SPDX-License-Identifier: Apache-2.0
// The back end `nccl`. Alone it is a group of one rank; by
// `./dev mpirun -n 2 build/cuda/bin/tessera_nccl_tests` several ranks share one GPU: each process
// takes a host id of its own, for NCCL refuses two ranks on one GPU of one host.
#include "tessera/core/process.h"
#include "tessera/dist/nccl/nccl.h"
#include "tessera/tests/support/launched_main.h"

#include <cstdlib>
#include <numeric>

namespace tessera {
namespace {

Tensor on_gpu(const std::vector<double>& values, DType dtype = DType::f32) {
  return to_device(from_values(values, {static_cast<int64_t>(values.size())}, dtype), cuda(0));
}
std::vector<double> values_of(const Tensor& x) { return to_device(x, kCpu).values(); }

// On every rank there is: one, or the launcher's processes.
void on_nccl(const std::function<void(World&, ProcessGroup&)>& fn) {
  const Launch launch = detect_launch();
  test::on_ranks(launch.size, [&](World& w) {
    const Ref<ProcessGroup> group = make_nccl_group(w.group().split(0, 0, "host of nccl"), cuda(0));
    fn(w, *group);
  });
}

std::vector<double> ramp(int64_t n, double start) {
  std::vector<double> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), start);
  return v;
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

TEST(NcclCuda, EvenForms) {
  on_nccl([](World& w, ProcessGroup& g) {
    const int n = g.size(), me = w.rank();
    const Tensor all = on_gpu(std::vector<double>(static_cast<size_t>(3 * n), -1));
    g.all_gather(on_gpu(ramp(3, 3 * me)), all)->wait();
    EXPECT_EQ(values_of(all), ramp(3 * n, 0));
    const Tensor part = on_gpu({0, 0});
    g.reduce_scatter(on_gpu(ramp(2 * n, 0)), part)->wait();
    EXPECT_EQ(values_of(part), (std::vector<double>{2.0 * me * n, (2.0 * me + 1) * n}));
    const Tensor x = on_gpu({me == 0 ? 5.0 : 0.0});
    g.broadcast(x, 0)->wait();
    EXPECT_EQ(values_of(x)[0], 5);
    const Tensor swapped = on_gpu(std::vector<double>(static_cast<size_t>(n), -1));
    g.all_to_all(on_gpu(ramp(n, 10 * me)), swapped)->wait();
    for (int p = 0; p < n; ++p) EXPECT_EQ(values_of(swapped)[static_cast<size_t>(p)], 10 * p + me);
    g.barrier()->wait();
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
    const Tensor gathered = blank(me == 0 ? total : 0);
    g.gather(on_gpu(ramp(own, start)), me == 0 ? gathered : Tensor(), 0, counts)->wait();
    if (me == 0) {
      EXPECT_EQ(values_of(gathered), ramp(total, 0));
    }
    const Tensor mine = blank(own);
    g.scatter(me == 0 ? on_gpu(ramp(total, 0)) : Tensor(), mine, 0, counts)->wait();
    EXPECT_EQ(values_of(mine), ramp(own, start));
    const Tensor part = blank(own);
    g.reduce_scatter(on_gpu(ramp(total, 0)), part, ReduceOp::sum, counts)->wait();
    for (int64_t i = 0; i < own; ++i)
      EXPECT_EQ(values_of(part)[static_cast<size_t>(i)], n * (start + static_cast<double>(i)));
  });
}

TEST(NcclCuda, MessagesAndSubgroups) {
  on_nccl([](World& w, ProcessGroup& g) {
    const int n = g.size(), me = w.rank();
    if (n > 1) {
      const Tensor x = on_gpu({me == 0 ? 7.0 : 0.0});
      if (me == 0) g.send(x, 1)->wait();
      else if (me == 1) g.recv(x, 0)->wait();
      if (me < 2) {
        EXPECT_EQ(values_of(x)[0], 7);
      }
    }
    const auto alone = g.split(me, 0, "alone");
    const Tensor x = on_gpu({2});
    alone->all_reduce(x)->wait();
    EXPECT_EQ(values_of(x)[0], 2);
  });
}

TEST(NcclCuda, RefusesWhatItCannotDo) {
  on_nccl([](World&, ProcessGroup& g) {
    EXPECT_THROW(g.all_reduce(from_values({1}, {1})), DeviceError);
    EXPECT_THROW(g.all_reduce(empty({4}, DType::f8_e4m3, cuda(0))), DTypeError);
  });
}

TEST(NcclCuda, AStallEndsInATimeoutThatNamesTheRank) {
  if (detect_launch().size < 2) return;  // nobody else to stall
  on_nccl([](World& w, ProcessGroup& g) {
    g.set_timeout(std::chrono::milliseconds(1000));
    const Tensor x = on_gpu({1});
    if (w.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    try {
      g.all_reduce(x)->wait();
      ADD_FAILURE() << "rank 1 was late";
    } catch (const CollectiveTimeout& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1"), std::string::npos) << e.what();
    } catch (const PeerFailed&) {
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
  return tessera::test::launched_main(argc, argv);
}

// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/exchange_rows.h"

#include "tessera/autograd/checkpoint.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera {
namespace {

using test::on_ranks;
using trial::error_of;

// Rows that rank `from` sends to rank `to`: some send nothing, and rank 2 gets nothing.
int64_t count(int from, int to) { return to == 2 || from == 1 ? 0 : from + 2 * to + 1; }

struct Plan {
  std::vector<int64_t> send, receive;
  Plan(int rank, int ranks) {
    for (int r = 0; r < ranks; ++r) {
      send.push_back(count(rank, r));
      receive.push_back(count(r, rank));
    }
  }
  static int64_t total(const std::vector<int64_t>& c) {
    return std::accumulate(c.begin(), c.end(), int64_t{0});
  }
};

// Row i of what `from` sends `to` has this value.
double value(int from, int to, int64_t i) { return 100 * from + 10 * to + static_cast<double>(i); }

std::vector<double> sent_by(int rank, int ranks, int64_t width) {
  std::vector<double> v;
  for (int to = 0; to < ranks; ++to) {
    for (int64_t i = 0; i < count(rank, to) * width; ++i) v.push_back(value(rank, to, i));
  }
  return v;
}

TEST(ExchangeRows, EachRankGetsItsRowsAndGradientsReturn) {
  on_ranks(4, [](World& world) {
    const Mesh mesh = Mesh::make({{"ep", 4}});
    const Plan plan(world.rank(), 4);
    const int64_t sent = Plan::total(plan.send), received = Plan::total(plan.receive);
    for (const int64_t spare : {0, 2}) {
      auto values = sent_by(world.rank(), 4, 3);
      values.resize(static_cast<size_t>((sent + spare) * 3), 7);  // rows that nobody gets
      Tensor x = from_values(values, {sent + spare, 3}, DType::f64).set_requires_grad();
      const CommTrace trace;
      const Tensor y = exchange_rows(x, mesh, "ep", plan.send, plan.receive, received + spare);
      std::vector<double> want;
      for (int from = 0; from < 4; ++from) {
        for (int64_t i = 0; i < count(from, world.rank()) * 3; ++i)
          want.push_back(value(from, world.rank(), i));
      }
      want.resize(static_cast<size_t>((received + spare) * 3), 0);
      EXPECT_EQ(y.values(), want);
      backward(sum(y * y));
      for (int64_t i = 0; i < x.numel(); ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(x.grad().values()[at], i < sent * 3 ? 2 * values[at] : 0);
      }
      EXPECT_EQ(trace.count("all_to_all", "forward"), 1);
      EXPECT_EQ(trace.count("all_to_all", "grad"), 1);
      EXPECT_EQ(trace.bytes("all_to_all", "forward"), std::max(sent, received) * 3 * 8);
    }
  });
}

TEST(ExchangeRows, CheckpointsKeepItOrDoItAgain) {
  on_ranks(2, [](World& world) {
    const Mesh mesh = Mesh::make({{"ep", 2}});
    const Plan plan(world.rank(), 2);
    const int64_t rows = Plan::total(plan.send);
    for (const bool kept : {false, true}) {
      Tensor x = trial::numbers({rows, 3}, world.rank()).set_requires_grad();
      CheckpointOptions options;
      if (kept) options.keep = keep_every_second_matmul();
      const CommTrace trace;
      const Tensor y = checkpoint(
          [&](Tensors in) {
            const Tensor z = exchange_rows(exp(in[0]), mesh, "ep", plan.send, plan.receive);
            return TensorList{z * z};
          },
          {x}, options)[0];
      backward(sum(y));
      EXPECT_EQ(trace.count("all_to_all"), kept ? 2 : 3);
      trial::expect_same(x.grad(), exp(x.detach() * 2.0) * 2.0);
    }
  });
}

TEST(ExchangeRows, CountsThatDoNotFitAreNamed) {
  on_ranks(2, [](World&) {
    const Mesh mesh = Mesh::make({{"ep", 2}});
    const Tensor x = trial::numbers({3, 2});
    const auto error = [&](std::vector<int64_t> send, std::vector<int64_t> receive, int64_t rows) {
      return error_of<ShapeError>([&] { (void)exchange_rows(x, mesh, "ep", send, receive, rows); });
    };
    EXPECT_NE(error({2, 2}, {1, 1}, -1).find("4 rows to send of 3"), std::string::npos);
    EXPECT_NE(error({1, 1}, {1, 1}, 1).find("2 to receive into 1"), std::string::npos);
    EXPECT_NE(error({1}, {1, 1}, -1).find("one for each of 2 ranks"), std::string::npos);
    EXPECT_NE(error({4, -1}, {1, 1}, -1).find("4,-1"), std::string::npos);
    EXPECT_EQ(error_of<ShapeError>([&] {
                (void)exchange_rows(tensor(2.0), mesh, "ep", {1, 1}, {1, 1});
              }),
              "[exchange_rows] x f32[] has no rows: expected (M, ...)");
    EXPECT_THROW((void)exchange_rows(x, mesh, "tp", {1, 1}, {1, 1}), LayoutError);
    const Tensor cut = distribute(x, Layout::of(mesh, {Shard(0)}));
    EXPECT_NE(error_of<LayoutError>([&] {
                (void)exchange_rows(cut, mesh, "ep", {1, 1}, {1, 1});
              }).find("one rank's own rows"),
              std::string::npos);
  });
}

TEST(ExchangeRows, RanksThatDisagreeOnCountsAreTold) {
  EXPECT_THROW(
      on_ranks(2,
               [](World& world) {
                 const Mesh mesh = Mesh::make({{"ep", 2}});
                 // Each gets more than it expects, so that no rank goes on alone.
                 const std::vector<int64_t> send =
                     world.rank() == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 1};
                 const Tensor y = exchange_rows(trial::numbers({4, 2}), mesh, "ep", send, {1, 1});
                 (void)y.values();
               }),
      CollectiveMismatch);
}

}  // namespace
}  // namespace tessera

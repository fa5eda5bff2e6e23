// SPDX-License-Identifier: Apache-2.0
// Processes that a launcher starts, each with a device of its own, train a model over NCCL, whose
// parameters fully_shard divides among them, or whose layers are the stages of a pipeline: the
// losses are those of the CPU.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/schedules/schedule.h"
#include "tessera/tests/device/counts.h"
#include "tessera/tests/support/logged_losses.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/run/trainer.h"
#include "tessera/train/step/run_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>
#include <utility>

namespace tessera::train {
namespace {

// A port that nobody listens at, from the system: the shared library shows no sockets of its own.
int free_port() {
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(s, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(s, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(s);
  return ntohs(address.sin_port);
}

class TrainNcclCuda : public TinyRunTest {
 protected:
  // The losses of three steps in `ranks` processes.
  [[nodiscard]] std::vector<double> losses(const std::string& device, int ranks,
                                           const Words& more) const {
    const std::string port = concat("MASTER_PORT=", free_port());
    const Words words =
        train(device, joined({"--device", device, "--training.steps", "3", "--checkpoint.enable",
                              "false", "--metrics.measure_ceiling", "false", "--overwrite", "true"},
                             more));
    const auto log = [&](int rank) { return path(concat(device, rank, ".log")); };
    std::vector<std::unique_ptr<Child>> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const Words own{concat("RANK=", rank),       concat("WORLD_SIZE=", ranks),
                      concat("LOCAL_RANK=", rank), concat("LOCAL_WORLD_SIZE=", ranks),
                      "MASTER_ADDR=127.0.0.1",     port};
      all.push_back(std::make_unique<Child>(words, log(rank), own));
    }
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(all[static_cast<size_t>(rank)]->wait(), 0) << io::read_file(log(rank));
    return test::logged_losses(path(device));
  }
  // The actions that compute, as the trace of the fifth step has them.
  [[nodiscard]] std::vector<std::string> order_of(const std::string& run, int rank) const {
    std::istringstream trace(io::read_file(
        path(concat(run, "/profiling/traces/iteration_5/rank", rank, "_trace.json"))));
    std::vector<std::string> order;
    int ops = 0;
    for (std::string line; std::getline(trace, line);) {
      const auto is = [&](std::string_view category) {
        return line.find(concat("\"cat\":\"", category, '"')) != std::string::npos;
      };
      ops += is("op") || is("in_place");
      if (!is("phase")) continue;
      const size_t name = line.find("\"name\":\"") + 8;
      const std::string event = line.substr(name, line.find('"', name) - name);
      if (rank == 0) std::cout << event << ": " << std::exchange(ops, 0) << " ops\n";
      try {
        if (computes(parse_action(event).kind)) order.push_back(event);
      } catch (const ValueError&) {  // another part of a step
      }
    }
    return order;
  }
  void expect_losses_of_the_cpu(int ranks, const Words& more) const {
    const std::vector<double> expected = losses("cpu", ranks, more),
                              found = losses("cuda", ranks, more);
    ASSERT_EQ(expected.size(), 3u);
    ASSERT_EQ(found.size(), 3u);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-5 * std::abs(expected[i])) << "step " << i + 1;
  }
};

TEST_F(TrainNcclCuda, FullyShardHasTheLossesOfTheCpu) {
  const int ranks = std::min(Process::get().cuda().device_count(), 2);
  expect_losses_of_the_cpu(
      ranks, {"--training.local_batch_size", "1", "--parallelism.data_parallel_shard_degree",
              std::to_string(ranks)});
}

TEST_F(TrainNcclCuda, APipelineHasTheLossesOfTheCpu) {
  if (Process::get().cuda().device_count() < 2) GTEST_SKIP() << "fewer than 2 devices";
  for (const std::string schedule :
       {"1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    expect_losses_of_the_cpu(
        2, {"--training.local_batch_size", "4", "--training.mixed_precision_param", "float32",
            "--model.n_layers", "4", "--parallelism.pipeline_parallel_degree", "2",
            "--parallelism.pipeline_parallel_schedule", schedule});
  }
}

// The host waits for a device in logged steps alone, and gives it the actions in their order. Rank
// 0's order is printed, with the ops of each action.
TEST_F(TrainNcclCuda, APipelineGivesItsDevicesWorkWithoutAWait) {
  if (Process::get().cuda().device_count() < 2) GTEST_SKIP() << "fewer than 2 devices";
  for (const std::string schedule : {"1F1B", "ZBVZeroBubble"}) {
    SCOPED_TRACE(schedule);
    Words words = train(schedule, {"--device",
                                   "cuda",
                                   "--training.steps",
                                   "5",
                                   "--checkpoint.enable",
                                   "false",
                                   "--metrics.measure_ceiling",
                                   "false",
                                   "--metrics.log_freq",
                                   "100",
                                   "--training.local_batch_size",
                                   "4",
                                   "--model.n_layers",
                                   "4",
                                   "--parallelism.pipeline_parallel_degree",
                                   "2",
                                   "--parallelism.pipeline_parallel_schedule",
                                   schedule,
                                   "--profiler.enable_profiling",
                                   "--profiler.profile_freq",
                                   "5",
                                   "--profiler.profiler_warmup",
                                   "0"});
    words.erase(words.begin());
    const Config c = parse_config(words);
    run_ranks(
        2,
        [&](World& world) {
          Trainer trainer(c);
          const auto steps = [&](int n) {
            world.group().barrier()->wait();
            const int64_t before = test::device_counts().waits;
            for (int i = 0; i < n; ++i) trainer.advance();
            world.group().barrier()->wait();
            return test::device_counts().waits - before;
          };
          (void)steps(2);
          EXPECT_EQ(steps(2), 0) << "rank " << world.rank();
          (void)steps(1);
          trainer.settle();
        },
        world_options(c));
    const PipelineSchedule made = c.parallelism.schedule(schedule == "1F1B" ? 2 : 4, 4);
    for (const int rank : {0, 1}) {
      std::vector<std::string> expected;
      for (const Action& action : made.ranks[static_cast<size_t>(rank)])
        if (computes(action.kind)) expected.push_back(text(action));
      EXPECT_EQ(order_of(schedule, rank), expected) << "rank " << rank;
    }
  }
}

// Once, after the first step, in which the last communicators are made; nothing where ranks need
// none.
TEST_F(TrainNcclCuda, TellsWhatConnectingTook) {
  if (Process::get().cuda().device_count() < 2) GTEST_SKIP() << "fewer than 2 devices";
  for (const std::string device : {"cpu", "cuda"}) {
    ASSERT_EQ(
        run(train(device, {"--device", device, "--ranks", "2", "--training.steps", "2",
                           "--checkpoint.enable", "false", "--metrics.measure_ceiling", "false"})),
        0)
        << err_.str();
    const std::string text = out_.str();
    const size_t at = text.find("NCCL: ");
    ASSERT_EQ(at != text.npos, device == "cuda") << text;
    if (device == "cpu") continue;
    int communicators = 0;
    double seconds = 0, memory = 0;
    EXPECT_EQ(std::sscanf(text.c_str() + at,
                          "NCCL: %d communicators connected in %lf s, about %lf MiB of device",
                          &communicators, &seconds, &memory),
              3)
        << text;
    EXPECT_GT(communicators, 1);
    EXPECT_GT(memory, 1);
    EXPECT_EQ(text.find("NCCL: ", at + 1), text.npos) << text;
  }
}

}  // namespace
}  // namespace tessera::train

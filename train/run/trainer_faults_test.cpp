// SPDX-License-Identifier: Apache-2.0
// A rank that fails, comes late, is stopped or killed at any op of a step, on every kind of mesh:
// all others end in a typed error that names it, within their deadline and a second, and the run
// goes on from its last checkpoint. By default a part of the injections, chosen by
// TESSERA_TEST_SEED; all with TESSERA_TEST_FULL=1.
#include "tessera/tests/support/trainer_faults.h"

#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/free_port.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/checkpoint/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

struct MeshCase {
  std::string name;
  int ranks;
  Words words;
  bool pipeline = false;
};

// Four micro-batches.
MeshCase pipeline(const std::string& name, int ranks, const std::string& schedule, int degree,
                  const Words& more = {}) {
  return {name, ranks,
          joined({"--parallelism.pipeline_parallel_degree", std::to_string(degree),
                  "--parallelism.pipeline_parallel_schedule", schedule,
                  "--training.local_batch_size", "4", "--model.n_layers", "4"},
                 more),
          true};
}

const std::vector<MeshCase>& meshes() {
  static const std::vector<MeshCase> all{
      {"fsdp", 3, {}},
      {"replicate", 3, {"--parallelism.data_parallel_replicate_degree", "3"}},
      {"hsdp", 4, {"--parallelism.data_parallel_replicate_degree", "2"}},
      {"tp", 2, {"--parallelism.tensor_parallel_degree", "2"}},
      {"fsdp x tp", 4, {"--parallelism.tensor_parallel_degree", "2"}},
      {"cp by ring",
       3,
       {"--parallelism.context_parallel_degree", "3",
        "--parallelism.context_parallel_rotate_method", "alltoall"}},
      {"fsdp x cp by all_gather", 4, {"--parallelism.context_parallel_degree", "2"}},
      {"fsdp x cp by ulysses",
       4,
       {"--parallelism.context_parallel_degree", "2",
        "--parallelism.context_parallel_ulysses_degree", "2"}},
      pipeline("pp by 1F1B", 4, "1F1B", 4),
      pipeline("pp by GPipe", 3, "GPipe", 3),
      pipeline("pp by Interleaved1F1B", 2, "Interleaved1F1B", 2),
      pipeline("pp by InterleavedZeroBubble", 2, "InterleavedZeroBubble", 2),
      pipeline("pp by ZBVZeroBubble", 2, "ZBVZeroBubble", 2),
      pipeline("pp by DualPipeV", 2, "DualPipeV", 2),
      pipeline("pp x fsdp", 4, "1F1B", 2),
      pipeline("pp x tp", 4, "LoopedBFS", 2, {"--parallelism.tensor_parallel_degree", "2"})};
  return all;
}

struct Injection {
  const MeshCase* mesh;
  TrainerFault fault;
  bool messages = false;  // processes: no shared memory
  [[nodiscard]] std::string text() const {
    return concat(mesh->name, messages ? " by messages, " : ", ", fault.text());
  }
};

// Every mesh (all pipelines, or all others), phase and fault, some times over; or, by default,
// `some` of them.
std::vector<Injection> injections(bool pipelines, std::initializer_list<OpFault> faults, int times,
                                  size_t some) {
  const char* text = std::getenv("TESSERA_TEST_SEED");
  const auto seed = static_cast<uint64_t>(text ? std::atoll(text) : 1);
  test::Dice dice(seed);
  std::vector<Injection> all;
  for (int i = 0; i < times; ++i) {
    for (const MeshCase& mesh : meshes()) {
      if (mesh.pipeline != pipelines) continue;
      for (const Phase phase :
           {Phase::forward, Phase::backward, pipelines ? Phase::message : Phase::update}) {
        for (const OpFault fault : faults) {
          all.push_back({&mesh,
                         {.fault = fault,
                          .phase = phase,
                          .place = static_cast<double>(dice.below(1000)) / 1000,
                          .step = 2 + static_cast<int>(dice.below(2)),
                          .rank = static_cast<int>(dice.below(mesh.ranks))},
                         dice.below(2) == 1});
        }
      }
    }
  }
  if (test::long_form()) return all;
  std::cout << some << " of " << all.size() << " injections, TESSERA_TEST_SEED=" << seed << '\n';
  dice.shuffle(all);
  all.resize(some);
  return all;
}

struct Counts {
  std::mutex mutex;
  std::map<std::string, int> of;
  int64_t slowest = 0;  // from a fault to the end of a survivor
  int survivors = 0;
  void add(const Injection& in, int64_t after) {
    const std::lock_guard guard(mutex);
    ++of[concat(kOpFaultNames[static_cast<size_t>(in.fault.fault)], " in ",
                kPhaseNames[static_cast<size_t>(in.fault.phase)])];
    slowest = std::max(slowest, after);
    ++survivors;
  }
  void print(std::string_view what, size_t count) const {
    for (const auto& [name, n] : of) std::cout << n << " survivors of " << name << '\n';
    std::cout << count << " injections on " << what << ", " << survivors
              << " survivors, the slowest ended " << slowest << " ms after its fault\n";
  }
};

void inject_into_threads(const Injection& in, const Config& config, Counts& counts);
// Whether every rank ended as it should. `deadline` is that of the words.
void inject_into_processes(const Injection& in, const Words& words, const std::string& base,
                           std::chrono::milliseconds deadline, Counts& counts);

class TrainerFaults : public TinyRunTest {
 protected:
  // Steps without end, unless `more` says otherwise.
  [[nodiscard]] Words words(const std::string& dump, const MeshCase& mesh,
                            const Words& more = {}) const {
    return train(dump, joined(joined({"--training.steps", "1000000", "--lr_scheduler.decay_ratio",
                                      "0", "--metrics.log_freq", "1000000", "--checkpoint.enable",
                                      "false", "--comm.init_timeout_seconds", "20",
                                      "--comm.train_timeout_seconds", "2"},
                                     mesh.words),
                              more));
  }
  void among_threads(const std::vector<Injection>& all) const {
    Counts counts;
    for (size_t i = 0; i < all.size(); ++i) {
      const Words given = words(concat('t', i), *all[i].mesh);
      inject_into_threads(all[i], parse_config(std::span(given).subspan(1)), counts);
    }
    counts.print("threads", all.size());
  }
  void among_processes(const std::vector<Injection>& all) const {
    Counts counts;
    std::atomic<size_t> next{0};
    std::vector<std::thread> workers;  // most injections wait, so some run at once
    for (int i = 0; i < 3; ++i) {
      workers.emplace_back([&] {
        for (size_t j = next++; j < all.size(); j = next++) {
          const std::string dump = concat('p', j);
          inject_into_processes(all[j], words(dump, *all[j].mesh), path(dump), 2s, counts);
        }
      });
    }
    for (auto& worker : workers) worker.join();
    counts.print("processes", all.size());
  }
};

// --- Ranks as threads ---------------------------------------------------------------------------

struct Ended {
  std::string kind, text;
  int64_t at = 0;
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr auto kDeadline = 5000ms;
#else
constexpr auto kDeadline = 1000ms;
#endif

void inject_into_threads(const Injection& in, const Config& config, Counts& counts) {
  WorldOptions options = world_options(config);
  options.train_timeout = kDeadline;
  TrainerFault fault = in.fault;
  fault.late = kDeadline + 1200ms;
  std::vector<Ended> ends(static_cast<size_t>(in.mesh->ranks));
  std::atomic<int64_t> happened{0};
  const auto on_rank = [&](World& world) {
    try {
      Trainer trainer(config);
      std::optional<FaultAtOp> at;
      if (world.rank() == fault.rank) at.emplace(fault, [&] { happened = clock_ms(); });
      trainer.run();
    } catch (const Error& e) {
      ends[static_cast<size_t>(world.rank())] = {std::string(e.kind()), e.what(), clock_ms()};
      throw;
    }
  };
  EXPECT_THROW(run_ranks(in.mesh->ranks, on_rank, options), Error) << in.text();
  const bool late = fault.fault == OpFault::late;
  for (int r = 0; r < in.mesh->ranks; ++r) {
    const Ended& end = ends[static_cast<size_t>(r)];
    // Of a group without the late rank, and where that one comes back: another's timeout.
    EXPECT_TRUE(end.kind == (r == fault.rank && !late ? "DataError" : "PeerFailed") ||
                (late && end.kind == "CollectiveTimeout"))
        << in.text() << ", rank " << r << ": " << end.kind << ": " << end.text;
    if (r == fault.rank) continue;
    EXPECT_NE(end.text.find(concat("rank ", fault.rank)), std::string::npos)
        << in.text() << ", rank " << r << " does not name the culprit: " << end.text;
    EXPECT_LT(end.at - happened, (kDeadline + 1000ms).count()) << in.text() << ", rank " << r;
    counts.add(in, end.at - happened);
  }
}

TEST_F(TrainerFaults, AmongThreadsEveryRankEndsInTime) {
  among_threads(injections(false, {OpFault::throws, OpFault::late}, 4, 6));
}
TEST_F(TrainerFaults, AmongThreadsEveryRankOfAPipelineEndsInTime) {
  among_threads(injections(true, {OpFault::throws, OpFault::late}, 1, 4));
}

TEST_F(TrainerFaults, TheFlightRecordKeepsTheLatestCollectives) {
  for (const size_t entries : {0, 7}) {
    const Config c = config(concat('f', entries), {"--comm.trace_buf_size", std::to_string(entries),
                                                   "--checkpoint.enable", "false"});
    run_ranks(2, [&](World& world) {
      Trainer trainer(c);
      trainer.step();
      const FlightRecorder& recorder = world.group().recorder();
      EXPECT_GT(recorder.count(), 20u);
      uint64_t first = 0;
      EXPECT_EQ(recorder.ended_since(first).size(), entries);
    });
  }
}

// --- Ranks as processes -------------------------------------------------------------------------

// The ranks of one run, at most one of them with a fault.
class Processes {
 public:
  Processes(const Words& words, int ranks, const std::string& base, bool messages,
            const TrainerFault* fault = nullptr)
      : base_(base) {
    const int port = test::free_port();
    for (int r = 0; r < ranks; ++r) {
      Words variables{concat("RANK=", r), concat("WORLD_SIZE=", ranks), "MASTER_ADDR=localhost",
                      concat("MASTER_PORT=", port),
                      concat("TESSERA_TRANSPORT=", messages ? "messages" : "shared")};
      if (fault && fault->rank == r)
        variables.push_back(concat(kFaultVariable, '=', fault->packed()));
      children_.push_back(
          std::make_unique<Child>(words, out(r), variables, std::string(), errors(r)));
    }
    ended_.resize(static_cast<size_t>(ranks));
  }

  /// Until all but `without` have ended (-1: all); false after a minute.
  bool wait(int without) {
    const int64_t limit = clock_ms() + 60'000;
    while (clock_ms() < limit) {
      bool all = true;
      for (int r = 0; r < size(); ++r) {
        if (ended_at(r) == 0 && !children_[static_cast<size_t>(r)]->running())
          ended_[static_cast<size_t>(r)] = clock_ms();
        all = all && (ended_at(r) != 0 || r == without);
      }
      if (all) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }
  [[nodiscard]] int size() const { return static_cast<int>(children_.size()); }
  [[nodiscard]] int64_t ended_at(int r) const { return ended_[static_cast<size_t>(r)]; }
  int status(int r) { return children_[static_cast<size_t>(r)]->wait(); }
  [[nodiscard]] std::string out(int r) const { return concat(base_, ".out", r); }
  [[nodiscard]] std::string errors(int r) const { return concat(base_, ".err", r); }
  [[nodiscard]] std::string logs() const {
    std::string all;
    for (int r = 0; r < size(); ++r)
      all += concat("rank ", r, ":\n", io::read_file(out(r)), io::read_file(errors(r)));
    return all;
  }

 private:
  std::string base_;
  std::vector<std::unique_ptr<Child>> children_;
  std::vector<int64_t> ended_;
};

Words lines_of(const std::string& file, std::string_view prefix) {
  std::istringstream text(io::read_file(file));
  Words lines;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(prefix)) lines.push_back(line);
  }
  return lines;
}

void inject_into_processes(const Injection& in, const Words& words, const std::string& base,
                           std::chrono::milliseconds deadline, Counts& counts) {
  TrainerFault fault = in.fault;
  fault.stamp = base + ".stamp";
  fault.late = deadline + 1500ms;
  Processes ranks(words, in.mesh->ranks, base, in.messages, &fault);
  const bool stopped = fault.fault == OpFault::is_stopped;
  ASSERT_TRUE(ranks.wait(stopped ? fault.rank : -1)) << in.text() << ": a rank hangs\n"
                                                     << ranks.logs();
  ASSERT_TRUE(fs::exists(fault.stamp)) << in.text() << ": no fault\n" << ranks.logs();
  const int64_t happened = std::stoll(io::read_file(fault.stamp));
  for (int r = 0; r < ranks.size(); ++r) {
    if (r == fault.rank) {
      const int status = fault.fault == OpFault::is_killed ? -SIGKILL : 1;
      if (!stopped) {
        EXPECT_EQ(ranks.status(r), status) << in.text() << '\n' << ranks.logs();
      }
      continue;
    }
    const std::string who = concat(in.text(), ", survivor ", r, '\n');
    EXPECT_EQ(ranks.status(r), 1) << who << ranks.logs();
    const Words errors = lines_of(ranks.errors(r), "error: ");
    ASSERT_EQ(errors.size(), 1u) << who << ranks.logs();
    // Rank 0 keeps the records of who waits for whom: if it is stopped, the rank that was waited
    // for.
    const bool known = !(stopped && in.messages && fault.rank == 0);
    TESSERA_EXPECT_HOLDS(errors[0], known ? concat("rank ", fault.rank) : "rank ") << who;
    const int64_t after = ranks.ended_at(r) - happened;
    EXPECT_LT(after, (deadline + 1000ms).count()) << who << errors[0];
    counts.add(in, after);
  }
}

using TrainerProcessFaults = TrainerFaults;

TEST_F(TrainerProcessFaults, EveryProcessEndsInTimeWithOneLine) {
  among_processes(
      injections(false, {OpFault::late, OpFault::is_stopped, OpFault::is_killed}, 4, 14));
}
TEST_F(TrainerProcessFaults, EveryProcessOfAPipelineEndsInTimeWithOneLine) {
  among_processes(injections(true, {OpFault::late, OpFault::is_stopped, OpFault::is_killed}, 1, 4));
}

TEST_F(TrainerProcessFaults, ARunGoesOnFromItsLastCheckpoint) {
  Counts counts;
  const bool all = test::long_form();
  for (size_t m = 0; m < meshes().size(); ++m) {
    const MeshCase& mesh = meshes()[m];
    for (const OpFault fault : {OpFault::is_killed, OpFault::is_stopped}) {
      const bool chosen =
          fault == OpFault::is_killed ? mesh.name == "fsdp x tp" : mesh.name == "fsdp";
      if (!all && !chosen) continue;
      const std::string dump = concat('r', m, static_cast<int>(fault)),
                        straight = dump + "straight";
      // A save may take longer than a step.
      const Words more{"--training.steps",      "6", "--checkpoint.enable",          "true",
                       "--checkpoint.interval", "1", "--comm.train_timeout_seconds", "5"};
      const Words given = words(dump, mesh, more);
      const Injection in{&mesh,
                         {.fault = fault,
                          .phase = Phase::backward,
                          .place = 0.5,
                          .step = 4,
                          .rank = mesh.ranks - 1}};
      inject_into_processes(in, given, path(dump), 5s, counts);
      Processes again(given, mesh.ranks, path(dump), false);
      ASSERT_TRUE(again.wait(-1)) << again.logs();
      for (int r = 0; r < mesh.ranks; ++r) EXPECT_EQ(again.status(r), 0) << again.logs();
      TESSERA_EXPECT_HOLDS(io::read_file(again.out(0)), "training resumes after step 3");
      ASSERT_EQ(run(words(straight, mesh, joined(more, {"--ranks", std::to_string(mesh.ranks)}))),
                0)
          << err_.str();
      const auto files = [&](const std::string& of) {
        const std::string file = path(of + "/checkpoint/step-6/manifest.json");
        return parse_manifest(io::read_file(file), file).files;
      };
      EXPECT_EQ(files(dump), files(straight)) << in.text();
    }
  }
}

}  // namespace
}  // namespace tessera::train

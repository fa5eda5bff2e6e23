// SPDX-License-Identifier: Apache-2.0
// Whether every rank ends that can, after one is killed, stopped or cut off at a random moment of a
// step or of a save: over shared memory and messages, by a rendezvous and by mpirun, each rank in a
// process-id namespace of its own, which makes it a host, with and without a progress thread. Most
// runs have ring context parallel or an exchange of experts, in which works end that nobody holds.
// By default a few injections, chosen by TESSERA_TEST_SEED; 240 with TESSERA_TEST_FULL=1.
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/trainer_faults.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kDeadline = 2000ms;  // of waits in a step, and in a save

enum class Way { namespaces, messages, shared, mpirun_messages, mpirun_shared };
constexpr std::array<const char*, 5> kWays{"namespaces", "messages", "shared memory",
                                           "mpirun by messages", "mpirun by shared memory"};

struct MeshCase {
  std::string name;
  int ranks;
  Words words;
};

const std::vector<MeshCase>& meshes() {
  const auto experts = [](const Words& more) {
    return joined(
        {"--model.name", "qwen3", "--model.flavor", "debugmodel_moe_small", "--model.num_experts",
         "4", "--model.moe_inter_dim", "32", "--parallelism.expert_parallel_degree", "2"},
        more);
  };
  static const std::vector<MeshCase> all{
      {"ring",
       2,
       {"--parallelism.context_parallel_degree", "2",
        "--parallelism.context_parallel_rotate_method", "alltoall"}},
      {"exchange", 2, experts({})},
      {"ring of 3",
       3,
       {"--parallelism.context_parallel_degree", "3",
        "--parallelism.context_parallel_rotate_method", "alltoall"}},
      {"ring and exchange", 2,
       experts({"--parallelism.context_parallel_degree", "2",
                "--parallelism.context_parallel_rotate_method", "alltoall"})},
      {"fsdp", 3, {}},
      {"tp", 2, {"--parallelism.tensor_parallel_degree", "2"}},
      {"pp",
       3,
       {"--parallelism.pipeline_parallel_degree", "3", "--model.n_layers", "4",
        "--training.local_batch_size", "4"}}};
  return all;
}

struct Injection {
  const MeshCase* mesh;
  Way way;
  TrainerFault fault;
  bool async = false;  // of saves
  [[nodiscard]] std::string text() const {
    return concat(mesh->name, ", ", kWays[static_cast<size_t>(way)], ", ",
                  fault.progress == ProgressThread::always ? "with" : "without",
                  " a progress thread, ", fault.text(), async ? ", of the copy" : "");
  }
};

// A program that gives each rank a process-id namespace, so that it is a host of its own. The shell
// is the first process there, which signals of its own cannot end.
const Words& in_namespace() {
  static const Words words{"unshare",      "--pid", "--fork", "--kill-child",
                           "--mount-proc", "sh",    "-c",     "\"$0\" \"$@\" & wait $!"};
  return words;
}
bool has_namespaces() {
  static const bool has =
      std::system("unshare --pid --fork --kill-child --mount-proc true 2>/dev/null") == 0;
  return has;
}

std::vector<Injection> injections(size_t some) {
  const char* text = std::getenv("TESSERA_TEST_SEED");
  const auto seed = static_cast<uint64_t>(text ? std::atoll(text) : 1);
  test::Dice dice(seed);
  const auto one = [&](size_t i) {
    // Ways by messages are more, and four of seven meshes have a ring or an exchange.
    constexpr std::array kOften{Way::namespaces, Way::messages,        Way::namespaces,
                                Way::shared,     Way::mpirun_messages, Way::namespaces,
                                Way::messages,   Way::mpirun_shared};
    constexpr std::array kFaults{OpFault::is_killed, OpFault::is_cut, OpFault::is_killed,
                                 OpFault::is_stopped};
    const MeshCase& mesh = meshes()[i % meshes().size()];
    Injection in{&mesh, kOften[static_cast<size_t>(dice.below(8))], {}};
    if (!test::has_mpirun()) {
      if (in.way == Way::mpirun_messages) in.way = Way::messages;
      if (in.way == Way::mpirun_shared) in.way = Way::shared;
    }
    if (in.way == Way::namespaces && !has_namespaces()) in.way = Way::messages;
    in.fault.fault = kFaults[static_cast<size_t>(dice.below(4))];
    // The packets of MPI on one host, and those of memory, cannot be cut.
    const bool tcp = in.way == Way::namespaces || in.way == Way::messages;
    if (in.fault.fault == OpFault::is_cut && !tcp) in.fault.fault = OpFault::is_stopped;
    in.fault.phase = static_cast<Phase>(dice.below(4));
    in.fault.place = static_cast<double>(dice.below(1000)) / 1000;
    in.fault.step = 2 + static_cast<int>(dice.below(2));
    in.fault.rank = static_cast<int>(dice.below(mesh.ranks));
    in.fault.progress = dice.below(3) > 0 ? ProgressThread::always : ProgressThread::never;
    in.async = in.fault.phase == Phase::save && dice.below(2) == 0;
    return in;
  };
  const size_t count = test::long_form() ? 240 : some;
  std::vector<Injection> all;
  for (size_t i = 0; i < count; ++i) all.push_back(one(i));
  std::cout << count << " injections, TESSERA_TEST_SEED=" << seed << '\n';
  return all;
}

// The ranks of one run.
class Ranks {
 public:
  Ranks(const Injection& in, const Words& words, std::string base)
      : in_(in), base_(std::move(base)) {
    TrainerFault fault = in.fault;
    fault.stamp = base_ + ".stamp";
    fault.ends = base_ + ".end";
    const Words program{test::own_program(), "--as-tessera"};
    const bool messages = in.way != Way::shared && in.way != Way::mpirun_shared;
    const bool mpirun = in.way == Way::mpirun_messages || in.way == Way::mpirun_shared;
    Words variables{concat(kFaultVariable, '=', fault.packed()),
                    concat("TESSERA_TRANSPORT=", messages ? "messages" : "shared"),
                    "GOMP_SPINCOUNT=10000"};
    Words all = joined(program, words);
    if (in.way == Way::namespaces) {  // each is told of one rank per host
      variables = joined(variables, {"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"});
      all = joined(in_namespace(), all);
    }
    processes_ = test::start_ranks(in.mesh->ranks,
                                   mpirun ? test::Meeting::mpirun : test::Meeting::rendezvous, all,
                                   variables, base_ + ".log");
  }

  /// Until every rank has reported its end that can; their number otherwise, after `limit`.
  int hanging(std::chrono::milliseconds limit) const {
    const int64_t end = clock_ms() + limit.count();
    int missing = 0;
    do {
      missing = 0;
      for (int r = 0; r < in_.mesh->ranks; ++r)
        missing += can_end(r) && !fs::exists(concat(base_, ".end", r));
      if (missing == 0) return 0;
      std::this_thread::sleep_for(5ms);
    } while (clock_ms() < end);
    return missing;
  }
  [[nodiscard]] bool can_end(int r) const {
    return r != in_.fault.rank || in_.fault.fault == OpFault::is_cut;
  }
  [[nodiscard]] std::string log() const { return io::read_file(base_ + ".log"); }
  /// The time of a rank's end, and its error.
  [[nodiscard]] std::pair<int64_t, std::string> end_of(int r) const {
    const std::string text = io::read_file(concat(base_, ".end", r));
    return {std::atoll(text.c_str()), text.substr(text.find(' ') + 1)};
  }
  [[nodiscard]] int64_t happened() const {
    const std::string stamp = base_ + ".stamp";
    return fs::exists(stamp) ? std::atoll(io::read_file(stamp).c_str()) : 0;
  }

 private:
  const Injection& in_;
  std::string base_;
  std::vector<test::Process> processes_;
};

struct Counts {
  std::mutex mutex;
  std::map<std::string, int> of;
  int survivors = 0, hangs = 0;
  int64_t slowest = 0;  // ms behind the deadline of what it waited for
  std::string who;
};

class Survivors : public TinyRunTest {
 protected:
  [[nodiscard]] Words words(const std::string& dump, const Injection& in) const {
    const bool saves = in.fault.phase == Phase::save;
    const std::string deadline = std::to_string(kDeadline.count() / 1000);
    return train(dump, joined({"--model.dim",
                               "64",
                               "--model.n_heads",
                               "4",
                               "--model.n_kv_heads",
                               "2",
                               "--training.seq_len",
                               "48",
                               "--training.steps",
                               "1000000",
                               "--lr_scheduler.decay_ratio",
                               "0",
                               "--metrics.log_freq",
                               "1000000",
                               "--checkpoint.enable",
                               saves ? "true" : "false",
                               "--checkpoint.interval",
                               "1",
                               "--checkpoint.async_mode",
                               in.async ? "async" : "disabled",
                               "--comm.init_timeout_seconds",
                               "60",
                               "--comm.storage_timeout_seconds",
                               deadline,
                               "--comm.train_timeout_seconds",
                               deadline},
                              in.mesh->words));
  }

  void inject(const Injection& in, const std::string& name, Counts& counts) {
    const Ranks ranks(in, words(name, in), path(name));
    const int hanging = ranks.hanging(40s);
    const int64_t happened = ranks.happened();
    const std::lock_guard guard(counts.mutex);
    ++counts.of[concat(kWays[static_cast<size_t>(in.way)], ", ",
                       kOpFaultNames[static_cast<size_t>(in.fault.fault)],
                       in.fault.phase == Phase::save ? " in a save" : "")];
    // Nor does a wait end by the watchdog alone, nor a sanitizer see what one run does not show.
    const std::string log = ranks.log();
    for (const char* fault : {"a fault of Tessera", "Sanitizer"})
      EXPECT_EQ(log.find(fault), std::string::npos) << in.text() << ":\n" << log;
    EXPECT_NE(happened, 0) << in.text() << ": no fault\n" << log;
    counts.hangs += hanging > 0;
    EXPECT_EQ(hanging, 0) << in.text() << ": ranks that hang\n" << log;
    if (hanging > 0 || happened == 0) return;
    for (int r = 0; r < in.mesh->ranks; ++r) {
      if (!ranks.can_end(r)) continue;
      const auto [at, error] = ranks.end_of(r);
      const bool typed = error.starts_with("[") && error.find("rank ") != std::string::npos;
      EXPECT_TRUE(typed) << in.text() << ", rank " << r << ": " << error << '\n' << log;
      const int64_t late = at - happened - kDeadline.count();
      if (counts.survivors++ == 0 || late > counts.slowest) {
        counts.slowest = late;
        counts.who = in.text();
      }
    }
  }
};

TEST_F(Survivors, NoneHangsAtAnyMoment) {
  const std::vector<Injection> all = injections(9);
  Counts counts;
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;  // most injections wait, so some run at once
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&] {
      for (size_t j = next++; j < all.size(); j = next++) inject(all[j], concat('i', j), counts);
    });
  }
  for (auto& worker : workers) worker.join();
  for (const auto& [what, count] : counts.of) std::cout << count << " x " << what << '\n';
  std::cout << all.size() << " injections, " << counts.survivors << " survivors, " << counts.hangs
            << " hangs; the slowest ended " << counts.slowest << " ms after its deadline of "
            << kDeadline.count() << " ms (" << counts.who << ")\n";
}

}  // namespace
}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Faults among processes. This program starts itself three times per injection as the ranks of a
// world that meets at a port of this host (and some by mpirun, with shared memory and with
// messages), waits for them with a limit, and reads what each has written of its end. By default a
// part of the injections, chosen by TESSERA_TEST_SEED; all with TESSERA_TEST_FULL=1.
#include "tessera/tests/support/faults.h"

#include "tessera/dist/launch/run.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/launched_main.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/process.h"
#include "tessera/tests/support/remove_folder.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <unistd.h>

namespace tessera {
namespace test {

// The program as one rank: `--fault-rank <folder> <kind> <size> <fault> <moment> <faulty>`.
int fault_rank(char** arguments) {
  end_with_parent();
  const std::string folder = arguments[0];
  const Injection in{static_cast<CollectiveKind>(std::atoi(arguments[1])), std::atoll(arguments[2]),
                     static_cast<Fault>(std::atoi(arguments[3])),
                     static_cast<Moment>(std::atoi(arguments[4])), std::atoi(arguments[5])};
  WorldOptions options;
  options.threads = 1;
  options.init_timeout = std::chrono::seconds(20);
  options.flight_folder = folder;
  Outcome mine;
  int rank = -1;
  const auto report = [&] {
    const std::string path = concat(folder, "/rank", rank);
    {
      std::ofstream file(path + ".part");
      file << mine.error << '\n'
           << std::chrono::duration_cast<std::chrono::milliseconds>(mine.longest).count() << '\n'
           << mine.text << '\n';
    }
    std::filesystem::rename(path + ".part", path);
  };
  try {
    run_launched(
        detect_launch(),
        [&](World& w) {
          rank = w.rank();
          w.group().set_timeout(in.deadline());
          try {
            take_part(w, in, mine);
          } catch (...) {
            report();
            throw;
          }
          report();
        },
        options);
  } catch (const Error& e) {
    if (rank < 0) std::cerr << e.what() << '\n';  // no world could be made
    return 1;
  }
  return 0;
}

namespace {

bool is_stopped(int64_t pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find(") T") != std::string::npos;
}

// Rank 2 waits for rank 0, and is stopped when that is over; rank 1 waits for rank 2, and rank 0
// for rank 1.
void wait_in_a_chain(World& w) {
  ProcessGroup& group = w.group();
  const Tensor own = empty({1}, DType::i64), pids = empty({3}, DType::i64);
  own.data<int64_t>()[0] = ::getpid();
  group.all_gather(own, pids)->wait();
  if (w.rank() == 2) {
    group.recv(own, 0)->wait();
    std::raise(SIGSTOP);
  }
  if (w.rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until rank 2 has told of it
    group.send(own, 2)->wait();
  }
  const int64_t pid = pids.data<int64_t>()[2];
  while (!is_stopped(pid)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  group.set_timeout(std::chrono::milliseconds(w.rank() == 1 ? 500 : 10'000));
  group.recv(own, w.rank() + 1)->wait();
}

}  // namespace

// The program as one rank: `--stopped-rank`.
int stopped_rank() {
  end_with_parent();
  WorldOptions options{.threads = 1, .init_timeout = std::chrono::seconds(20)};
  options.flight_folder = testing::TempDir();
  try {
    run_launched(detect_launch(), wait_in_a_chain, options);
  } catch (const Error& e) {
    std::cerr << concat(e.what(), '\n');
    return 1;
  }
  return 0;
}

}  // namespace test

namespace {

using test::Injection;
using test::Outcome;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

enum class Way { rendezvous_shared, rendezvous_messages, mpirun_shared, mpirun_messages };
constexpr std::array<const char*, 4> kWays{"rendezvous, shared memory", "rendezvous, messages",
                                           "mpirun, shared memory", "mpirun, messages"};

// A world that runs one injection.
class FaultyWorld {
 public:
  FaultyWorld(const Injection& in, Way way, std::string folder)
      : in_(in), folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    const auto number = [](auto value) { return std::to_string(static_cast<int64_t>(value)); };
    const test::Words program{test::own_program(), "--fault-rank",   folder_,
                              number(in.kind),     number(in.size),  number(in.fault),
                              number(in.moment),   number(in.faulty)};
    const bool messages = way == Way::rendezvous_messages || way == Way::mpirun_messages;
    const bool mpirun = way == Way::mpirun_shared || way == Way::mpirun_messages;
    processes_ = test::start_ranks(
        test::kFaultRanks, mpirun ? test::Meeting::mpirun : test::Meeting::rendezvous, program,
        {concat("TESSERA_TRANSPORT=", messages ? "messages" : "shared")}, folder_ + "/log");
  }

  ~FaultyWorld() {
    processes_.clear();
    test::remove_folder(folder_);
  }

  /// Waits for every rank that can end by itself; false after 20 s.
  bool wait() {
    const auto end = Clock::now() + 20s;
    while (Clock::now() < end) {
      int missing = 0;
      for (int rank = 0; rank < test::kFaultRanks; ++rank)
        missing += rank != in_.faulty && !std::filesystem::exists(path(rank));
      if (missing == 0 && (!reports_itself() || std::filesystem::exists(path(in_.faulty))))
        return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  [[nodiscard]] std::vector<Outcome> outcomes() const {
    std::vector<Outcome> all(test::kFaultRanks);
    for (int rank = 0; rank < test::kFaultRanks; ++rank) {
      Outcome& o = all[static_cast<size_t>(rank)];
      std::ifstream file(path(rank));
      std::string longest;
      std::getline(file, o.error);
      std::getline(file, longest);
      std::getline(file, o.text);
      o.longest = std::chrono::milliseconds(std::atoll(longest.c_str()));
    }
    return all;
  }
  [[nodiscard]] std::string log() const {
    std::ifstream file(folder_ + "/log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  [[nodiscard]] std::string path(int rank) const { return concat(folder_, "/rank", rank); }
  [[nodiscard]] bool reports_itself() const {
    return in_.fault == test::Fault::stalls || in_.fault >= test::Fault::kind;
  }

  Injection in_;
  std::string folder_;
  std::vector<test::Process> processes_;
};

struct Counts {
  std::mutex mutex;
  std::map<std::string, int> of;
  int injections = 0, hangs = 0;
};

std::filesystem::path folder_of_all() {
  return std::filesystem::temp_directory_path() / concat("tessera_faults_", getpid());
}

void inject(const Injection& in, Way way, size_t number, Counts& counts) {
  const auto folder = folder_of_all() / concat(static_cast<int>(way), '_', number);
  FaultyWorld world(in, way, folder.string());
  const bool ended = world.wait();
  const std::lock_guard lock(counts.mutex);
  ++counts.injections;
  ++counts.of[concat(test::kFaultNames[static_cast<size_t>(in.fault)], ' ',
                     test::kMomentNames[static_cast<size_t>(in.moment)])];
  counts.hangs += !ended;
  EXPECT_TRUE(ended) << in.text() << ", " << kWays[static_cast<size_t>(way)] << ": a rank hangs\n"
                     << world.log();
  test::check_outcomes(in, world.outcomes(), kWays[static_cast<size_t>(way)]);
}

void inject_all(const std::vector<Injection>& injections, Way way) {
  if (test::ranks_launcher()) return;  // it starts worlds of its own, once is enough
  Counts counts;
  std::atomic<size_t> at{0};
  std::vector<std::thread> workers;  // most injections wait, so some run at once
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&] {
      for (size_t j = at++; j < injections.size(); j = at++) inject(injections[j], way, j, counts);
    });
  }
  for (auto& worker : workers) worker.join();
  test::remove_folder(folder_of_all());
  for (const auto& [what, count] : counts.of) std::cout << count << " x " << what << '\n';
  std::cout << counts.injections << " injections by " << kWays[static_cast<size_t>(way)] << ", "
            << counts.injections * (test::kFaultRanks - 1) << " survivors, " << counts.hangs
            << " hangs\n";
}

// All of them, or about one in `part`.
std::vector<Injection> chosen(int part) {
  std::vector<Injection> all = test::every_injection(true);
  if (test::long_form()) return all;
  const char* text = std::getenv("TESSERA_TEST_SEED");
  const auto seed = static_cast<uint64_t>(text ? std::atoll(text) : 1);
  std::cout << "1 in " << part << " injections, TESSERA_TEST_SEED=" << seed << '\n';
  test::Dice dice(seed);
  std::erase_if(all, [&](const Injection&) { return dice.below(part) != 0; });
  return all;
}

TEST(ProcessFaults, RendezvousAndSharedMemory) { inject_all(chosen(10), Way::rendezvous_shared); }
TEST(ProcessFaults, RendezvousAndMessages) { inject_all(chosen(10), Way::rendezvous_messages); }

// It may have told last of a wait for another rank.
TEST(ProcessFaults, AStoppedRankIsNamedWhateverItWaitedFor) {
  if (test::ranks_launcher()) return;
  for (const char* transport : {"shared", "messages"}) {
    const std::string log = testing::TempDir() + concat("stopped.", ::getpid(), transport);
    auto ranks =
        test::start_ranks(3, test::Meeting::rendezvous, {test::own_program(), "--stopped-rank"},
                          {concat("TESSERA_TRANSPORT=", transport)}, log);
    for (const size_t rank : {0, 1}) EXPECT_EQ(ranks[rank].wait(), 1);
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    std::filesystem::remove(log);
    EXPECT_NE(text.str().find("is stopped (SIGSTOP"), std::string::npos) << text.str();
    EXPECT_EQ(text.str().find("held up by rank 0"), std::string::npos) << text.str();
  }
}

TEST(ProcessFaults, MpirunAndSharedMemory) {
  if (!test::has_mpirun()) return;  // MPI is optional
  inject_all(chosen(40), Way::mpirun_shared);
}

TEST(ProcessFaults, MpirunAndMessages) {
  if (!test::has_mpirun()) return;  // MPI is optional
  inject_all(chosen(40), Way::mpirun_messages);
}

}  // namespace
}  // namespace tessera

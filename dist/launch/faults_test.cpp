// SPDX-License-Identifier: Apache-2.0
// Faults among processes. This program starts itself three times per injection as the ranks of a
// world that meets at a port of this host (and some by mpirun, with shared memory and with
// messages), waits for them with a limit, and reads what each has written of its end. By default a
// part of the injections, chosen by TESSERA_TEST_SEED; all with TESSERA_TEST_FULL=1.
#include "tessera/tests/support/faults.h"

#include "tessera/dist/launch/run.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/free_port.h"
#include "tessera/tests/support/launched_main.h"
#include "tessera/tests/support/long_form.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" char** environ;

namespace tessera {
namespace test {

// The program as one rank: `--fault-rank <folder> <kind> <size> <fault> <moment> <faulty>`.
int fault_rank(char** arguments) {
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

}  // namespace test

namespace {

using test::Injection;
using test::Outcome;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

enum class Way { rendezvous_shared, rendezvous_messages, mpirun_shared, mpirun_messages };
constexpr std::array<const char*, 4> kWays{"rendezvous, shared memory", "rendezvous, messages",
                                           "mpirun, shared memory", "mpirun, messages"};

pid_t spawn(std::vector<std::string> words, const std::vector<std::string>& more_environment,
            const std::string& log) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<std::string> variables = more_environment;
  for (char** e = environ; *e; ++e) variables.emplace_back(*e);
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // a group of its own
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) fail<LaunchError>("spawn", words[0], ": ", std::strerror(error));
  return pid;
}

// A world that runs one injection.
class FaultyWorld {
 public:
  FaultyWorld(const Injection& in, Way way, std::string folder)
      : in_(in), folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    const auto number = [](auto value) { return std::to_string(static_cast<int64_t>(value)); };
    const std::vector<std::string> program{std::filesystem::read_symlink("/proc/self/exe").string(),
                                           "--fault-rank",
                                           folder_,
                                           number(in.kind),
                                           number(in.size),
                                           number(in.fault),
                                           number(in.moment),
                                           number(in.faulty)};
    const std::string log = folder_ + "/log";
    const bool messages = way == Way::rendezvous_messages || way == Way::mpirun_messages;
    const std::string transport = concat("TESSERA_TRANSPORT=", messages ? "messages" : "shared");
    if (way == Way::rendezvous_shared || way == Way::rendezvous_messages) {
      const int port = test::free_port();
      for (int rank = 0; rank < test::kFaultRanks; ++rank) {
        processes_.push_back(
            spawn(program,
                  {concat("RANK=", rank), concat("WORLD_SIZE=", test::kFaultRanks),
                   "MASTER_ADDR=localhost", concat("MASTER_PORT=", port), transport},
                  log));
      }
      return;
    }
    std::vector<std::string> words{"./dev", "mpirun", "-n", number(test::kFaultRanks),
                                   "--enable-recovery"};
    words.insert(words.end(), program.begin(), program.end());
    processes_.push_back(spawn(words, {transport}, log));
  }

  ~FaultyWorld() {
    // Who was stopped stays so; each process leads a group, of its children too.
    for (const pid_t pid : processes_) {
      kill(-pid, SIGCONT);
      kill(-pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
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
  std::vector<pid_t> processes_;
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
  std::filesystem::remove_all(folder_of_all());  // and what the last to die have written
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

bool has_mpirun() { return std::system("command -v mpirun >/dev/null 2>&1") == 0; }

TEST(ProcessFaults, MpirunAndSharedMemory) {
  if (!has_mpirun()) return;  // MPI is optional
  inject_all(chosen(40), Way::mpirun_shared);
}

TEST(ProcessFaults, MpirunAndMessages) {
  if (!has_mpirun()) return;  // MPI is optional
  inject_all(chosen(40), Way::mpirun_messages);
}

}  // namespace
}  // namespace tessera

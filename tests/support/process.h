// SPDX-License-Identifier: Apache-2.0
// Processes that tests start: one alone, or those of a world, which meet at a port of this host or
// by mpirun. Whatever is left of them is killed when the test is done with them.
#pragma once

#include "tessera/core/error.h"
#include "tessera/tests/support/free_port.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <spawn.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tessera::test {

using Words = std::vector<std::string>;

/// The words of both lists, one behind the other, without the first's fields that the second gives.
inline Words joined(const Words& first, const Words& second) {
  const auto field_of = [](const std::string& word) {
    return word.starts_with("--") ? word.substr(0, word.find('=')) : std::string();
  };
  Words all;
  for (size_t i = 0; i < first.size(); ++i) {
    const std::string field = field_of(first[i]);
    const bool again = !field.empty() && std::ranges::count(second, field, field_of) > 0;
    if (!again) all.push_back(first[i]);
    else if (field == first[i] && i + 1 < first.size() && field_of(first[i + 1]).empty()) ++i;
  }
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

/// The path of this program.
inline std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

/// A process; killed at the end of its life if it still runs.
class Process {
 public:
  struct Options {
    Words variables = {};     ///< of the environment, as `NAME=value`, before those of this process
    std::string log = {};     ///< file that gets both outputs
    std::string errors = {};  ///< file that gets the errors if it is given
    bool of_a_world = false;  ///< others write to `log` too, and signals reach its children
  };

  Process(Words words, const Options& options) : leads_(options.of_a_world) {
    Words variables = options.variables;
    for (char** e = environ; *e; ++e) variables.emplace_back(*e);
    const auto pointers = [](Words& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    const std::vector<char*> arguments = pointers(words), environment = pointers(variables);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const auto open = [&](int descriptor, const std::string& path) {
      const int flags = O_WRONLY | O_CREAT | (options.of_a_world ? O_APPEND : O_TRUNC);
      posix_spawn_file_actions_addopen(&actions, descriptor, path.c_str(), flags, 0600);
    };
    open(STDOUT_FILENO, options.log);
    if (options.errors.empty())
      posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    else open(STDERR_FILENO, options.errors);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    if (leads_) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int error = posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(),
                                   environment.data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      pid_ = -1;
      fail<LaunchError>("spawn", words[0], ": ", std::strerror(error));
    }
  }
  ~Process() {
    signal(SIGKILL);
    (void)wait();
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), result_(other.result_), leads_(other.leads_) {}
  Process& operator=(Process&&) = delete;

  void signal(int number) const {
    if (pid_ > 0) kill(leads_ ? -pid_ : pid_, number);
  }
  /// Its exit status; -N if signal N ended it.
  int wait() {
    int status = 0;
    if (pid_ > 0 && waitpid(pid_, &status, 0) == pid_)
      result_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    pid_ = -1;
    return result_;
  }
  [[nodiscard]] bool running() {
    siginfo_t info{};
    return pid_ > 0 &&
           waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  /// Whether it has a handler of the signal by now.
  [[nodiscard]] bool handles(int number) const {
    std::ifstream lines(concat("/proc/", pid_, "/status"));
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("SigCgt:"))
        return (std::stoull(line.substr(7), nullptr, 16) >> (number - 1)) & 1;
    return false;
  }
  /// Waits until `done` returns true or the process has ended; returns what `done` said last.
  bool wait_for(const std::function<bool()>& done) {
    while (!done()) {
      if (!running()) return done();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  pid_t pid_ = -1;
  int result_ = -1;
  bool leads_;
};

inline bool has_mpirun() {
  static const bool has = std::system("command -v mpirun >/dev/null 2>&1") == 0;
  return has;
}

/// How the ranks of a world find each other.
enum class Meeting { rendezvous, mpirun };

/// Starts `words` as each of `n` ranks, or mpirun, which does. All write to the file `log`.
inline std::vector<Process> start_ranks(int n, Meeting meeting, const Words& words,
                                        const Words& variables, const std::string& log) {
  std::vector<Process> processes;
  if (meeting == Meeting::mpirun) {
    // What fails in one rank is no reason for mpirun to kill the others.
    const Words mpirun{"./dev", "mpirun", "-n", std::to_string(n), "--enable-recovery"};
    // A rank that gives up leaves MPI running, whose libraries' memory is then no leak of Tessera.
    const Words own{"ASAN_OPTIONS=detect_leaks=0"};
    processes.emplace_back(
        joined(mpirun, words),
        Process::Options{.variables = joined(own, variables), .log = log, .of_a_world = true});
    return processes;
  }
  const int port = free_port();
  for (int rank = 0; rank < n; ++rank) {
    const Words own{concat("RANK=", rank), concat("WORLD_SIZE=", n), "MASTER_ADDR=localhost",
                    concat("MASTER_PORT=", port)};
    processes.emplace_back(
        words,
        Process::Options{.variables = joined(own, variables), .log = log, .of_a_world = true});
  }
  return processes;
}

/// In a rank: it does not outlive the process that has started it, as mpirun, whose ranks are in no
/// group of its own, not even stopped.
inline void end_with_parent() {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::raise(SIGKILL);
}

}  // namespace tessera::test

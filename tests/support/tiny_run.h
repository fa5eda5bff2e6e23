// SPDX-License-Identifier: Apache-2.0
// For tests of the trainer: runs that take milliseconds, in a folder of their own, inside the test
// or as processes that can be signalled and killed.
#pragma once

#include "tessera/tests/support/folder_test.h"
#include "tessera/train/cli/cli.h"
#include "tessera/train/run/config.h"

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tessera::train {

using Words = std::vector<std::string>;

/// Words of a Llama of some thousand parameters, for bytes.
inline Words tiny_model() {
  return {"--model.dim",        "32", "--model.n_layers", "2",  "--model.n_heads",    "4",
          "--model.n_kv_heads", "2",  "--model.ffn_dim",  "64", "--model.vocab_size", "260"};
}
/// A sentence again and again, for tests in which a model learns.
inline std::string fox_text(int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += "the quick brown fox jumps over the lazy dog; ";
  return text;
}
/// The words of both lists, one behind the other.
inline Words joined(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// A `tessera` process; killed at the end of its life if it still runs. The test program's main
/// must know `--as-tessera`. Both outputs go to `log`, or the errors to `errors` if it is given.
class Child {
 public:
  /// `environment`: variables more, as `NAME=value`. `program`: a copy of this one, or empty.
  Child(const Words& words, const std::string& log, const Words& environment = {},
        std::string program = "", const std::string& errors = {}) {
    if (program.empty()) program = std::filesystem::read_symlink("/proc/self/exe").string();
    Words all = joined({std::move(program), "--as-tessera"}, words), variables = environment;
    for (char** e = environ; *e; ++e) variables.emplace_back(*e);
    const auto pointers = [](Words& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    const std::vector<char*> arguments = pointers(all), with = pointers(variables);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (errors.empty()) posix_spawn_file_actions_adddup2(&actions, 1, 2);
    else
      posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0600);
    if (posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), with.data()) != 0)
      pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Child() {
    signal(SIGKILL);
    (void)wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
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
  /// Until `done` says so or the process has ended; whether `done` did.
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
};

class TinyRunTest : public test::FolderTest {
 protected:
  TinyRunTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += concat("the quick brown fox jumps over ", i, " dogs; ");
    io::write_file_atomically(folder_ + "/text.txt", text);
  }

  [[nodiscard]] std::string path(std::string_view name) const { return concat(folder_, '/', name); }
  /// `train` with a model of some thousand parameters; later words win.
  [[nodiscard]] Words train(const std::string& dump, const Words& more = {}) const {
    Words words{"train"};
    const auto set = [&](std::string field, std::string value) {
      words.insert(words.end(), {"--" + std::move(field), std::move(value)});
    };
    set("dataloader.path", path("text.txt"));
    set("dump_folder", path(dump));
    set("threads", "1");
    words = joined(words, tiny_model());
    set("training.steps", "20");
    set("training.local_batch_size", "2");
    set("training.seq_len", "16");
    set("optimizer.lr", "1e-2");
    set("lr_scheduler.warmup_steps", "3");
    set("sample.tokens", "0");
    set("debug.seed", "7");
    set("checkpoint.enable", "true");
    set("checkpoint.last_save_model_only", "false");
    return joined(words, more);
  }
  [[nodiscard]] Config config(const std::string& dump, const Words& more = {}) const {
    const Words words = train(dump, more);
    return parse_config(std::span(words).subspan(1));
  }
  int run(const Words& words) {
    out_.str("");
    err_.str("");
    return run_cli(words, out_, err_);
  }

  std::ostringstream out_, err_;
};

}  // namespace tessera::train

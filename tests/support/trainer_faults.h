// SPDX-License-Identifier: Apache-2.0
// Faults in training: at an op of a step, or while a checkpoint is written, one rank throws, comes
// late, is stopped, killed or cut off from the others' packets. The op is given as a place in a
// phase of the step, so that one fault fits every mesh. Ranks that are processes get theirs by an
// environment variable, which the test program's main looks up.
#pragma once

#include "tessera/dist/comm_trace.h"
#include "tessera/dist/launch/run.h"
#include "tessera/tests/support/tiny_run.h"
#include "tessera/train/run/trainer.h"

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <linux/filter.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

namespace tessera::train {

constexpr const char* kFaultVariable = "TESSERA_TEST_TRAINER_FAULT";

enum class OpFault { throws, late, is_stopped, is_killed, is_cut };
constexpr std::array<const char*, 5> kOpFaultNames{"throw", "late", "SIGSTOP", "SIGKILL", "cut"};
/// update: from the end of backward to the next forward, so norm, clipping and optimizer, and what
/// a pipeline does between micro-batches. message: the op behind a send or a receive.
enum class Phase { forward, backward, update, save, message };
constexpr std::array<const char*, 5> kPhaseNames{"forward", "backward", "update", "save",
                                                 "message"};

struct TrainerFault {
  OpFault fault = OpFault::throws;
  Phase phase = Phase::forward;
  double place = 0;  ///< in [0, 1): of the phase's ops; of a save: of 20 ms
  int step = 2, rank = 0;
  std::chrono::milliseconds late{0};
  std::string stamp = {};  ///< file that gets the time of the fault; empty: none
  /// Of processes: whether a progress thread runs, and the file, but for the rank's number at its
  /// end, that gets the time and the error of each rank's end; empty: none.
  ProgressThread progress = ProgressThread::idle_cores;
  std::string ends = {};

  [[nodiscard]] std::string text() const {
    return concat(kOpFaultNames[static_cast<size_t>(fault)], " of rank ", rank, " at ", place,
                  " of ", kPhaseNames[static_cast<size_t>(phase)], " in step ", step);
  }
  [[nodiscard]] std::string packed() const {
    return concat(static_cast<int>(fault), ' ', static_cast<int>(phase), ' ', place, ' ', step, ' ',
                  rank, ' ', late.count(), ' ', static_cast<int>(progress), ' ', stamp, ' ', ends);
  }
  static TrainerFault unpacked(const std::string& text) {
    std::istringstream in(text);
    int fault = 0, phase = 0, step = 0, rank = 0, progress = 0;
    int64_t late = 0;
    double place = 0;
    std::string stamp, ends;
    in >> fault >> phase >> place >> step >> rank >> late >> progress >> stamp >> ends;
    return {static_cast<OpFault>(fault),
            static_cast<Phase>(phase),
            place,
            step,
            rank,
            std::chrono::milliseconds(late),
            std::move(stamp),
            static_cast<ProgressThread>(progress),
            std::move(ends)};
  }
};

/// The time as processes of one machine share it.
inline int64_t clock_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// From now on no packet reaches a connection of this process, as where a link is cut: what the
/// others have sent is not even acknowledged.
inline void cut_connections() {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop};
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int family = 0;
    socklen_t size = sizeof(family);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) continue;
    if (family == AF_INET || family == AF_INET6)
      (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
  }
}

/// Lets the fault happen to the calling rank, once, during its lifetime.
class FaultAtOp {
 public:
  /// `before` is called when the fault is about to happen.
  FaultAtOp(TrainerFault fault, std::function<void()> before, const std::string& checkpoints = {})
      : fault_(std::move(fault)), before_(std::move(before)) {
    if (fault_.phase == Phase::save)
      looks_ = std::thread([this, checkpoints] { look(checkpoints); });
    Context::current().op_hook = [this](const OpRow& row, const void*, Tensors, Tensors) {
      on_op(row.name);
    };
  }
  ~FaultAtOp() {
    Context::current().op_hook = nullptr;
    stop_ = true;
    if (looks_.joinable()) looks_.join();
  }
  FaultAtOp(const FaultAtOp&) = delete;
  FaultAtOp& operator=(const FaultAtOp&) = delete;

 private:
  // Ops outside of modules belong to the phase before them. A step begins with the first forward
  // behind an optimizer: in a pipeline forwards follow backwards.
  void on_op(std::string_view name) {
    if (trace_tag() == "grad") {
      phase_ = Phase::backward;
    } else if (!Context::current().module_path.empty()) {
      if (std::exchange(stepped_, false)) ++step_, seen_ = 0;
      phase_ = Phase::forward;
    } else if (phase_ == Phase::backward) {
      phase_ = Phase::update;
    }
    if (name == "adamw_") stepped_ = true;
    const bool message = trace_.count("send") + trace_.count("recv") > 0;
    trace_.clear();
    if (step_ == 0 || (fault_.phase == Phase::message ? !message : phase_ != fault_.phase)) return;
    if (step_ == 1) ++ops_;
    if (step_ != fault_.step) return;
    if (seen_++ == static_cast<int64_t>(fault_.place * static_cast<double>(ops_))) happen();
  }
  void happen() const {
    before_();
    switch (fault_.fault) {
      case OpFault::throws: fail<DataError>("injected", "a fault");
      case OpFault::late: std::this_thread::sleep_for(fault_.late); break;
      case OpFault::is_stopped: std::raise(SIGSTOP); break;
      case OpFault::is_killed: std::raise(SIGKILL); break;
      case OpFault::is_cut: cut_connections(); break;
    }
  }
  // On a thread: waits for the files of a checkpoint that is not the first.
  void look(const std::string& checkpoints) const {
    const auto begun = [&] {
      std::error_code none;
      for (const auto& entry : std::filesystem::directory_iterator(checkpoints, none)) {
        if (entry.path().extension() == ".partial" && entry.path().stem() != "step-1") return true;
      }
      return false;
    };
    while (!begun()) {
      if (stop_) return;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(fault_.place * 20'000)));
    happen();
  }

  TrainerFault fault_;
  std::function<void()> before_;
  Phase phase_ = Phase::update;
  CommTrace trace_;  // of what was sent since the last op
  bool stepped_ = true;
  int step_ = 0;
  int64_t ops_ = 0, seen_ = 0;  // of the phase: in the first step, in this one
  std::atomic<bool> stop_{false};
  std::thread looks_;
};

/// `tessera train` on a rank that may have a fault; the same words as the other ranks'.
inline int train_with_fault(const Words& words, const std::string& packed) {
  test::end_with_parent();
  const TrainerFault fault = TrainerFault::unpacked(packed);
  const Launch launch = detect_launch();
  const auto report = [&](const std::string& error) {
    if (!error.empty()) std::cerr << concat("error: ", error, '\n');
    if (!fault.ends.empty())
      io::write_file_atomically(concat(fault.ends, launch.rank), concat(clock_ms(), ' ', error));
    return error.empty() ? 0 : 1;
  };
  try {
    const Config config = parse_config(std::span(words).subspan(1));
    WorldOptions options = world_options(config);
    options.progress = fault.progress;
    const auto stamp = [&] { io::write_file_atomically(fault.stamp, std::to_string(clock_ms())); };
    run_launched(
        launch,
        [&](World& world) {
          Trainer trainer(config);
          std::optional<FaultAtOp> at;
          if (world.rank() == fault.rank)
            at.emplace(fault, stamp, config.dump_folder + "/checkpoint");
          trainer.run();
        },
        options);
  } catch (const Error& e) {
    return report(e.what());
  }
  return report("");
}

}  // namespace tessera::train

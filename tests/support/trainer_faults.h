// SPDX-License-Identifier: Apache-2.0
// Faults in training: at an op of a step, one rank throws, comes late, is stopped or killed. The op
// is given as a place in a phase of the step, so that one fault fits every mesh. Ranks that are
// processes get theirs by an environment variable, which the test program's main looks up.
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
#include <thread>

namespace tessera::train {

constexpr const char* kFaultVariable = "TESSERA_TEST_TRAINER_FAULT";

enum class OpFault { throws, late, is_stopped, is_killed };
constexpr std::array<const char*, 4> kOpFaultNames{"throw", "late", "SIGSTOP", "SIGKILL"};
/// update: from the end of backward to the next step's forward, so norm, clipping and optimizer.
enum class Phase { forward, backward, update };
constexpr std::array<const char*, 3> kPhaseNames{"forward", "backward", "update"};

struct TrainerFault {
  OpFault fault = OpFault::throws;
  Phase phase = Phase::forward;
  double place = 0;  ///< in [0, 1): of the phase's ops
  int step = 2, rank = 0;
  std::chrono::milliseconds late{0};
  std::string stamp = {};  ///< file that gets the time of the fault; empty: none

  [[nodiscard]] std::string text() const {
    return concat(kOpFaultNames[static_cast<size_t>(fault)], " of rank ", rank, " at ", place,
                  " of ", kPhaseNames[static_cast<size_t>(phase)], " in step ", step);
  }
  [[nodiscard]] std::string packed() const {
    return concat(static_cast<int>(fault), ' ', static_cast<int>(phase), ' ', place, ' ', step, ' ',
                  rank, ' ', late.count(), ' ', stamp);
  }
  static TrainerFault unpacked(const std::string& text) {
    std::istringstream in(text);
    int fault = 0, phase = 0, step = 0, rank = 0;
    int64_t late = 0;
    double place = 0;
    std::string stamp;
    in >> fault >> phase >> place >> step >> rank >> late >> stamp;
    return {static_cast<OpFault>(fault),     static_cast<Phase>(phase), place, step, rank,
            std::chrono::milliseconds(late), std::move(stamp)};
  }
};

/// The time as processes of one machine share it.
inline int64_t clock_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Lets the fault happen to the calling rank, once, during its lifetime.
class FaultAtOp {
 public:
  /// `before` is called when the fault is about to happen.
  FaultAtOp(TrainerFault fault, std::function<void()> before)
      : fault_(std::move(fault)), before_(std::move(before)) {
    Context::current().op_hook = [this](const OpRow&, const void*, Tensors, Tensors) { on_op(); };
  }
  ~FaultAtOp() { Context::current().op_hook = nullptr; }
  FaultAtOp(const FaultAtOp&) = delete;
  FaultAtOp& operator=(const FaultAtOp&) = delete;

 private:
  // Ops outside of modules belong to the phase before them.
  void on_op() {
    if (trace_tag() == "grad") {
      phase_ = Phase::backward;
    } else if (!Context::current().module_path.empty()) {
      if (phase_ == Phase::update) ++step_, seen_ = 0;
      phase_ = Phase::forward;
    } else if (phase_ == Phase::backward) {
      phase_ = Phase::update;
    }
    if (phase_ != fault_.phase || step_ == 0) return;
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
    }
  }

  TrainerFault fault_;
  std::function<void()> before_;
  Phase phase_ = Phase::update;
  int step_ = 0;
  int64_t ops_ = 0, seen_ = 0;  // of the phase: in the first step, in this one
};

/// `tessera train` on a rank that has a fault; the same words as the other ranks'.
inline int train_with_fault(const Words& words, const std::string& packed) {
  const TrainerFault fault = TrainerFault::unpacked(packed);
  try {
    const Config config = parse_config(std::span(words).subspan(1));
    run_launched(
        detect_launch(),
        [&](World&) {
          Trainer trainer(config);
          const FaultAtOp at(
              fault, [&] { io::write_file_atomically(fault.stamp, std::to_string(clock_ms())); });
          trainer.run();
        },
        world_options(config));
  } catch (const Error& e) {
    std::cerr << concat("error: ", e.what(), '\n');
    return 1;
  }
  return 0;
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Ctrl-C during a command that writes: the command ends between two parts of its work, as after an
// error, and says which files remain. The next Ctrl-C ends it at once.
#pragma once

#include "tessera/core/error.h"
#include "tessera/train/ranks/stop_signals.h"

#include <csignal>
#include <string>
#include <utility>

namespace tessera::train {

constexpr int kInterruptedStatus = 128 + SIGINT;  ///< on which a shell ends a loop of commands

/// The command ends with kInterruptedStatus and these words.
class Interrupted final : public Error {
 public:
  using Error::Error;
  [[nodiscard]] std::string_view kind() const noexcept override { return "Interrupted"; }
};

class Interruption {
 public:
  /// `left`: a text for people about the files that remain.
  explicit Interruption(std::string left) : left_(std::move(left)) { install_interrupt_signal(); }
  ~Interruption() { remove_stop_signals(); }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// Interrupted if Ctrl-C was pressed. Called between the parts of the work.
  void check() const {
    if (pending_request() == SignalRequest::interrupt) fail<Interrupted>("SIGINT", left_);
  }

 private:
  std::string left_;
};

}  // namespace tessera::train

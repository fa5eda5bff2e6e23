// SPDX-License-Identifier: Apache-2.0
// A last step after a collective, such as a cast of its result: it runs on the rank's own thread
// when somebody needs the bytes, or when the bucket is used again.
#pragma once

#include "tessera/core/pending.h"

#include <functional>

namespace tessera {

class Later final : public PendingUse {
 public:
  explicit Later(std::function<void()> step) : step_(std::move(step)) {}
  [[nodiscard]] bool advances() const noexcept override { return false; }
  [[nodiscard]] std::string text() const override { return "the last step of a reduction"; }

 private:
  bool advance() override {
    block();
    return true;
  }
  void block() override {
    const auto step = std::exchange(step_, nullptr);
    try {
      if (step) step();
      end();
    } catch (...) {
      end(std::current_exception());
    }
  }

  std::function<void()> step_;
};

}  // namespace tessera

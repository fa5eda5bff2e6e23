// SPDX-License-Identifier: Apache-2.0
// A fiber: a stack of its own and where it stopped. The address sanitizer is told of every switch.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <ucontext.h>

namespace cuda_emulation {

class Fiber {
 public:
  /// The caller's own stack, to come back to.
  Fiber() : started_(true) {}
  /// A stack on which `body` runs at the first switch; it must never return.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Stops the running fiber, which must be `from`, and goes on with `to`.
  static void change(Fiber& from, Fiber& to);

 private:
  static void enter(unsigned high, unsigned low);
  void leave_for(Fiber& to);
  void go_on();
  void arrived();

  std::function<void()> body_;
  ucontext_t context_{};          // where it begins
  std::array<void*, 5> place_{};  // where it stopped
  bool started_ = false;
  void* pages_ = nullptr;  // with a page below the stack that nobody may touch
  const void* stack_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;  // the sanitizer's
};

}  // namespace cuda_emulation

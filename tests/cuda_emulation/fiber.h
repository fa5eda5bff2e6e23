// SPDX-License-Identifier: Apache-2.0
// A fiber: a stack of its own and where it stopped. The address sanitizer is told of every switch.
#pragma once

#include <cstddef>
#include <functional>
#include <ucontext.h>

namespace cuda_emulation {

class Fiber {
 public:
  /// The caller's own stack, to come back to.
  Fiber() = default;
  /// A stack on which `body` runs at the first switch; it must never return.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Stops the running fiber, which must be `from`, and goes on with `to`.
  static void change(Fiber& from, Fiber& to);

 private:
  static void enter(unsigned high, unsigned low);
  void arrived();

  std::function<void()> body_;
  ucontext_t context_{};
  void* pages_ = nullptr;  // with a page below the stack that nobody may touch
  const void* stack_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;  // the sanitizer's
};

}  // namespace cuda_emulation

// SPDX-License-Identifier: Apache-2.0
// A context of the system starts a fiber. Later switches jump, since swapcontext asks the system
// for the signal mask each time, which costs more than all else that a switch does.
#include "fiber.h"

#include <cstdint>
#include <new>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emulation {
namespace {

constexpr size_t kPage = 4096, kStack = size_t{128} << 10;

Fiber* left = nullptr;  // which the running fiber was switched to from; one grid runs at a time

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), size_(kStack) {
  pages_ = mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages_ == MAP_FAILED) throw std::bad_alloc();
  (void)mprotect(pages_, kPage, PROT_NONE);
  stack_ = static_cast<char*>(pages_) + kPage;
  (void)getcontext(&context_);
  context_.uc_stack.ss_sp = const_cast<void*>(stack_);
  context_.uc_stack.ss_size = kStack;
  context_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);  // makecontext passes ints
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
}

Fiber::~Fiber() {
  if (!pages_) return;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack_, kStack);  // frames of a thread that was given up
#endif
  (void)munmap(pages_, kPage + kStack);
}

void Fiber::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
  self->arrived();
  self->body_();
}

void Fiber::arrived() {
#ifdef __SANITIZE_ADDRESS__
  // Where the caller's own stack lies is known from the first switch away from it.
  __sanitizer_finish_switch_fiber(fake_stack_, &left->stack_, &left->size_);
#endif
}

void Fiber::change(Fiber& from, Fiber& to) {
  left = &from;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_, to.size_);
#endif
  from.leave_for(to);
  from.arrived();
}

// The sanitizer would forget the poison of the stack that a jump leaves.
__attribute__((noinline, no_sanitize("address"))) void Fiber::leave_for(Fiber& to) {
  if (__builtin_setjmp(place_.data()) == 0) to.go_on();
}

__attribute__((noinline, no_sanitize("address"))) void Fiber::go_on() {
  if (started_) __builtin_longjmp(place_.data(), 1);
  started_ = true;
  (void)setcontext(&context_);
}

}  // namespace cuda_emulation

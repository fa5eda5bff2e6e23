// SPDX-License-Identifier: Apache-2.0
// Creates and destroys a rank's Context; finds its allocators and streams.
#include "tessera/core/context.h"

#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/process.h"

namespace tessera {

Context::Context() : Context(Options{}) {}

namespace {
const Context::Options& checked(const Context::Options& o) {
  if (o.threads < 0)
    fail<ValueError>("context", "threads is ", o.threads, ": expected 0 (all cores) or more");
  return o;
}
}  // namespace

Context::Context(const Options& o) : options(checked(o)), number(Process::get().add_context()) {
  if (options.threads == 0) options.threads = Process::get().cores();
#ifdef __SANITIZE_THREAD__
  options.threads = 1;  // how OpenMP joins its threads is hidden from the sanitizer
#endif
  cpu_allocator_ = make_cpu_allocator();
}

// States may contain tensors, whose bytes and handles return to this rank's allocator and pool. The
// last state is destroyed first, because it may use earlier ones, such as a mesh.
Context::~Context() {
  while (!states_.empty()) {
    const auto last = std::move(states_.back());
    states_.pop_back();
  }
  cpu_allocator_ = nullptr;
  Process::get().remove_context(number);
}

Context& Context::current() {
  if (!current_) {
    fail<UsageError>("context",
                     "this thread has no Context: make a tessera::Session (or a Context) first and "
                     "keep it alive");
  }
  return static_cast<Context&>(*current_);
}

Context* Context::find(uint32_t number) noexcept {
  auto* context = current_or_null();
  while (context && context->number != number) context = static_cast<Context*>(around(*context));
  return context;
}

const Ref<Allocator>& Context::allocator(Device device) {
  if (device.is_cpu()) return cpu_allocator_;
  if (device.is_meta()) fail<DeviceError>("allocator", "the meta device has no memory");
  return Process::get().cuda_allocator(device.index);
}

Stream Context::stream(Device device) {
  if (!device.is_cuda()) return {nullptr, device};
  return Process::get().cuda().stream(device.index);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/context.h"

#include "tessera/core/cuda_loader_impl.h"
#include "tessera/core/error.h"
#include "tessera/core/module_path.h"

#include <omp.h>

namespace tessera {

constinit thread_local Context* Context::current_ = nullptr;

namespace {
constexpr size_t kPoolStep = 64;

Isa detect_isa() {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}
}  // namespace

void* pool_allocate(size_t bytes) {
  const size_t c = (bytes - 1) / kPoolStep;
  if (c >= Context::kPoolClasses) return ::operator new(bytes);
  if (Context* context = Context::current_; context && context->pool_[c]) {
    Context::FreeBlock* block = context->pool_[c];
    context->pool_[c] = block->next;
    return block;
  }
  return ::operator new((c + 1) * kPoolStep);
}

void pool_free(void* block, size_t bytes) noexcept {
  const size_t c = (bytes - 1) / kPoolStep;
  Context* context = Context::current_;
  if (c >= Context::kPoolClasses || !context) {
    ::operator delete(block);
    return;
  }
  auto* free = static_cast<Context::FreeBlock*>(block);
  free->next = context->pool_[c];
  context->pool_[c] = free;
}

Process::Process() : isa_(detect_isa()), machine_isa_(isa_), cores_(omp_get_num_procs()) {}
Process::~Process() = default;

Process& Process::get() {
  static Process process;
  return process;
}

void CallKeys::set_seed(uint64_t seed) {
  seed_ = seed;
  set_step(0);
}

void CallKeys::set_step(uint64_t step) {
  step_ = step;
  draws_.clear();
}

RngKey CallKeys::next(const std::vector<std::string>& module_path) {
  const std::string path = joined_path(module_path);
  const uint64_t draw = draws_[stream_of(path)]++;
  return {seed_, stream_of(concat("call ", step_, ' ', draw, ' ', path))};
}

void Process::limit_isa(Isa isa) {
  if (isa > machine_isa_)
    fail<ValueError>("process", "this machine lacks the instruction set that was asked for");
  isa_ = isa;
}

CudaBackend& Process::cuda() {
  std::call_once(cuda_once_, [this] { cuda_ = std::make_unique<CudaLoader>(this); });
  return cuda_->backend();
}

const Ref<Allocator>& Process::cuda_allocator(int device) {
  cuda();
  return cuda_->allocator(device);
}

bool Process::cuda_available() noexcept {
  try {
    return cuda().device_count() > 0;
  } catch (const Error&) {
    return false;
  }
}

Context::Context() : Context(Options{}) {}

Context::Context(const Options& o)
    : options(o), number(++Process::get().contexts_), previous_(current_) {
  if (options.threads < 0)
    fail<ValueError>("context", "threads is ", options.threads, ": expected 0 (all cores) or more");
  if (options.threads == 0) options.threads = Process::get().cores();
#ifdef __SANITIZE_THREAD__
  options.threads = 1;  // how OpenMP joins its threads is hidden from the sanitizer
#endif
  current_ = this;
  cpu_allocator_ = make_cpu_allocator();
}

Context::~Context() {
  states_.clear();
  cpu_allocator_ = nullptr;
  for (FreeBlock*& list : pool_) {
    while (list) {
      FreeBlock* next = list->next;
      ::operator delete(list);
      list = next;
    }
  }
  // Contexts may end in any order: this one leaves the chain, wherever it stands.
  for (Context** link = &current_; *link; link = &(*link)->previous_) {
    if (*link == this) {
      *link = previous_;
      break;
    }
  }
}

Context& Context::current() {
  if (!current_) {
    fail<UsageError>("context",
                     "this thread has no Context: make a tessera::Session (or a Context) first and "
                     "keep it alive");
  }
  return *current_;
}

Context* Context::find(uint32_t number) noexcept {
  Context* context = current_;
  while (context && context->number != number) context = context->previous_;
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

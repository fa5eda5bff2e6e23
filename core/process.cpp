// SPDX-License-Identifier: Apache-2.0
// Detects the instruction set, and opens the CUDA library once.
#include "tessera/core/process.h"

#include "tessera/core/cuda_loader_impl.h"
#include "tessera/core/error.h"

#include <dlfcn.h>
#include <filesystem>
#include <omp.h>

namespace tessera {

namespace {
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

Process::Process() : isa_(detect_isa()), machine_isa_(isa_), cores_(omp_get_num_procs()) {}
Process::~Process() = default;

Process& Process::get() {
  static Process process;
  return process;
}

void Process::limit_isa(Isa isa) {
  if (isa > machine_isa_)
    fail<ValueError>("process", "this machine lacks the instruction set that was asked for");
  isa_ = isa;
}

bool Process::context_exists(uint32_t number) {
  const std::lock_guard lock(contexts_mutex_);
  return contexts_.contains(number);
}

uint32_t Process::add_context() {
  const std::lock_guard lock(contexts_mutex_);
  contexts_.insert(++contexts_made_);
  return contexts_made_;
}

void Process::remove_context(uint32_t number) {
  const std::lock_guard lock(contexts_mutex_);
  contexts_.erase(number);
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

std::vector<std::string> library_paths(const std::string& library) {
  std::vector<std::string> paths;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&Process::get), &info) && info.dli_fname) {
    // A program found on PATH is known by its bare name alone.
    std::filesystem::path self(info.dli_fname);
    std::error_code unknown;
    if (!self.has_parent_path()) self = std::filesystem::read_symlink("/proc/self/exe", unknown);
    const auto folder = self.parent_path();
    paths.push_back((folder / library).string());
    paths.push_back((folder / ".." / "lib" / library).string());
  }
  paths.push_back(library);
  return paths;
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Kernels are local to their library, so that their names stand in its table for debuggers alone.
#include "counts.h"

#include "tessera/core/cuda/kernel_name_impl.h"

#include <atomic>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <mutex>
#include <span>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cuda_emulation {
namespace {

using Functions = std::map<uintptr_t, std::string>;  // by where they begin, from the file's start

Functions functions_of(const char* path) {
  Functions all;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about {};
  if (file < 0 || fstat(file, &about) != 0) return all;
  const auto bytes = static_cast<size_t>(about.st_size);
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  (void)close(file);
  if (mapped == MAP_FAILED) return all;
  const auto* begin = static_cast<const char*>(mapped);
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(begin);
  const std::span sections(reinterpret_cast<const Elf64_Shdr*>(begin + header->e_shoff),
                           header->e_shnum);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const char* names = begin + sections[section.sh_link].sh_offset;
    for (const Elf64_Sym& s :
         std::span(reinterpret_cast<const Elf64_Sym*>(begin + section.sh_offset),
                   section.sh_size / sizeof(Elf64_Sym))) {
      if (ELF64_ST_TYPE(s.st_info) == STT_FUNC && s.st_value != 0)
        all[s.st_value] = names + s.st_name;
    }
  }
  (void)munmap(mapped, bytes);
  return all;
}

struct Counting {
  std::mutex mutex;
  int64_t calls = 0, waits = 0;
  std::map<const void*, int64_t> launches;
  std::atomic<int64_t> products{0}, matrices{0}, accesses{0};
};

Counting& counting() {
  static auto* all = new Counting;  // threads may end after main
  return *all;
}

}  // namespace

void count_call() {
  const std::lock_guard lock(counting().mutex);
  ++counting().calls;
}

void count_wait() {
  const std::lock_guard lock(counting().mutex);
  ++counting().waits;
}

void count_launch(const void* code) {
  const std::lock_guard lock(counting().mutex);
  ++counting().launches[code];
}

void count_product() { ++counting().products; }

void count_matrix(int accesses) {
  ++counting().matrices;
  counting().accesses += accesses;
}

std::string symbol_of(const void* code) {
  static std::mutex mutex;
  static auto* libraries = new std::map<std::string, Functions>;
  Dl_info about{};
  if (dladdr(code, &about) == 0 || !about.dli_fname) return {};
  const std::lock_guard lock(mutex);
  auto it = libraries->find(about.dli_fname);
  if (it == libraries->end())
    it = libraries->emplace(about.dli_fname, functions_of(about.dli_fname)).first;
  const auto after = it->second.upper_bound(reinterpret_cast<uintptr_t>(code) -
                                            reinterpret_cast<uintptr_t>(about.dli_fbase));
  return after == it->second.begin() ? std::string() : std::prev(after)->second;
}

std::string name_of(const void* code) { return tessera::kernel_name(symbol_of(code)); }

}  // namespace cuda_emulation

void cuda_emulation_counts(cuda_emulation::Counts* counts) {
  using namespace cuda_emulation;
  const std::lock_guard lock(counting().mutex);
  counts->calls = counting().calls;
  counts->waits = counting().waits;
  counts->products = counting().products;
  counts->matrices = counting().matrices;
  counts->accesses = counting().accesses;
  counts->launches.clear();
  for (const auto& [code, times] : counting().launches) counts->launches[name_of(code)] += times;
}

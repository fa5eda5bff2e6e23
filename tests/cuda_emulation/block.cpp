// SPDX-License-Identifier: Apache-2.0
// A fiber runs threads one after the other, straight through; a thread that waits keeps its fiber,
// and another fiber goes on with the others. So a kernel without barriers and shuffles costs no
// switch at all. A barrier opens when nobody else can run and every thread of the block stands at
// it: a thread that has left, or stands elsewhere, is a fault of the kernel.
#include "block.h"

#include "counts.h"
#include "fiber.h"
#include "mutants.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

extern "C" {
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
}

namespace cuda_emulation {
namespace {

constexpr int kPoison = 0xff;  // NaN as any float

constexpr const char* kWaiting = "threads wait for each other for ever";
constexpr const char* kTooMuchShared = "a kernel has too much shared memory";

struct Thread {
  enum State { fresh, ready, at_barrier, in_warp, left } state = fresh;
  Fiber* fiber = nullptr;
  Site site;
  unsigned mask = 0;         // lanes that it waits for in_warp
  void* operands = nullptr;  // what it gives them, on its stack
  Copies copies;
};

// What a lane gives to a shuffle and takes from it.
struct Shuffle {
  alignas(16) unsigned char bytes[16];
  int from;
};

void shuffle(void* const (&lanes)[kWarp]) {
  Shuffle given[kWarp];
  for (int l = 0; l < kWarp; ++l) {
    if (lanes[l]) given[l] = *static_cast<const Shuffle*>(lanes[l]);
  }
  for (int l = 0; l < kWarp; ++l) {
    if (lanes[l]) std::memcpy(lanes[l], given[given[l].from].bytes, sizeof(Shuffle::bytes));
  }
}

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string text_of(const Site& site) {
  return std::string(site.file_name()) + ":" + std::to_string(site.line()) + " (" +
         site.function_name() + ")";
}

struct Free {
  void operator()(unsigned char* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<unsigned char, Free>;

Bytes allocate(size_t bytes, size_t alignment) {
  void* block = nullptr;
  if (posix_memalign(&block, std::max<size_t>(alignment, 16), bytes) != 0) throw std::bad_alloc();
  return Bytes(static_cast<unsigned char*>(block));
}

// What mutants.h asks for; of the one grid that runs at a time.
std::vector<Mutant>* watched = nullptr;
std::optional<Mutant> planted;

// Whether the running kernel has this mutant; a place where it could have one is noted.
bool mutated(Mutant::Kind kind, const void* kernel, const Site& site = {}) {
  const Mutant here{kind, kernel, site};
  if (watched && std::ranges::find(*watched, here) == watched->end()) watched->push_back(here);
  return planted == here;
}

struct SharedArray {
  const void* key;
  size_t bytes;
  Site site;
  Bytes block;
};

class Grid {
 public:
  Grid(const Kernel& kernel, size_t limit, Order order, std::mt19937_64& random)
      : kernel_(kernel),
        limit_(limit),
        order_(order),
        random_(random),
        launched_(allocate(kernel.shared, 16)),
        threads_(kernel.block.x * kernel.block.y * kernel.block.z) {}

  static Grid* running;

  std::string run() {
    running = this;
    const dim3 grid = kernel_.grid;
    const unsigned blocks = grid.x * grid.y * grid.z;
    blockDim = kernel_.block;
    gridDim = grid;
    if (blocks > 1 && mutated(Mutant::wide_block, kernel_.function)) ++blockDim.x;
    const bool misses_last = mutated(Mutant::missing_block, kernel_.function);
    for (const unsigned b : in_order(blocks)) {
      if (misses_last && b == blocks - 1) continue;
      blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
      run_block();
      if (fault_) break;
    }
    running = nullptr;
    if (!fault_) return {};
    fibers().clear(), idle().clear();  // threads of the block stand in them
    return text_of_fault();
  }

  void barrier(Site site) {
    if (mutated(Mutant::skipped_barrier, kernel_.function, site)) return;
    me().state = Thread::at_barrier;
    me().site = site;
    wait();
  }

  void exchange(unsigned mask, int from, void* value, size_t bytes, Site site) {
    if (mutated(Mutant::wrong_lane, kernel_.function, site) && (mask >> (from ^ 1) & 1)) from ^= 1;
    if (from < 0 || from >= kWarp || (mask >> from & 1) == 0)
      fail("a lane takes from one that is not in the mask of its shuffle", site);
    Shuffle mine{{}, from};
    std::memcpy(mine.bytes, value, bytes);
    converge(mask, &mine, shuffle, site);
    std::memcpy(value, mine.bytes, bytes);
  }

  void converge(unsigned mask, void* mine, void (*act)(void* const (&lanes)[kWarp]), Site site) {
    if ((mask >> lane() & 1) == 0) fail("a lane is not in the mask of its shuffle", site);
    Thread& t = me();
    t.state = Thread::in_warp;
    t.site = site;
    t.mask = mask;
    t.operands = mine;
    if (all_in_warp()) finish(act);
    wait();
  }

  void* shared_array(const void* key, size_t bytes, size_t alignment, Site site) {
    for (const SharedArray& a : arrays_) {
      if (a.key != key) continue;
      if (!same(a.site, site))
        fail("a kernel makes two shared arrays of one type, which would be one", site);
      return a.block.get();
    }
    static_bytes_ += (bytes + 15) / 16 * 16;
    if (static_bytes_ + kernel_.shared > limit_) fail(kTooMuchShared, site);
    arrays_.push_back({key, bytes, site, allocate(bytes, alignment)});
    std::memset(arrays_.back().block.get(), kPoison, bytes);
    return arrays_.back().block.get();
  }

  unsigned char* launch_shared() { return launched_.get(); }
  [[nodiscard]] int lane() const { return static_cast<int>(now_ % kWarp); }
  Copies& copies() { return me().copies; }
  [[nodiscard]] const void* function() const { return kernel_.function; }

  [[nodiscard]] bool is_shared(const void* p, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(p);
    const auto holds = [&](const Bytes& block, size_t size) {
      const auto begin = reinterpret_cast<uintptr_t>(block.get());
      return at >= begin && at + bytes <= begin + size;
    };
    return holds(launched_, kernel_.shared) ||
           std::ranges::any_of(arrays_,
                               [&](const SharedArray& a) { return holds(a.block, a.bytes); });
  }

  // A fiber that is given up frees nothing, so that the text is made on the caller's stack.
  [[noreturn]] void fail(const char* what, const Site& site) {
    me().site = site;
    give_up(what);
  }

 private:
  Thread& me() { return threads_[now_]; }

  // Fibers wait here for threads, from one grid to the next.
  static std::vector<std::unique_ptr<Fiber>>& fibers() {
    static std::vector<std::unique_ptr<Fiber>> all;
    return all;
  }
  static std::vector<Fiber*>& idle() {
    static std::vector<Fiber*> all;
    return all;
  }

  std::vector<unsigned> in_order(size_t count) {
    std::vector<unsigned> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0U);
    if (order_ == Order::falling) std::reverse(numbers.begin(), numbers.end());
    if (order_ == Order::random) std::shuffle(numbers.begin(), numbers.end(), random_);
    return numbers;
  }

  void run_block() {
    for (Thread& t : threads_) t.state = Thread::fresh, t.copies = {};
    left_ = 0;
    for (const SharedArray& a : arrays_) std::memset(a.block.get(), kPoison, a.bytes);
    std::memset(launched_.get(), kPoison, kernel_.shared);
    make_ready();
    go_to(main_, *pick());
  }

  // All threads, so that the first in order is taken first.
  void make_ready() {
    ready_ = in_order(threads_.size());
    std::reverse(ready_.begin(), ready_.end());
  }

  // The thread to go on with; none if all have left.
  std::optional<unsigned> pick() {
    if (ready_.empty()) {
      if (left_ == threads_.size()) return {};
      open_barrier();
    }
    if (order_ == Order::random) std::swap(ready_[random_() % ready_.size()], ready_.back());
    const unsigned t = ready_.back();
    ready_.pop_back();
    return t;
  }

  void open_barrier() {
    for (const Thread& t : threads_) {
      if (t.state != Thread::at_barrier || !same(t.site, threads_[0].site)) give_up(kWaiting);
    }
    for (Thread& t : threads_) t.state = Thread::ready;
    make_ready();
  }

  // From the fiber `from` to that of thread `t`.
  void go_to(Fiber& from, unsigned t) {
    now_ = t;
    const dim3 block = kernel_.block;
    threadIdx = {t % block.x, t / block.x % block.y, t / block.x / block.y};
    Thread& thread = me();
    if (thread.state == Thread::fresh) {
      if (idle().empty()) {
        fibers().push_back(std::make_unique<Fiber>([] { work(); }));
        idle().push_back(fibers().back().get());
      }
      thread.fiber = idle().back();
      idle().pop_back();
    }
    if (thread.fiber != &from) Fiber::change(from, *thread.fiber);
  }

  // What a fiber does: a thread to its end, then another, perhaps of a later grid.
  [[noreturn]] static void work() {
    for (;;) {
      Fiber& mine = *running->me().fiber;
      running->kernel_.thread();
      running->me().state = Thread::left;
      ++running->left_;
      idle().push_back(&mine);
      const std::optional<unsigned> next = running->pick();
      if (next) running->go_to(mine, *next);
      else Fiber::change(mine, running->main_);
    }
  }

  void wait() {
    Fiber& mine = *me().fiber;
    go_to(mine, *pick());
  }

  [[nodiscard]] bool all_in_warp() const {
    const Thread& mine = threads_[now_];
    const unsigned first = now_ - now_ % kWarp;
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((mine.mask >> l & 1) == 0) continue;
      if (first + l >= threads_.size()) return false;
      const Thread& t = threads_[first + l];
      if (t.state != Thread::in_warp || t.mask != mine.mask || !same(t.site, mine.site))
        return false;
    }
    return true;
  }

  void finish(void (*act)(void* const (&lanes)[kWarp])) {
    const unsigned first = now_ - now_ % kWarp, mask = me().mask;
    void* lanes[kWarp] = {};
    for (unsigned l = 0; l < kWarp; ++l) {
      if (mask >> l & 1) lanes[l] = threads_[first + l].operands;
    }
    act(lanes);
    for (unsigned l = 0; l < kWarp; ++l) {
      const unsigned at = order_ == Order::falling ? l : kWarp - 1 - l;
      if ((mask >> at & 1) == 0) continue;
      threads_[first + at].state = Thread::ready;
      ready_.push_back(first + at);
    }
  }

  // --- faults -------------------------------------------------------------------------------------

  [[noreturn]] void give_up(const char* what) {
    fault_ = what;
    Fiber::change(*me().fiber, main_);
    std::abort();  // nobody comes back
  }

  [[nodiscard]] std::string text_of_fault() const {
    std::string text = fault_;
    if (fault_ == kWaiting) {
      std::map<std::string, int> where;
      for (const Thread& t : threads_) {
        if (t.state == Thread::left) ++where["left the kernel"];
        else if (t.state == Thread::at_barrier) ++where["wait at the barrier " + text_of(t.site)];
        else ++where["wait for their warp at " + text_of(t.site)];
      }
      for (const auto& [what, count] : where) text += "; " + std::to_string(count) + " " + what;
    } else {
      text += ", at " + text_of(threads_[now_].site);
    }
    if (fault_ == kTooMuchShared) {
      text += ": static and launched bytes, " + std::to_string(static_bytes_) + " + " +
              std::to_string(kernel_.shared) + ", are more than " + std::to_string(limit_);
    }
    return text + ", in block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) +
           ", " + std::to_string(blockIdx.z) + ")";
  }

  const Kernel& kernel_;
  const size_t limit_;
  const Order order_;
  std::mt19937_64& random_;
  const Bytes launched_;
  std::vector<Thread> threads_;
  std::vector<SharedArray> arrays_;
  size_t static_bytes_ = 0, left_ = 0;
  std::vector<unsigned> ready_;  // taken from the end
  unsigned now_ = 0;             // the running thread
  Fiber main_;
  const char* fault_ = nullptr;
};

Grid* Grid::running = nullptr;
Order order_of_mutant = Order::rising;
std::mt19937_64 random_of_mutant;

// `barrier 2 of attention.cu`: counted down the file, so that it stays when other lines move.
std::string place_of(const Site& site, std::string_view what, std::string_view word) {
  const std::string path = site.file_name();
  std::ifstream file(path);
  int number = 0;
  std::string line;
  for (unsigned at = 1; at <= site.line() && std::getline(file, line); ++at)
    number += line.find(word) != std::string::npos;
  return std::string(what) + ' ' + std::to_string(number) + " of " +
         path.substr(path.rfind('/') + 1);
}

}  // namespace

std::string run_grid(const Kernel& kernel, size_t limit, Order order, std::mt19937_64& random) {
  if (planted) return Grid(kernel, limit, order_of_mutant, random_of_mutant).run();
  return Grid(kernel, limit, order, random).run();
}

bool Mutant::operator==(const Mutant& o) const {
  const bool has_site = kind == skipped_barrier || kind == skipped_wait || kind == wrong_lane;
  return kind == o.kind && kernel == o.kernel && (!has_site || same(site, o.site));
}

std::string text_of(const Mutant& m) {
  const std::string kernel = name_of(m.kernel) + ' ';
  switch (m.kind) {
    case Mutant::skipped_barrier:
      return kernel + "without " + place_of(m.site, "barrier", "__syncthreads(");
    case Mutant::skipped_wait:
      return kernel + "without " + place_of(m.site, "wait for copies", "cp_async_wait<");
    case Mutant::wrong_lane:
      return kernel + "with the wrong lane in " + place_of(m.site, "shuffle", "__shfl_");
    case Mutant::wide_block: return kernel + "with blockDim.x + 1";
    case Mutant::missing_block: break;
  }
  return kernel + "without its last block";
}

void watch_for_mutants(std::vector<Mutant>* found) { watched = found; }
void plant(const Mutant& mutant, Order order) {
  planted = mutant;
  order_of_mutant = order;
  random_of_mutant.seed();
}

void barrier(Site site) { Grid::running->barrier(site); }
void exchange(unsigned mask, int from, void* value, size_t bytes, Site site) {
  Grid::running->exchange(mask, from, value, bytes, site);
}
void* shared_array(const void* key, size_t bytes, size_t alignment, Site site) {
  return Grid::running->shared_array(key, bytes, alignment, site);
}
unsigned char* launch_shared() { return Grid::running->launch_shared(); }
int lane() { return Grid::running->lane(); }

void converge(unsigned mask, void* mine, void (*act)(void* const (&lanes)[kWarp]), Site site) {
  Grid::running->converge(mask, mine, act, site);
}
bool is_shared(const void* p, size_t bytes) { return Grid::running->is_shared(p, bytes); }
void fail(const char* what, Site site) { Grid::running->fail(what, site); }
Copies& copies() { return Grid::running->copies(); }
bool mutated(Mutant::Kind kind, Site site) {
  return mutated(kind, Grid::running->function(), site);
}

}  // namespace cuda_emulation

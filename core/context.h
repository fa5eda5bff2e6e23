// SPDX-License-Identifier: Apache-2.0
// Context: all state of one rank, reached through one thread-local pointer, so that ranks can be
// threads. Worker threads have no Context: kernels read it before a parallel region.
#pragma once

#include "tessera/core/allocator.h"
#include "tessera/core/call_keys.h"
#include "tessera/core/hooks.h"
#include "tessera/core/pool.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// All state of one rank. Make one per rank thread; it is the thread's current Context for its
/// lifetime.
class TESSERA_API Context : public Pool {
 public:
  struct Options {
    int threads = 0;             ///< kernel threads of this rank; 0 = all cores
    bool deterministic = false;  ///< same bits on every run, even if slower
    bool anomaly = false;        ///< stop at the first NaN and name the op that made it
  };
  Context();
  explicit Context(const Options& options);
  ~Context();

  /// The calling thread's context; UsageError on a thread without one.
  static Context& current();
  static Context* current_or_null() noexcept { return static_cast<Context*>(current_); }
  /// The calling thread's context, or an enclosing one, with this number; null if it ended or
  /// belongs to another thread.
  static Context* find(uint32_t number) noexcept;

  Recorder* recorder = nullptr;
  Distributor* distributor = nullptr;
  /// Set only while communication is pending; every op call polls it.
  Progress* progress = nullptr;
  Interceptor* interceptor = nullptr;
  bool grad_enabled = true;
  bool in_kernel = false;  ///< a kernel runs: what was under way on its operands has ended
  Options options;
  /// Unique among all Contexts of this process, past ones included.
  const uint32_t number;
  /// Path of the running module, for error messages and anomaly mode (`layers.3.attention`).
  std::vector<std::string> module_path;
  CallKeys call_keys;  ///< random numbers of ops that draw them while the model runs
  /// The key of the next draw in the current module.
  [[nodiscard]] RngKey next_key() { return call_keys.next(module_path); }
  /// Called after every op when set (profilers, op traces).
  std::function<void(const OpRow&, const void* op, Tensors in, Tensors out)> op_hook;

  [[nodiscard]] const Ref<Allocator>& allocator(Device device);
  [[nodiscard]] Stream stream(Device device);

  /// Per-rank state of a module (primitive caches, plans): one T, made on first use, destroyed
  /// with the Context.
  template <class T> [[nodiscard]] T& state() {
    for (auto& [key, value] : states_) {
      if (key == &kStateKey<T>) return *static_cast<T*>(value.get());
    }
    states_.emplace_back(&kStateKey<T>, std::make_shared<T>());
    return *static_cast<T*>(states_.back().second.get());
  }

 private:
  template <class T> static constexpr char kStateKey = 0;
  Ref<Allocator> cpu_allocator_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> states_;
};

}  // namespace tessera

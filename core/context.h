// SPDX-License-Identifier: Apache-2.0
// Process: what exists once per process (CPU features, the CUDA library). Context: all state of one
// rank, reached through one thread-local pointer, so that ranks can be threads. Worker threads have
// no Context: kernels take what they need before a parallel region. Recorder, Distributor and
// Progress are how `call` reaches the tape, the planner and pending communication.
#pragma once

#include "tessera/core/allocator.h"
#include "tessera/core/op_types.h"
#include "tessera/core/rng.h"

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

class CudaBackend;
class CudaLoader;
struct OpRow;

/// Instruction sets that kernels are compiled for.
enum class Isa : uint8_t { baseline, avx2, avx512 };

/// Once per process. Made on first use; holds no tensors.
class TESSERA_API Process {
 public:
  static Process& get();
  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] int cores() const { return cores_; }
  /// Limits kernels to `isa` (tests compare instruction sets); throws ValueError above what the
  /// machine has.
  void limit_isa(Isa isa);
  /// The CUDA library, loaded on first use; DeviceError says why there is none.
  CudaBackend& cuda();
  [[nodiscard]] bool cuda_available() noexcept;
  [[nodiscard]] const Ref<Allocator>& cuda_allocator(int device);
  ~Process();

 private:
  friend class Context;
  Process();
  Isa isa_, machine_isa_;
  int cores_ = 1;
  std::once_flag cuda_once_;
  std::unique_ptr<CudaLoader> cuda_;
  std::atomic<uint32_t> contexts_{0};  // made so far
};

/// Records ops for backward; implemented by autograd.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void record(const OpRow& row, const void* op, Tensors in, Outputs out) = 0;
  /// Called before an in-place op writes `x`; throws InPlaceError where autograd forbids it.
  virtual void check_write(const OpRow& row, const Tensor& x) = 0;
};

/// Runs ops on distributed tensors; implemented by dist.
class Distributor {
 public:
  virtual ~Distributor() = default;
  /// Plans and runs an op of which an input is distributed.
  virtual void call(const OpRow& row, const void* op, Tensors in, TensorList& out) = 0;
  /// The inputs of such an op where its plan sends them, as call would record them.
  virtual TensorList arrange(const OpRow& row, const void* op, Tensors in) = 0;
  /// Runs an op without inputs whose outputs lie as `like` does (replicated where that is partial).
  virtual void call_like(const OpRow& row, const void* op, const Tensor& like, TensorList& out) = 0;
  /// The gradient of a leaf, lying as the leaf does as far as no rank sends for it: cut where it is
  /// whole and the leaf is cut.
  virtual Tensor settle(const Tensor& gradient, const Tensor& leaf) = 0;
  /// The whole of a distributed tensor, plain, on every rank; not recorded.
  virtual Tensor whole(const Tensor& x) = 0;
};

/// Stands between a program and its ops while it is set; implemented by autograd's checkpointing.
/// What an op calls inside (plans, kernels) does not reach it; inputs that the op's plan sends
/// elsewhere have arrived.
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  /// May give the outputs of an op that then does not run; it is recorded all the same.
  virtual bool replay(const OpRow& row, const void* op, Tensors in, TensorList& out) = 0;
  /// Called after an op that ran or was replayed.
  virtual void observe(const OpRow& row, const void* op, Tensors in, Tensors out) = 0;
};

/// Moves communication under way on; implemented by dist.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void poll() noexcept = 0;
};

/// Keys of random numbers drawn while a model runs (dropout): a function of the seed, the step, the
/// module path and the number of the draw in that module, so that they are the same on any mesh. A
/// copy, put back later, draws the same keys again.
class TESSERA_API CallKeys {
 public:
  /// What follows is drawn from `seed`, from the first draw of step 0 on.
  void set_seed(uint64_t seed);
  /// What follows is drawn for `step`, from its first draw on.
  void set_step(uint64_t step);
  [[nodiscard]] RngKey next(const std::vector<std::string>& module_path);

 private:
  uint64_t seed_ = 0, step_ = 0;
  std::map<uint64_t, uint64_t> draws_;  // by the hash of the module path
};

/// All state of one rank. Make one per rank thread; it becomes the thread's current one while it
/// lives.
class TESSERA_API Context {
 public:
  struct Options {
    int threads = 0;             ///< kernel threads of this rank; 0 = all cores
    bool deterministic = false;  ///< same bits on every run, whatever it costs
    bool anomaly = false;        ///< stop at the first NaN and say which op made it
  };
  Context();
  explicit Context(const Options& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// The calling thread's context; UsageError on a thread without one.
  static Context& current();
  static Context* current_or_null() noexcept { return current_; }
  /// The calling thread's context, or one around it, that has this number; null: it ended, or is
  /// another thread's.
  static Context* find(uint32_t number) noexcept;

  Recorder* recorder = nullptr;
  Distributor* distributor = nullptr;
  /// Set only while communication is pending; every op call polls it.
  Progress* progress = nullptr;
  Interceptor* interceptor = nullptr;
  bool grad_enabled = true;
  Options options;
  /// Differs from that of every other Context that this process has or had.
  const uint32_t number;
  /// Where the program is, for error messages and anomaly mode (`layers.3.attention`).
  std::vector<std::string> module_path;
  CallKeys call_keys;  ///< random numbers of ops that draw them while the model runs
  /// Called after every op when set (profilers, op traces).
  std::function<void(const OpRow&, const void* op, Tensors in, Tensors out)> op_hook;

  [[nodiscard]] const Ref<Allocator>& allocator(Device device);
  [[nodiscard]] Stream stream(Device device);

  /// What a module keeps per rank (primitive caches, plans): one T, made on first use, gone with
  /// the Context.
  template <class T> [[nodiscard]] T& state() {
    for (auto& [key, value] : states_) {
      if (key == &kStateKey<T>) return *static_cast<T*>(value.get());
    }
    states_.emplace_back(&kStateKey<T>, std::make_shared<T>());
    return *static_cast<T*>(states_.back().second.get());
  }

 private:
  template <class T> static constexpr char kStateKey = 0;
  friend void* pool_allocate(size_t);
  friend void pool_free(void*, size_t) noexcept;
  static constexpr int kPoolClasses = 16;  // multiples of 64 bytes
  struct FreeBlock {
    FreeBlock* next;
  };
  static thread_local Context* current_ TESSERA_INITIAL_EXEC;
  Context* previous_;
  std::array<FreeBlock*, kPoolClasses> pool_{};
  Ref<Allocator> cpu_allocator_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> states_;
};

/// Turns recording on or off while it lives.
class GradMode {
 public:
  explicit GradMode(bool enabled) : context_(Context::current()), before_(context_.grad_enabled) {
    context_.grad_enabled = enabled;
  }
  ~GradMode() { context_.grad_enabled = before_; }
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  Context& context_;
  bool before_;
};

/// Nothing is recorded while it lives.
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

/// Names the part of the program that runs while it lives.
class ModuleScope {
 public:
  explicit ModuleScope(std::string name) : context_(Context::current()) {
    context_.module_path.push_back(std::move(name));
  }
  ~ModuleScope() { context_.module_path.pop_back(); }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  Context& context_;
};

}  // namespace tessera

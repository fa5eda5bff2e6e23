// SPDX-License-Identifier: Apache-2.0
// Devices, streams, events and memory. One lock for all: a step of a stream runs on the host thread
// that waits for it, and no two steps run at once. Which stream goes on next is drawn anew for
// every step, so that work which no event orders runs in any order; now and then a step runs early,
// as on a device that does not wait for the host.
#include "activity.h"
#include "block.h"
#include "counts.h"
#include "cuda_emulation.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace cuda_emulation {

struct Step {
  std::function<void()> run;
  std::shared_ptr<const bool> after;      // where given, the step waits until this is true
  std::function<bool()> until = nullptr;  // or until this says true, by what other ranks do
  size_t record = 0;                      // its number among the records, from 1
  uint32_t call = 0;                      // of the runtime, that gave it to the stream
};

struct Graph {
  int device = 0;
  std::vector<std::function<void()>> steps;
};

struct Stream {
  int device = 0;
  std::deque<Step> steps;
  std::unique_ptr<Graph> capture;  // what it is given goes there
  std::thread::id captured_by;
  bool invalidated = false;
  bool known_idle = false;  // to the host, which has waited for all that it was given
};

struct Event {
  int device = 0;
  std::shared_ptr<bool> done = std::make_shared<bool>(true);  // of its last record
  const Stream* captured_on = nullptr;
  bool known_done = false;  // to the host
};

namespace {

constexpr int kMostDevices = 4, kPoison = 0xff;
constexpr size_t kAlignment = 256;

struct Block {
  size_t bytes;
  int device;  // kHost: pinned memory
  bool freed = false;
};
constexpr int kHost = -1, kPageable = -2;

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

thread_local int current = 0;
thread_local cudaError_t last = cudaSuccess;

class Runtime {
 public:
  static Runtime& get() {
    static auto* runtime = new Runtime;  // threads may end after main
    return *runtime;
  }

  std::recursive_mutex mutex;
  int devices = static_cast<int>(
      std::min<uint64_t>(number_from("TESSERA_EMULATED_DEVICES", 0), kMostDevices));
  std::vector<std::unique_ptr<Stream>> streams;
  std::map<const void*, Block> blocks;
  std::unordered_map<const void*, size_t> shared_limits;  // of kernels that got leave for more
  size_t used[kMostDevices] = {};
  size_t most = number_from("TESSERA_EMULATED_MEMORY_MB", 8192) << 20;  // of each device
  std::string fault;
  ActivitySink* activity = nullptr;
  uint32_t call_number = 0;
  std::vector<StepRecord> records;
  bool records_steps = false;

  Runtime() {
    for (int d = 0; d < kMostDevices; ++d) defaults_[d].device = d;
    const char* order = std::getenv("TESSERA_EMULATED_ORDER");
    if (order) {
      for (const Order o : {Order::rising, Order::falling, Order::random}) {
        if (std::string(order) == kOrders[static_cast<size_t>(o)]) order_ = o;
      }
    }
  }

  cudaError_t status() const { return fault.empty() ? cudaSuccess : cudaErrorLaunchFailure; }

  /// The stream itself, or the device's own for null.
  Stream* of(Stream* stream) { return stream ? stream : &defaults_[current]; }

  void add(Stream* stream, Step step, std::string what = "",
           std::shared_ptr<const bool> event = nullptr) {
    Stream& s = *of(stream);
    if (s.capture) {
      s.capture->steps.push_back(std::move(step.run));
      return;
    }
    if (records_steps && !what.empty()) {
      records.push_back({s.device, &s, std::move(what), std::move(event), ++moment_});
      step.record = records.size();
    }
    s.known_idle = false;
    step.call = call_number;
    if (activity) activity->called(call_number);
    s.steps.push_back(std::move(step));
    if (random_() % 4 == 0) (void)run_one();
  }

  /// `run` as what the sink of activities is told of. `code`: of a kernel.
  std::function<void()> told(Activity::Kind kind, const void* code, size_t bytes, Stream* stream,
                             std::function<void()> run) {
    const auto now = [] {
      return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
    return [=, this, s = of(stream), run = std::move(run)] {
      const int64_t begin = now();
      run();
      if (activity)
        activity->ran(
            {kind, code ? symbol_of(code) : "", s->device, s, running_, bytes, begin, now()});
    };
  }

  /// Runs steps until `done`; false where none can run before, and no other rank can change
  /// that.
  template <class F> bool run_until(F done) {
    while (!done()) {
      if (run_one()) continue;
      if (!fault.empty() || !waits_for_others()) return false;
      mutex.unlock();  // held once: by the call that waits
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      mutex.lock();
    }
    return true;
  }

  bool run_one() {
    Stream* chosen = nullptr;
    unsigned seen = 0;
    const auto look_at = [&](Stream& s) {
      if (s.steps.empty()) return;
      const Step& next = s.steps.front();
      if ((next.after && !*next.after) || (next.until && !next.until())) return;
      if (random_() % ++seen == 0) chosen = &s;
    };
    for (Stream& s : defaults_) look_at(s);
    for (const auto& s : streams) look_at(*s);
    if (!chosen) return false;
    const Step step = std::move(chosen->steps.front());
    chosen->steps.pop_front();
    running_ = step.call;
    if (step.run && fault.empty()) step.run();
    if (step.record > 0 && step.record <= records.size()) records[step.record - 1].ran = ++moment_;
    return true;
  }

  void run_kernel(const Kernel& kernel) {
    const auto leave = shared_limits.find(kernel.function);
    const size_t limit = leave == shared_limits.end() ? kSharedBytes : kMostSharedBytes;
    const auto order = order_ ? *order_ : static_cast<Order>(random_() % std::size(kOrders));
    fault = run_grid(kernel, limit, order, random_);
    if (!fault.empty()) {
      fault += ", threads in " + std::string(kOrders[static_cast<size_t>(order)]) +
               " order, TESSERA_TEST_SEED=" + std::to_string(seed_);
    }
  }

  int device_of(const void* p, size_t bytes = 1) const {
    auto it = blocks.upper_bound(p);
    if (it == blocks.begin()) return kPageable;
    --it;
    const auto offset =
        static_cast<size_t>(static_cast<const char*>(p) - static_cast<const char*>(it->first));
    return offset + bytes <= it->second.bytes ? it->second.device : kPageable;
  }

  /// The stream that this thread captures, or null.
  Stream* capturing() const {
    for (const auto& s : streams) {
      if (s->capture && s->captured_by == std::this_thread::get_id()) return s.get();
    }
    return nullptr;
  }

  void* allocate(size_t bytes, int device) {
    void* block = nullptr;
    if (posix_memalign(&block, kAlignment, bytes) != 0) return nullptr;
    std::memset(block, kPoison, bytes);
    blocks[block] = {bytes, device};
    return block;
  }
  /// `bytes` of a device's memory.
  cudaError_t take(void** block, size_t bytes, int device) {
    if (bytes == 0) return cudaErrorInvalidValue;
    if (bytes > most - std::min(used[device], most)) return cudaErrorMemoryAllocation;
    *block = allocate(bytes, device);
    if (!*block) return cudaErrorMemoryAllocation;
    used[device] += bytes;
    return cudaSuccess;
  }
  void release(void* block) {
    const auto it = blocks.find(block);
    if (it->second.device >= 0) used[it->second.device] -= it->second.bytes;
    blocks.erase(it);
    std::free(block);
  }

  void reset() {
    for (Stream& s : defaults_) s.steps.clear();
    for (const auto& s : streams) {
      s->steps.clear();
      s->capture.reset();
    }
    fault.clear();
  }

 private:
  bool waits_for_others() const {
    const auto waits = [](const Stream& s) { return !s.steps.empty() && s.steps.front().until; };
    return std::any_of(std::begin(defaults_), std::end(defaults_), waits) ||
           std::any_of(streams.begin(), streams.end(), [&](const auto& s) { return waits(*s); });
  }

  static constexpr const char* kOrders[] = {"rising", "falling", "random"};
  const uint64_t seed_ = number_from("TESSERA_TEST_SEED", std::random_device{}());
  std::mt19937_64 random_{seed_};
  std::optional<Order> order_;  // none: drawn for each launch
  Stream defaults_[kMostDevices];
  size_t moment_ = 0;     // counts what is recorded
  uint32_t running_ = 0;  // the call of the step that runs
};

/// What every call does: under the lock, with its error kept for cudaGetLastError.
template <class F> cudaError_t call(F f) {
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  count_call();
  ++r.call_number;
  cudaError_t status = r.devices == 0 ? cudaErrorNoDevice : r.status();
  if (status == cudaSuccess) status = f(r);
  if (status != cudaSuccess) last = status;
  return status;
}

/// What no thread may call that captures a stream: its capture is lost.
template <class F> cudaError_t call_outside_capture(F f) {
  return call([&](Runtime& r) {
    if (Stream* const s = r.capturing()) {
      s->invalidated = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    return f(r);
  });
}

// Where the host knows that there is nothing to wait for, it does not wait.
void count_wait_unless(bool& known) {
  if (!known) count_wait();
  known = true;
}

cudaError_t wait_for(Runtime& r, bool reached) {
  if (reached) return r.status();
  if (r.fault.empty()) r.fault = "a stream waits for what nobody will do";
  return cudaErrorLaunchFailure;
}

}  // namespace

bool skips_launches() {
  static const bool skips = [] {
    const char* const launches = std::getenv("TESSERA_EMULATED_LAUNCHES");
    return launches && std::string(launches) == "skip";
  }();
  return skips;
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  if (skips_launches()) return cudaSuccess;
  const void* const code = __builtin_return_address(0);
  count_launch(code);
  return call([&](Runtime& r) {
    r.add(stream, {r.told(Activity::kernel, code, 0, stream, std::move(work)), nullptr}, "library");
    return cudaSuccess;
  });
}

cudaError_t launch(Kernel kernel, cudaStream_t stream) {
  return call([&](Runtime& r) {
    const dim3 &g = kernel.grid, &b = kernel.block;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > std::numeric_limits<int>::max() || g.y > 65535 ||
        g.z > 65535 || b.x == 0 || b.y == 0 || b.z == 0 || size_t{b.x} * b.y * b.z > kMostThreads)
      return cudaErrorInvalidConfiguration;
    const auto leave = r.shared_limits.find(kernel.function);
    if (kernel.shared > (leave == r.shared_limits.end() ? kSharedBytes : leave->second))
      return cudaErrorInvalidValue;
    if (r.of(stream)->device != current) return cudaErrorInvalidResourceHandle;
    count_launch(kernel.function);
    const void* const code = kernel.function;
    r.add(stream,
          {r.told(Activity::kernel, code, 0, stream,
                  [&r, kernel = std::move(kernel)] { r.run_kernel(kernel); }),
           nullptr},
          "kernel");
    return cudaSuccess;
  });
}

std::recursive_mutex& runtime_mutex() { return Runtime::get().mutex; }

cudaError_t enqueue_until(cudaStream_t stream, std::string what, std::function<void()> begin,
                          std::function<bool()> end) {
  return call([&](Runtime& r) {
    r.add(stream, {std::move(begin), nullptr}, std::move(what));
    r.add(stream, {nullptr, nullptr, std::move(end)});
    return cudaSuccess;
  });
}

int device_of(cudaStream_t stream) { return Runtime::get().of(stream)->device; }

int device_of(const void* bytes, size_t count) {
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  return r.device_of(bytes, count);
}

void keep_memory(int device, int64_t bytes) {
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  r.used[device] += static_cast<size_t>(bytes);
}

void watch_activity(ActivitySink* sink) {
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  r.activity = sink;
}

void record_steps(bool on) {
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  if (on) r.records.clear();
  r.records_steps = on;
}

std::vector<StepRecord> recorded_steps() {
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  return r.records;
}

}  // namespace cuda_emulation

using namespace cuda_emulation;

// --- devices and errors ----------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call([&](Runtime& r) {
    *count = r.devices;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  return call([&](Runtime&) {
    *device = current;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([&](Runtime& r) {
    if (device < 0 || device >= r.devices) return cudaErrorInvalidDevice;
    current = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&](Runtime& r) {
    if (device < 0 || device >= r.devices) return cudaErrorInvalidDevice;
    *properties = {"emulated on the CPU", 9, 0};
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return call([&](Runtime& r) {
    if (device < 0 || device >= r.devices) return cudaErrorInvalidDevice;
    std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&](Runtime& r) {
    *total = r.most;
    *free = r.most - std::min(r.most, r.used[current]);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call_outside_capture([](Runtime& r) {
    count_wait();
    return wait_for(r, r.run_until([&] {
      const auto idle = [](const auto& s) { return s->device != current || s->steps.empty(); };
      return r.of(nullptr)->steps.empty() && std::all_of(r.streams.begin(), r.streams.end(), idle);
    }));
  });
}

cudaError_t cudaDeviceReset() {
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  r.reset();
  last = cudaSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last; }

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "an error that no emulated device has";
  }
}

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    case cudaErrorLaunchFailure: break;
    default: return "an error that no emulated device has";
  }
  thread_local std::string text;
  Runtime& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  text = r.fault;
  return text.c_str();
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  return call([&](Runtime& r) {
    if (value < 0 || static_cast<size_t>(value) > kMostSharedBytes) return cudaErrorInvalidValue;
    r.shared_limits[kernel] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  thread_local std::string symbol;
  symbol = symbol_of(kernel);
  if (symbol.empty()) return cudaErrorInvalidDeviceFunction;
  *name = symbol.c_str();
  return cudaSuccess;
}

// --- streams and events ----------------------------------------------------------------------------

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// A priority is a wish.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return call([&](Runtime& r) {
    r.streams.push_back(std::make_unique<Stream>());
    *stream = r.streams.back().get();
    (*stream)->device = current;
    return cudaSuccess;
  });
}

// CUDA lets what is enqueued end; here it ends at once.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&](Runtime& r) {
    const cudaError_t status = wait_for(r, r.run_until([&] { return stream->steps.empty(); }));
    std::erase_if(r.streams, [&](const auto& s) { return s.get() == stream; });
    return status;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call_outside_capture([&](Runtime& r) {
    count_wait_unless(r.of(stream)->known_idle);
    return wait_for(r, r.run_until([&] { return r.of(stream)->steps.empty(); }));
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call_outside_capture([&](Runtime& r) {
    (void)r.run_one();
    return r.of(stream)->steps.empty() ? r.status() : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call([&](Runtime& r) {
    Stream* const s = r.of(stream);
    if (s->capture || event->captured_on) {
      if (event->captured_on == s) return cudaSuccess;
      if (s->capture) s->invalidated = true;
      return cudaErrorStreamCaptureIsolation;
    }
    r.add(stream, {nullptr, event->done}, "wait", event->done);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call([&](Runtime&) {
    *event = new Event{current};
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&](Runtime& r) {
    if (r.of(stream)->device != event->device) return cudaErrorInvalidResourceHandle;
    event->captured_on = r.of(stream)->capture ? r.of(stream) : nullptr;
    if (event->captured_on) return cudaSuccess;
    event->done = std::make_shared<bool>(false);
    event->known_done = false;
    r.add(stream, {[done = event->done] { *done = true; }, nullptr}, "record", event->done);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call_outside_capture([&](Runtime& r) {
    if (event->captured_on) return cudaErrorCapturedEvent;
    (void)r.run_one();
    event->known_done = *event->done;
    return *event->done ? r.status() : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call_outside_capture([&](Runtime& r) {
    if (event->captured_on) return cudaErrorCapturedEvent;
    count_wait_unless(event->known_done);
    return wait_for(r, r.run_until([&] { return *event->done; }));
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&](Runtime&) {
    delete event;  // a record that is enqueued holds what it sets
    return cudaSuccess;
  });
}

// --- memory ----------------------------------------------------------------------------------------

cudaError_t cudaHostAlloc(void** block, size_t bytes, unsigned) {
  return call_outside_capture([&](Runtime& r) {
    *block = r.allocate(bytes, kHost);
    return *block ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

// CUDA waits here for all work of the device.
cudaError_t cudaFreeHost(void* block) {
  return call_outside_capture([&](Runtime& r) {
    if (!r.blocks.contains(block)) return cudaErrorInvalidValue;
    (void)r.run_until([] { return false; });
    r.release(block);
    return r.status();
  });
}

cudaError_t cudaMalloc(void** block, size_t bytes) {
  return call_outside_capture([&](Runtime& r) { return r.take(block, bytes, current); });
}

// CUDA waits here for all work of the device.
cudaError_t cudaFree(void* block) {
  return call_outside_capture([&](Runtime& r) {
    const auto it = r.blocks.find(block);
    if (it == r.blocks.end() || it->second.freed || it->second.device < 0)
      return cudaErrorInvalidValue;
    (void)r.run_until([] { return false; });
    r.release(block);
    return r.status();
  });
}

cudaError_t cudaMallocAsync(void** block, size_t bytes, cudaStream_t stream) {
  return call([&](Runtime& r) {
    if (r.of(stream)->capture) return cudaErrorStreamCaptureUnsupported;
    return r.take(block, bytes, r.of(stream)->device);
  });
}

cudaError_t cudaFreeAsync(void* block, cudaStream_t stream) {
  return call([&](Runtime& r) {
    const auto it = r.blocks.find(block);
    if (it == r.blocks.end() || it->second.freed || it->second.device < 0)
      return cudaErrorInvalidValue;
    if (r.of(stream)->capture) return cudaErrorStreamCaptureUnsupported;
    it->second.freed = true;
    r.add(stream, {[&r, block] { r.release(block); }, nullptr});
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call([&](Runtime& r) {
    const int there = r.device_of(to), here = r.device_of(from);
    if (kind != cudaMemcpyDefault) {
      const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
      const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
      if (to_device != (there >= 0) || from_device != (here >= 0)) return cudaErrorInvalidValue;
    }
    if (Stream* const s = r.of(stream); s->capture && (here == kPageable || there == kPageable)) {
      s->invalidated = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    if (here == kPageable) {  // taken at the call
      const auto* bytes_there = static_cast<const unsigned char*>(from);
      auto copy = [to, kept = std::vector<unsigned char>(bytes_there, bytes_there + bytes)] {
        std::memcpy(to, kept.data(), kept.size());
      };
      r.add(stream, {r.told(Activity::copy, nullptr, bytes, stream, std::move(copy)), nullptr});
    } else {
      const auto copy = [=] { std::memmove(to, from, bytes); };
      r.add(stream, {r.told(Activity::copy, nullptr, bytes, stream, copy), nullptr});
    }
    if (there != kPageable) return cudaSuccess;
    count_wait_unless(r.of(stream)->known_idle);
    return wait_for(r, r.run_until([&] { return r.of(stream)->steps.empty(); }));
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  return call([&](Runtime& r) {
    if (r.device_of(to) != to_device || r.device_of(from) != from_device)
      return cudaErrorInvalidValue;
    r.add(stream, {[=] { std::memmove(to, from, bytes); }, nullptr});
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* block, int value, size_t bytes, cudaStream_t stream) {
  return call([&](Runtime& r) {
    if (bytes > 0 && r.device_of(block) < 0) return cudaErrorInvalidValue;
    const auto fill = [=] { std::memset(block, value, bytes); };
    r.add(stream, {r.told(Activity::fill, nullptr, bytes, stream, fill), nullptr});
    return cudaSuccess;
  });
}

// --- graphs ----------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&](Runtime& r) {
    if (!stream || stream->capture || mode != cudaStreamCaptureModeThreadLocal || r.capturing())
      return cudaErrorInvalidValue;
    stream->capture = std::make_unique<Graph>();
    stream->capture->device = stream->device;
    stream->captured_by = std::this_thread::get_id();
    stream->invalidated = false;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call([&](Runtime&) {
    *status = !stream->capture      ? cudaStreamCaptureStatusNone
              : stream->invalidated ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call([&](Runtime&) {
    *graph = nullptr;
    if (!stream->capture) return cudaErrorInvalidValue;
    const std::unique_ptr<Graph> captured = std::move(stream->capture);
    if (stream->invalidated) return cudaErrorStreamCaptureInvalidated;
    *graph = new Graph(*captured);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return call_outside_capture([&](Runtime&) {
    *ready = new Graph(*graph);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return call([&](Runtime& r) {
    if (r.of(stream)->device != graph->device || r.of(stream)->capture)
      return cudaErrorInvalidValue;
    for (const auto& step : graph->steps) r.add(stream, {step, nullptr});
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&](Runtime&) {
    delete graph;
    return cudaSuccess;
  });
}

// Steps that are enqueued hold what they run.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy(graph); }

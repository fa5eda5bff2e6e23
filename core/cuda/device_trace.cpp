// SPDX-License-Identifier: Apache-2.0
// Device times by CUPTI's activity records. CUPTI is part of the toolkit and not of the driver, so
// it is opened at the first trace. A kernel's record names the call that launched it; a second kind
// of record gives the mark that the calling thread had set. CUPTI fills buffers with both in any
// order, so they are joined when a trace ends.
#include "tessera/core/cuda/check_cuda_impl.h"
#include "tessera/core/cuda/device_trace_impl.h"
#include "tessera/core/cuda/kernel_name_impl.h"
#include "tessera/core/cuda/lanes_impl.h"

#if __has_include(<cupti.h>)
#include <cupti.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace tessera {

#if !__has_include(<cupti.h>)
DeviceTrace& device_trace() {
  fail<DeviceError>("trace",
                    "libtessera_cuda.so was built without cupti.h: install the toolkit's "
                    "CUPTI (cuda-cupti-dev) and build again");
}
#else

namespace {

// The functions of CUPTI that are called, found by their names.
struct Cupti {
#define TESSERA_CUPTI_FUNCTIONS(X)          \
  X(cuptiGetVersion)                        \
  X(cuptiGetTimestamp)                      \
  X(cuptiGetResultString)                   \
  X(cuptiActivityRegisterCallbacks)         \
  X(cuptiActivityEnable)                    \
  X(cuptiActivityDisable)                   \
  X(cuptiActivityFlushAll)                  \
  X(cuptiActivityGetNextRecord)             \
  X(cuptiActivityGetNumDroppedRecords)      \
  X(cuptiActivityPushExternalCorrelationId) \
  X(cuptiActivityPopExternalCorrelationId)
#define X(function) decltype(&::function) function = nullptr;
  TESSERA_CUPTI_FUNCTIONS(X)
#undef X

  Cupti() {
    const std::string name = concat("libcupti.so.", CUPTI_API_VERSION / 10000);
    Dl_info own{};
    void* library = nullptr;  // beside this library, or where the loader looks
    if (dladdr(reinterpret_cast<void*>(&device_trace), &own) && own.dli_fname) {
      const auto folder = std::filesystem::path(own.dli_fname).parent_path();
      library = dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library)
      fail<DeviceError>("trace", "device times need CUPTI: ", dlerror(),
                        "; install the toolkit's CUPTI, or put its folder on LD_LIBRARY_PATH");
#define X(name)                                                   \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (!name) fail<DeviceError>("trace", "CUPTI has no function " #name);
    TESSERA_CUPTI_FUNCTIONS(X)
#undef X
    uint32_t version = 0;
    check(cuptiGetVersion(&version), "cuptiGetVersion");
    // Within a release of the toolkit records keep their layout.
    if (version / 100 != CUPTI_API_VERSION / 100)
      fail<DeviceError>("trace", "CUPTI is of version ", version,
                        ", and this library reads records of ", "version ", CUPTI_API_VERSION,
                        ": put the CUPTI of the toolkit that built it on LD_LIBRARY_PATH");
  }
  void check(CUptiResult status, const char* call) const {
    if (status == CUPTI_SUCCESS) return;
    const char* text = "an unknown error";
    (void)cuptiGetResultString(status, &text);
    fail<DeviceError>("trace", call, " failed: ", text);
  }
};

// Marks come with records of calls alone: of the runtime's, and of the driver's where a library of
// NVIDIA's calls it directly.
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET,
                                         CUPTI_ACTIVITY_KIND_RUNTIME,
                                         CUPTI_ACTIVITY_KIND_DRIVER,
                                         CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
constexpr auto kMarks = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
constexpr size_t kBufferBytes = 8 << 20, kBufferAlignment = 8;

class CuptiTrace final : public DeviceTrace {
 public:
  CuptiTrace() {
    self_ = this;
    cupti_.check(cupti_.cuptiActivityRegisterCallbacks(give_buffer, take_buffer),
                 "cuptiActivityRegisterCallbacks");
  }

  void start(int device) override {
    const std::lock_guard lock(mutex_);
    if (!traced_.insert(device).second)
      fail<UsageError>("trace", "cuda:", device, " is traced already");
    if (traced_.size() > 1) return;
    for (const CUpti_ActivityKind kind : kKinds)
      cupti_.check(cupti_.cuptiActivityEnable(kind), "cuptiActivityEnable");
    uint64_t now = 0;
    cupti_.check(cupti_.cuptiGetTimestamp(&now), "cuptiGetTimestamp");
    to_host_clock_ =
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count() -
        static_cast<int64_t>(now);
  }

  void mark(uint64_t mark) override {
    thread_local uint64_t own = 0;
    uint64_t last = 0;
    if (own != 0)
      cupti_.check(cupti_.cuptiActivityPopExternalCorrelationId(kMarks, &last),
                   "cuptiActivityPopExternalCorrelationId");
    if (mark != 0)
      cupti_.check(cupti_.cuptiActivityPushExternalCorrelationId(kMarks, mark),
                   "cuptiActivityPushExternalCorrelationId");
    own = mark;
  }

  DeviceWorks stop(int device) override {
    mark(0);
    {
      const OnDevice there(device);
      check_cuda(there.status(), "cudaSetDevice");
      TESSERA_CUDA_CALL(cudaDeviceSynchronize());
    }
    cupti_.check(cupti_.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED),
                 "cuptiActivityFlushAll");
    const std::lock_guard lock(mutex_);
    if (traced_.erase(device) == 0) fail<UsageError>("trace", "cuda:", device, " is not traced");
    DeviceWorks works;
    std::vector<Found> others;
    for (Found& found : found_) {
      if (found.device != device) {
        others.push_back(std::move(found));
        continue;
      }
      const auto mark = marks_.find(found.call);
      if (mark != marks_.end()) found.work.mark = mark->second;
      works.all.push_back(std::move(found.work));
    }
    found_ = std::move(others);
    std::ranges::stable_sort(works.all, {}, &DeviceWork::begin);
    works.dropped = dropped_;
    if (traced_.empty()) {
      for (const CUpti_ActivityKind kind : kKinds)
        cupti_.check(cupti_.cuptiActivityDisable(kind), "cuptiActivityDisable");
      found_.clear();
      marks_.clear();
      dropped_ = 0;
    }
    return works;
  }

 private:
  struct Found {
    DeviceWork work;
    int device;
    uint32_t call;
  };

  static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    *size = *buffer ? kBufferBytes : 0;
    *most_records = 0;  // as many as fit
  }
  static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                                   size_t valid) {
    self_->read(context, stream, buffer, valid);
    std::free(buffer);
  }

  void read(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid) {
    const std::lock_guard lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (valid > 0 && cupti_.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
      keep(*record);
    size_t dropped = 0;
    if (cupti_.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
      dropped_ += static_cast<int64_t>(dropped);
  }
  void keep(const CUpti_Activity& record) {
    const auto add = [&](const auto& r, std::string name, uint64_t bytes) {
      const auto device = static_cast<int>(r.deviceId);
      if (!traced_.contains(device)) return;
      const auto at = [&](uint64_t time) { return static_cast<int64_t>(time) + to_host_clock_; };
      found_.push_back({{.name = std::move(name),
                         .begin = at(r.start),
                         .end = at(r.end),
                         .bytes = static_cast<int64_t>(bytes),
                         .stream = r.streamId},
                        device,
                        r.correlationId});
    };
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
        return add(kernel, name_of(kernel.name), 0);
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
        return add(copy, "copy", copy.bytes);
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        return add(fill, "fill", fill.bytes);
      }
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& mark = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
        if (mark.externalKind == kMarks) marks_[mark.correlationId] = mark.externalId;
        return;
      }
      default: return;
    }
  }

  const std::string& name_of(const char* symbol) {
    const std::string key = symbol ? symbol : "a kernel";
    const auto found = names_.find(key);
    return found != names_.end() ? found->second
                                 : names_.emplace(key, kernel_name(key)).first->second;
  }

  static inline CuptiTrace* self_ = nullptr;  // CUPTI's callbacks have no argument for it
  const Cupti cupti_;
  std::mutex mutex_;  // of what follows, which CUPTI's own thread changes too
  std::set<int> traced_;
  std::vector<Found> found_;
  std::unordered_map<uint32_t, uint64_t> marks_;        // by the call
  std::unordered_map<std::string, std::string> names_;  // of kernels, by their symbols
  int64_t dropped_ = 0;
  int64_t to_host_clock_ = 0;
};

}  // namespace

// Never destroyed: CUPTI's thread may come after main.
DeviceTrace& device_trace() {
  static auto* const trace = new CuptiTrace;
  return *trace;
}
#endif

}  // namespace tessera

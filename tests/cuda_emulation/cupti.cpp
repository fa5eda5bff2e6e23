// SPDX-License-Identifier: Apache-2.0
// CUPTI's activity records of emulated devices. Records are kept until they are flushed, then come
// in buffers of the caller's, shuffled, of any number of records; its clock is not the host's.
// TESSERA_EMULATED_CUPTI_VERSION: what it says its version is. TESSERA_EMULATED_CUPTI_DROPS=<n>: of
// each flush the first n records are lost, of calls none.
#include "cupti.h"

#include "activity.h"
#include "cuda_emulation.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace {

constexpr uint64_t kClock = 987'654'321'000;  // by which its clock is ahead of the host's

using Record = std::variant<CUpti_ActivityKernel10, CUpti_ActivityMemcpy6, CUpti_ActivityMemset4,
                            CUpti_ActivityAPI, CUpti_ActivityExternalCorrelation>;
constexpr size_t kRecordBytes = sizeof(CUpti_ActivityKernel10);  // the largest
static_assert(sizeof(CUpti_ActivityMemcpy6) <= kRecordBytes);

thread_local std::vector<uint64_t> marks;

struct Cupti final : cuda_emulation::ActivitySink {
  std::mutex mutex;
  std::set<CUpti_ActivityKind> enabled;
  std::vector<Record> records;
  std::set<uint32_t> marked;      // calls that have a record of their mark
  std::deque<std::string> names;  // that records point to
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  size_t dropped = 0;
  std::mt19937_64 random{std::random_device{}()};

  static Cupti& get() {
    static auto* all = new Cupti;
    return *all;
  }
  void called(uint32_t call) override {
    const std::lock_guard lock(mutex);
    // A mark comes with the record of a call: without these there is none.
    if (!enabled.contains(CUPTI_ACTIVITY_KIND_RUNTIME) || !marked.insert(call).second) return;
    CUpti_ActivityAPI record{};
    record.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
    record.correlationId = call;
    records.emplace_back(record);
    if (marks.empty() || !enabled.contains(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) return;
    records.emplace_back(CUpti_ActivityExternalCorrelation{CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                           CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                           marks.back(), call});
  }
  void ran(const cuda_emulation::Activity& a) override {
    const std::lock_guard lock(mutex);
    const auto add = [&](CUpti_ActivityKind kind, auto record) {
      if (!enabled.contains(kind)) return;
      record.kind = kind;
      record.start = static_cast<uint64_t>(a.begin) + kClock;
      record.end = static_cast<uint64_t>(a.end) + kClock;
      record.deviceId = static_cast<uint32_t>(a.device);
      record.streamId = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(a.stream) >> 4);
      record.correlationId = a.call;
      if constexpr (requires { record.bytes; }) record.bytes = a.bytes;
      else record.name = names.emplace_back(a.name).c_str();
      records.emplace_back(record);
    };
    if (a.kind == a.copy) add(CUPTI_ACTIVITY_KIND_MEMCPY, CUpti_ActivityMemcpy6{});
    else if (a.kind == a.fill) add(CUPTI_ACTIVITY_KIND_MEMSET, CUpti_ActivityMemset4{});
    else add(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUpti_ActivityKernel10{});
  }
};

}  // namespace

CUptiResult cuptiGetVersion(uint32_t* version) {
  const char* const given = std::getenv("TESSERA_EMULATED_CUPTI_VERSION");
  *version = given ? static_cast<uint32_t>(std::atoi(given)) : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t* time) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *time = static_cast<uint64_t>(std::chrono::nanoseconds(now).count()) + kClock;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_QUEUE_EMPTY ? "CUPTI_ERROR_QUEUE_EMPTY" : "CUPTI_ERROR";
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  Cupti& c = Cupti::get();
  {
    const std::lock_guard lock(c.mutex);
    c.request = request;
    c.complete = complete;
  }
  cuda_emulation::watch_activity(&c);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  const std::lock_guard lock(Cupti::get().mutex);
  Cupti::get().enabled.insert(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  const std::lock_guard lock(Cupti::get().mutex);
  Cupti::get().enabled.erase(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  Cupti& c = Cupti::get();
  std::unique_lock lock(c.mutex);
  std::vector<Record> records = std::exchange(c.records, {});
  std::shuffle(records.begin(), records.end(), c.random);
  if (const char* const drops = std::getenv("TESSERA_EMULATED_CUPTI_DROPS")) {
    auto left = static_cast<size_t>(std::atoi(drops));
    c.dropped = std::erase_if(records, [&left](const Record& r) {
      return !std::holds_alternative<CUpti_ActivityAPI>(r) && left > 0 && left-- > 0;
    });
  }
  size_t at = 0;
  do {
    lock.unlock();  // as CUPTI, whose callbacks come from a thread of its own
    uint8_t* buffer = nullptr;
    size_t size = 0, most = 0;
    c.request(&buffer, &size, &most);
    size_t count = std::min({records.size() - at, size / kRecordBytes, 1 + c.random() % 100});
    for (size_t i = 0; i < count; ++i) {
      std::visit([&](const auto& r) { std::memcpy(buffer + i * kRecordBytes, &r, sizeof r); },
                 records[at + i]);
    }
    at += count;
    c.complete(nullptr, 0, buffer, size, count * kRecordBytes);
    lock.lock();
  } while (at < records.size());
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  uint8_t* const next = *record ? reinterpret_cast<uint8_t*>(*record) + kRecordBytes : buffer;
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = std::exchange(Cupti::get().dropped, 0);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id) {
  marks.push_back(id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t* last) {
  if (marks.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  *last = marks.back();
  marks.pop_back();
  return CUPTI_SUCCESS;
}

// SPDX-License-Identifier: Apache-2.0
// Profile: where the time of a training step goes. An op is charged with the time since the op
// before it ended, so the engine and the freeing of tensors are charged to the op that follows, and
// the times sum to the step. What the rank spends in collectives is kept apart. On a device the
// times are the device's, of what the host launched in that time.
#pragma once

#include "tessera/bench/device_times.h"
#include "tessera/bench/support.h"
#include "tessera/dist/process_group/flight_recorder.h"

#include <array>
#include <map>
#include <string_view>
#include <utility>

namespace tessera::bench {

inline constexpr std::array<std::string_view, kParts> kPartNames{"forward", "backward",
                                                                 "optimizer"};

/// Hooks the ops of the calling rank for its lifetime.
class Profile {
 public:
  static constexpr std::string_view kNoOp = DeviceTimes::kNoOp, kMoving = "(moving bytes)",
                                    kWaiting = "(waiting for ranks)";
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
    Cost cost;
  };
  /// `collectives`: of the rank, if it has any.
  explicit Profile(const FlightRecorder* collectives = nullptr, Device device = kCpu)
      : context_(Context::current()), collectives_(collectives), times_(device) {
    context_.op_hook = [this](const OpRow& row, const void* op, Tensors in, Tensors out) {
      Entry& e = charge(row.name);
      ++e.calls;
      if (row.kind == OpKind::view) return;
      const MetaArray in_metas(in), out_metas(out);
      const Cost c = row.cost(op, in_metas, out_metas);
      e.cost.flops += c.flops;
      e.cost.bytes += c.bytes;
      last_ = Clock::now();
    };
  }
  ~Profile() { stop(); }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void enter(Part part) {
    if (part != kForward) charge(kNoOp);
    part_ = part;
    last_ = Clock::now();
    if (collectives_) spent_ = collectives_->spent();
  }
  void leave() { charge(kNoOp); }
  void stop() {
    context_.op_hook = nullptr;
    if (!times_.finish()) return;
    for (auto& [owner, entry] : entries_) entry.seconds = times_.seconds(owner);
  }
  [[nodiscard]] const DeviceTimes& device_times() const { return times_; }
  [[nodiscard]] const std::map<std::pair<Part, std::string_view>, Entry>& entries() const {
    return entries_;
  }

 private:
  Entry& charge(std::string_view name) {
    const auto now = Clock::now();
    Entry& e = entries_[{part_, name}];
    e.seconds += std::chrono::duration<double>(now - last_).count();
    times_.ended(part_, name);
    last_ = now;
    if (collectives_) {
      const FlightRecorder::Spent before = std::exchange(spent_, collectives_->spent());
      const auto apart = [&](std::string_view kind, std::chrono::nanoseconds time) {
        const double seconds = std::chrono::duration<double>(time).count();
        entries_[{part_, kind}].seconds += seconds;
        e.seconds -= seconds;
      };
      apart(kMoving, spent_.moving - before.moving);
      apart(kWaiting, spent_.waiting - before.waiting);
    }
    return e;
  }
  Context& context_;
  const FlightRecorder* collectives_;
  DeviceTimes times_;
  FlightRecorder::Spent spent_;
  Part part_ = kForward;
  Clock::time_point last_ = Clock::now();
  std::map<std::pair<Part, std::string_view>, Entry> entries_;
};

}  // namespace tessera::bench

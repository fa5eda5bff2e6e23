// SPDX-License-Identifier: Apache-2.0
// Whatever is reduced, gathered or exchanged among one rank is the input itself.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/dist/one_rank/one_rank_group_impl.h"
#include "tessera/dist/process_group/comm_state_impl.h"

namespace tessera {
namespace {

// Its end is that of a copy in the rank's stream, which orders whoever comes to use the bytes.
class QueuedCopy final : public Work {
 public:
  bool test() override { return true; }
  void wait() override {}
};

class OneRankGroup final : public ProcessGroup {
 public:
  OneRankGroup(Ref<ProcessGroup> host, std::shared_ptr<CommState> comm, Device device)
      : ProcessGroup(0, {host->ranks().begin(), host->ranks().end()}, host->name(),
                     std::move(comm)),
        host_(std::move(host)),
        device_(device) {}
  [[nodiscard]] std::string_view backend() const override { return "one_rank"; }
  void abort(std::string_view why) override { host_->abort(why); }
  void raise_failure(std::string_view where) override { host_->raise_failure(where); }

 private:
  [[nodiscard]] bool accepts(Device device) const override { return device == device_; }
  [[nodiscard]] ProcessGroup& host() override { return *host_; }

  Ref<Work> start(Collective c) override {
    if (c.kind == CollectiveKind::send || c.kind == CollectiveKind::recv)
      fail<UsageError>(concat(c), "a rank alone has no peer: give a group of several ranks");
    raise_failure(concat(c, " #", c.sequence, " in group ", name()));
    const Stream stream = Context::current().stream(device_);
    for (const Ref<PendingUse>& before : std::exchange(c.after, {})) before->wait_on(stream);
    if (c.in.defined() && c.out.defined() && c.in.data != c.out.data) {
      Process::get().cuda().copy(c.out.data, device_, c.in.data, device_,
                                 c.out.numel() * item_size(c.dtype));
    }
    {
      const auto guard = comm().lock();
      recorder().started(c.record);
      recorder().ended(c.record, false);
    }
    c.use->end();
    return make_ref<QueuedCopy>();
  }

  Ref<ProcessGroup> make_subgroup(std::span<const int> members, std::string name) override {
    return make_one_rank_group(host_->subgroup(members, std::move(name)), shared_comm(), device_);
  }

  Ref<ProcessGroup> host_;
  Device device_;
};

}  // namespace

Ref<ProcessGroup> make_one_rank_group(const Ref<ProcessGroup>& host,
                                      std::shared_ptr<CommState> comm, Device device) {
  return make_ref<OneRankGroup>(host, std::move(comm), device);
}

}  // namespace tessera

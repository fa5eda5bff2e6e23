// SPDX-License-Identifier: Apache-2.0
// A group of GPUs and its operations: an event after the operation in its stream marks its end; the
// host group transfers the communicator's id and failures, which NCCL does not.
#pragma once

#include "tessera/dist/nccl/nccl_api_impl.h"
#include "tessera/dist/process_group/comm_state_impl.h"

namespace tessera {

class NcclGroup;

class NcclWork final : public Work {
 public:
  NcclWork(Collective collective, Ref<NcclGroup> owner, Stream stream);
  ~NcclWork() override;
  bool test() override;
  void wait() override;
  void wait_on(Stream s) override;

  Collective c;
  Ref<NcclGroup> group;
  Stream stream;
  Tensor scratch;         // a barrier's
  void* event = nullptr;  // after the operation in the stream
  bool done = false;
  std::chrono::steady_clock::time_point deadline{};  // set by the first wait or test
};

class NcclGroup final : public ProcessGroup {
 public:
  static Ref<ProcessGroup> make(const Ref<ProcessGroup>& host, Device device, std::string name);
  NcclGroup(Ref<ProcessGroup> host, Device device, std::shared_ptr<CommState> comm,
            std::string name);
  ~NcclGroup() override;

  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  void abort(std::string_view why) override;
  void raise_failure(std::string_view where) override;
  /// True when the operation is complete; throws typed errors, after the deadline too.
  bool poll(NcclWork& w);
  /// Makes a stream wait for it.
  void order(const NcclWork& w, Stream s);

 private:
  [[nodiscard]] bool accepts(Device device) const override { return device == device_; }
  Ref<Work> start(Collective c) override;
  Ref<ProcessGroup> make_subgroup(std::span<const int> members, std::string name) override;

  void connect();
  void queue(NcclWork& w);
  void queue_pairs(NcclWork& w);
  void compare_signatures(const Collective& c);
  void check(int code, const Collective* c);
  /// Until the communicator has taken what was asked of it.
  void settle(const Collective* c, std::chrono::steady_clock::time_point deadline);
  void abort_communicator();
  [[noreturn]] void give_up(const NcclWork& w);
  [[nodiscard]] std::string where(const Collective& c) const;

  const TesseraNcclApi& api_;
  Ref<ProcessGroup> host_;
  Device device_;
  void* communicator_ = nullptr;  // null after an abort
  bool check_signatures_ = false;
};

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// A group of GPUs and its operations. Each communicator has a stream of its own: an operation
// begins after what the rank's stream was given before it, an event after it marks its end, and the
// rank's stream waits for that event where it needs the bytes, so that operations overlap with
// kernels. The host group transfers ids, tags and failures, which NCCL does not. What an operation
// changes here is guarded by the rank's lock (CommState), since a watchdog looks at it too.
#pragma once

#include "tessera/dist/nccl/nccl_api_impl.h"
#include "tessera/dist/nccl/watchdog_impl.h"
#include "tessera/dist/process_group/comm_state_impl.h"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tessera {

class NcclGroup;

class NcclWork final : public Work {
 public:
  NcclWork(Collective collective, Ref<NcclGroup> owner);
  ~NcclWork() override;
  bool test() override;
  void wait() override;
  void wait_on(Stream s) override;

  Collective c;
  Ref<NcclGroup> group;
  Tensor scratch;                         // a barrier's
  void *ready = nullptr, *end = nullptr;  // events: before it in the rank's stream, after it
  bool queued = false, done = false;
  bool pairs = false;       // it is made of messages between pairs of ranks
  bool connecting = false;  // a message whose ranks have no connection yet: its time has not begun
  std::exception_ptr error;
  std::string place;                                 // for errors
  std::chrono::steady_clock::time_point deadline{};  // set by the first wait or test
};

/// An NCCL communicator and the stream of its operations.
class NcclChannel {
 public:
  using Clock = std::chrono::steady_clock;
  /// On `device`, the thread's current one. It is complete when all members have come: poll
  /// `state`.
  NcclChannel(const TesseraNcclApi& api, Device device, const TesseraNcclId& id, int rank,
              int size);
  /// After leave(): waits a few seconds for the peers to leave, unless it was aborted.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  /// 0, kNcclPending or an error code; 0 after an abort.
  [[nodiscard]] int state() const;
  void abort();
  void leave();

  void* communicator = nullptr;  // null after an abort
  const Stream stream;
  int code = 0;  // of what went wrong when it was made

 private:
  const TesseraNcclApi& api_;
};

/// The messages from one rank to another, in the order in which they were sent. A communicator of
/// its own orders them after nothing else. Made by the first message.
struct NcclPipe {
  struct Step {
    Ref<NcclWork> work;         // null: a message that no recv has asked for yet
    std::byte* data = nullptr;  // what is sent, or where it arrives
    std::byte* kept = nullptr;  // where such a message has arrived: it is copied from there
    int64_t bytes = 0;
  };
  struct Early {
    int tag = 0;
    int64_t count = 0;
    DType dtype{};
    Tensor kept = {};  // its bytes on the device
  };
  TesseraNcclId id{};
  std::unique_ptr<NcclChannel> channel;
  std::deque<Step> steps;             // that are not on the stream yet
  std::deque<Ref<NcclWork>> waiting;  // recvs of messages of which the sender has not told
  std::deque<Early> early;            // messages that no recv has asked for
  Tensor notice;                      // what the sender tells next
  Ref<Work> told;
  bool called = false;     // the first step was called, and NCCL may not have taken it yet
  bool connected = false;  // NCCL has taken a step
  std::chrono::steady_clock::time_point
      connect_by{};  // when that must have come, once it has a channel
};

class NcclGroup final : public ProcessGroup, public Pending {
 public:
  static Ref<ProcessGroup> make(const Ref<ProcessGroup>& host, Device device, std::string name);
  NcclGroup(Ref<ProcessGroup> host, Device device, std::shared_ptr<CommState> comm,
            std::string name);
  ~NcclGroup() override;

  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  void abort(std::string_view why) override;
  void raise_failure(std::string_view where) override;
  bool advance() override;
  void abandon(std::string_view why) override;
  /// The watchdog's look, on its thread; what was in flight, for its caller to drop.
  [[nodiscard]] std::vector<Ref<Work>> watch() noexcept;

  /// True when the operation is complete; throws typed errors, after the deadline too.
  bool poll(NcclWork& w);
  /// Makes a stream wait for it.
  void order(NcclWork& w, Stream s);

 private:
  using Clock = std::chrono::steady_clock;
  friend class NcclWork;
  [[nodiscard]] bool accepts(Device device) const override { return device == device_; }
  [[nodiscard]] ProcessGroup& host() override { return *host_; }
  Ref<Work> start(Collective c) override;
  Ref<ProcessGroup> make_subgroup(std::span<const int> members, std::string name) override;

  void connect();
  [[nodiscard]] int64_t free_memory();
  void refuse_shared_devices();
  void compare_signatures(const Collective& c);
  [[nodiscard]] std::string where(const Collective& c) const;

  // Without the rank's lock. `check` and `settle` end the group and throw; `settle` returns when
  // the communicator has taken what was asked of it.
  void check(int code, const NcclWork* w);
  void settle(const NcclWork* w, std::chrono::milliseconds timeout);
  void open_channel(NcclPipe& pipe, int rank);
  void tell_host();
  [[nodiscard]] std::string others() const;
  [[noreturn]] void raise(const std::exception_ptr& error);
  [[noreturn]] void give_up(const NcclWork& w);

  // With it, as is what follows; calls of NCCL give a code.
  [[nodiscard]] bool advance_all();
  void finish(const Ref<NcclWork>& w);
  void end_group(const std::exception_ptr& error, std::string_view for_host);
  template <class E> void stop(const std::string& place, const std::string& why) {
    end_group(std::make_exception_ptr(E(concat('[', place, "] ", why))),
              concat(why, " in ", place));
  }
  [[nodiscard]] std::string text_of(int code) const;
  [[nodiscard]] int states() const;
  /// The pipe of a message that waits for its two ranks to connect; null for all else.
  [[nodiscard]] const NcclPipe* connecting_pipe(const NcclWork& w) const;
  struct Late {
    std::string place;
    std::chrono::milliseconds timeout{0};
  };
  [[nodiscard]] std::optional<Late> overdue();
  [[nodiscard]] int make_events(NcclWork& w, Stream begins);
  [[nodiscard]] int order_after(Stream later, Stream before);
  [[nodiscard]] int take_event(void** event);
  [[nodiscard]] int mark_end(NcclWork& w, void* stream);
  [[nodiscard]] int queue(NcclWork& w);
  [[nodiscard]] int queue_pairs(NcclWork& w);

  // Messages; `run_steps` with the lock, what goes before without it.
  [[nodiscard]] Stream begins_after(const NcclWork& w, Stream compute);
  void post(const Ref<NcclWork>& w);
  [[nodiscard]] NcclPipe& pipe_of(int from, int to);
  void post_send(const Ref<NcclWork>& w);
  void post_receive(const Ref<NcclWork>& w);
  void listen();
  void hear(NcclPipe& pipe);
  void check_pair(const NcclPipe::Early& message, const NcclWork& w);
  void add_step(NcclPipe& pipe, NcclPipe::Step step);
  [[nodiscard]] int run_steps(NcclPipe& pipe, bool sends);

  const TesseraNcclApi& api_;
  Ref<ProcessGroup> host_;
  Device device_;
  const std::chrono::milliseconds
      connect_timeout_;  // of its start and of the first message of a pair
  std::unique_ptr<NcclChannel> channel_;
  std::deque<Ref<NcclWork>> in_flight_;            // collectives, in the order of the stream
  std::vector<Ref<NcclWork>> messages_;            // that have not ended
  std::map<std::pair<int, int>, NcclPipe> pipes_;  // by sender and receiver
  std::vector<void*> idle_events_;
  std::optional<Stream> gate_;  // after which messages begin whose bytes are under way
  std::exception_ptr failure_;  // why the group has ended
  std::string untold_;          // what its host group must be told
  Clock::time_point looked_{};
  struct {
    const NcclWork* first = nullptr;  // of those in flight at the watchdog's last look
    Clock::time_point since{};
  } watched_;
  bool check_signatures_ = false;
  std::shared_ptr<NcclWatchdog> watchdog_;
};

}  // namespace tessera

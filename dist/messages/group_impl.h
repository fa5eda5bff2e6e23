// SPDX-License-Identifier: Apache-2.0
// The back end for ranks that share no memory (by MPI or TCP): collectives over messages between
// pairs. Every collective begins with one message from each rank to each other: its signature, and
// a small payload. If all agree, larger payloads follow in one or two exchanges; sums use the same
// tree as other back ends (each rank reduces its share of the elements), so the bits are the same.
// Collectives of a group run one after another, so the order of messages of a pair and tag
// identifies them. Failures are sent over the side channel.
#pragma once

#include "tessera/dist/messages/messages_impl.h"
#include "tessera/dist/messages/side_channel_impl.h"
#include "tessera/dist/process_group/queued_group_impl.h"
#include "tessera/dist/process_group/signature_impl.h"

#include <deque>
#include <exception>

namespace tessera {

/// State shared by the groups of one rank.
struct MessageWorld {
  std::shared_ptr<Messages> messages;
  std::shared_ptr<Bootstrap> bootstrap;
  std::shared_ptr<SideChannel> side;
  std::shared_ptr<CommState> comm;
  std::string_view backend;      // a literal
  std::shared_ptr<int> next_id;  // of groups; members agree on the largest
  std::vector<RankPlace> places;
  bool may_share = true;  // groups of one host share memory
};

/// A group over messages, or over shared memory where all members are on one host. Called by all
/// members, in the same order on each; CollectiveMismatch if they disagree.
Ref<ProcessGroup> make_message_group(std::shared_ptr<MessageWorld> world, std::vector<int> ranks,
                                     int rank, std::string name, Deadline deadline);

class MessageGroup;

/// The first message of a collective to one peer, and the only one of a small payload.
struct Opening {
  static constexpr size_t kBytes = 4096 - 128;  // below the eager limits of Open MPI's transports
  uint64_t sequence;
  int64_t tag;      // of a message outside collectives
  int64_t payload;  // bytes for the receiver, here or to follow
  Signature signature;
  static constexpr size_t kHead = 3 * sizeof(int64_t) + sizeof(Signature);
  static constexpr size_t kInline = kBytes - kHead;
  std::array<std::byte, kInline> data;

  [[nodiscard]] bool is_inline() const { return payload <= static_cast<int64_t>(kInline); }
  [[nodiscard]] size_t bytes() const {
    return kHead + (is_inline() ? static_cast<size_t>(payload) : 0);
  }
};
static_assert(sizeof(Opening) == Opening::kBytes && std::is_trivially_copyable_v<Opening>);

class MessageWork final : public QueuedWork {
 public:
  using QueuedWork::QueuedWork;

  enum class Stage : uint8_t { queued, opening, first, second };
  Stage stage = Stage::queued;

  std::unique_ptr<Opening[]> out, in;      // per member; a send has one
  std::unique_ptr<std::byte[]> temporary;  // others' shares of a reduction
  struct Transfer {
    Messages::Handle handle = nullptr;
    int member = -1;
    bool receives = false;
  };
  std::vector<Transfer> transfers;
};

class MessageGroup final : public QueuedGroup {
 public:
  MessageGroup(std::shared_ptr<MessageWorld> world, std::vector<int> ranks, int rank,
               std::string name, int id);
  ~MessageGroup() override;

  [[nodiscard]] std::string_view backend() const override { return world_->backend; }
  void abort(std::string_view why) override;
  void raise_failure(std::string_view where) override;
  bool advance() override;
  void abandon(std::string_view why) override;
 private:
  enum class Step : uint8_t { blocked, moved, finished, failed };
  /// A message between this rank and one peer, outside collectives.
  struct Unexpected {
    Opening opening;
    std::vector<std::byte> data;
  };
  struct Inbox {
    std::deque<Ref<MessageWork>> posted;
    std::deque<std::shared_ptr<Unexpected>> unexpected;
    std::shared_ptr<Opening> opening;  // of the message that comes next
    Messages::Handle handle = nullptr;
    Ref<MessageWork> current;                   // receiver of the incoming payload
    std::shared_ptr<Unexpected> to_unexpected;  // or none yet
  };

  Ref<Work> start(Collective c) override;
  Ref<ProcessGroup> make_subgroup(std::span<const int> members, std::string name) override;

  // group.cpp: order, agreement, failure.
  bool failed();
  bool broke();
  void end_all();
  void drop_owners();
  void end_with_failure(const Ref<MessageWork>& w);
  void claim(FailureKind kind, int world_rank, const std::string& text);
  bool left_behind(int member, const MessageWork& w);
  void time_out(QueuedWork& w) override;
  void publish_wait(const QueuedWork& w) override;
  [[nodiscard]] const MessageWork& head_of(const QueuedWork& w) const;
  [[nodiscard]] std::string where(const MessageWork& w) const;
  /// The rank that this work waits for, -1 if only this rank is pending.
  [[nodiscard]] int waits_for(const MessageWork& w) const;

  // moves.cpp: collectives.
  Step step(MessageWork& w);
  void open(MessageWork& w);
  bool agree(MessageWork& w);
  void first_exchange(MessageWork& w);
  void second_exchange(MessageWork& w);
  void reduce(MessageWork& w);
  bool transfers_done(MessageWork& w);
  [[nodiscard]] bool in_shares(const MessageWork& w) const;
  void send_to(MessageWork& w, int member, const void* data, int64_t bytes);
  void receive_from(MessageWork& w, int member, void* data, int64_t bytes);

  // pairs.cpp: send and recv.
  void post(const Ref<MessageWork>& w);
  void send_message(MessageWork& w);
  void advance_pairs();
  void advance_outgoing(int to);
  void advance_inbox(int from);
  bool take_unexpected(int from);
  bool take_opening(int from);
  void finish(const Ref<MessageWork>& message);
  bool deliver(int from, const Opening& opening, MessageWork& w);

  std::shared_ptr<MessageWorld> world_;
  std::shared_ptr<Failure> failure_;
  int id_;
  std::deque<Ref<MessageWork>> queue_;
  std::vector<std::deque<Ref<MessageWork>>> outgoing_;
  std::vector<Inbox> inboxes_;
  int messages_ = 0;        // pending sends and recvs
  bool last_look_ = false;  // a peer of the head has left, and its last messages are here
  std::string broken_;      // an error of the transport, which nobody has explained yet
  std::chrono::steady_clock::time_point broken_since_{};
};

}  // namespace tessera

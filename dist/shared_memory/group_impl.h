// SPDX-License-Identifier: Apache-2.0
// The engine of `threads` and of processes of one host: a group over memory that all its members
// share. A rank announces a collective in its cell (signature, addresses, a small payload). When
// all have arrived and agree, either every rank finishes from the cells (small payloads), or the
// payload is transferred: `direct`, from tensor to tensor (threads), or `staged`, through double
// buffered slots in rounds. All of these reduce in the same order, so they give the same bits.
// Collectives of a group run in the order of their numbers; send and recv have separate channels.
// A message that has been posted needs nothing more of its sender: among threads its receiver
// copies it from the tensor, among processes its sender has left it in a pool.
#pragma once

#include "tessera/dist/process_group/queued_group_impl.h"
#include "tessera/dist/shared_memory/message_pool_impl.h"
#include "tessera/dist/shared_memory/segment_impl.h"

#include <deque>
#include <exception>

namespace tessera {

enum class PayloadMode : uint8_t { direct, staged };

/// Provides the segments of groups: from the heap for threads, mapped files for processes.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// The segment of a new group of these world ranks, at least `bytes` long and initially zero.
  /// Every member calls it once per group; members are matched by `world_ranks`, then by the order
  /// of their calls. May block until `timeout`. CollectiveMismatch if members disagree.
  virtual std::shared_ptr<std::byte> segment(std::span<const int> world_ranks,
                                             const std::string& name, int world_rank, size_t bytes,
                                             std::chrono::milliseconds timeout) = 0;
  /// The creation of the group has ended: all members have joined it, or it failed.
  virtual void settled(int world_rank) = 0;
};

struct SharedGroupSetup {
  int rank = 0;            // in the group
  std::vector<int> ranks;  // world ranks of the members
  std::string name;
  std::string_view backend;  // a literal
  PayloadMode mode = PayloadMode::staged;
  size_t pool = 0;  // bytes for this rank's messages that were not taken yet; of `staged`
  std::shared_ptr<std::byte> segment;  // of shared_group_bytes(), 4096-aligned, zero at first
  std::shared_ptr<SegmentSource> source;
  std::shared_ptr<CommState> comm;
};

/// Bytes that the segment of a group of `n` ranks needs, with a pool of messages for each.
size_t shared_group_bytes(int n, size_t pool);
Ref<ProcessGroup> make_shared_group(SharedGroupSetup setup);
/// By all threads of the rank.
void copy_payload(std::byte* to, const std::byte* from, int64_t bytes);

class SharedGroup;

class SharedWork final : public QueuedWork {
 public:
  using QueuedWork::QueuedWork;

  enum class Stage : uint8_t { queued, arriving, rounds, leaving };
  Stage stage = Stage::queued;
  bool exposed = false;  // peers may use the tensors
  uint8_t phase = 0;     // of a turn: write a round, reduce an earlier one, read the previous one
  int64_t turn = 0, rounds = 0;  // of staging
  int64_t moved = 0;             // bytes of a message that are sent, or here
};

class SharedGroup final : public QueuedGroup {
 public:
  explicit SharedGroup(SharedGroupSetup setup);
  ~SharedGroup() override;

  [[nodiscard]] std::string_view backend() const override { return setup_.backend; }
  void abort(std::string_view why) override;
  void raise_failure(std::string_view where) override;
  bool advance() override;
  void abandon(std::string_view why) override;

 private:
  enum class Step : uint8_t { blocked, moved, finished, failed };
  /// A message that its receiver may not have copied yet.
  struct Lent {
    uint64_t number;       // of its entry
    Ref<SharedWork> work;  // whose tensor it reads; null: it is in the pool,
    size_t in_pool = 0;    // there
  };
  struct Outbox {
    std::deque<Ref<SharedWork>> waiting;  // for room, or for what is under way on their bytes
    std::vector<Lent> lent;
    uint64_t slots = 0;  // filled so far
  };
  /// A message that came before its recv. Its bytes stay where its sender left them, but for those
  /// that are in the way of others: they are kept here.
  struct Early {
    int64_t count, tag;
    DType dtype;
    uint64_t number;  // of its entry
    std::unique_ptr<std::byte[]> kept = {};
    int64_t moved = 0;  // into `kept`
    [[nodiscard]] int64_t bytes() const { return count * item_size(dtype); }
  };
  struct Inbox {
    std::deque<Ref<SharedWork>> posted;
    std::deque<Early> early;
    uint64_t seen = 0, slots = 0;  // entries, and slots among them
    Ref<SharedWork> current;       // destination of the incoming message;
    bool to_early = false;         // or to the last of `early`
  };

  Ref<Work> start(Collective c) override;
  Ref<ProcessGroup> make_subgroup(std::span<const int> members, std::string name) override;

  // Addresses in the segment; `whose` is a rank of the group.
  template <class T = std::byte> [[nodiscard]] T* at(size_t offset) const {
    return reinterpret_cast<T*>(setup_.segment.get() + offset);
  }
  [[nodiscard]] SegmentHeader& header() const { return *at<SegmentHeader>(0); }
  [[nodiscard]] Cell& cell(int whose) const { return *at<Cell>(layout_.cell(whose)); }
  [[nodiscard]] std::byte* payload(const SharedWork& w, int whose) const {
    return at(layout_.payload(whose, w.c.sequence & 1));
  }
  [[nodiscard]] int64_t* counts(const SharedWork& w, int whose) const {
    return at<int64_t>(layout_.counts(whose, w.c.sequence & 1));
  }
  [[nodiscard]] Announcement& announcement(const SharedWork& w, int whose) const {
    return cell(whose).announcements[w.c.sequence & 1];
  }
  [[nodiscard]] std::byte* slot(int whose, int64_t round) const {
    return at(layout_.staging(whose, rounds_ + static_cast<uint64_t>(round)));
  }

  // group.cpp: order, agreement, failure.
  bool failed();
  void end_all();
  void advance_collectives();
  Step step(SharedWork& w);
  void announce(SharedWork& w);
  [[nodiscard]] static int64_t round_of(const SharedWork& w);
  [[nodiscard]] bool ready(const SharedWork& w, int peer) const;
  Step all_ready(const SharedWork& w);
  bool agree(const SharedWork& w, int peer);
  Step arrived(SharedWork& w);
  bool peer_left(int peer, const SharedWork& w);
  void time_out(QueuedWork& w) override;
  void publish_wait(const QueuedWork& w) override;
  [[nodiscard]] SegmentHeader* wakes_on() const override { return &header(); }
  [[nodiscard]] std::string where(const SharedWork& w) const;
  void publish(std::atomic<uint64_t>& counter, uint64_t value);

  // moves.cpp: bytes.
  [[nodiscard]] int64_t contribution(const SharedWork& w) const;
  [[nodiscard]] int64_t extent(const SharedWork& w) const;
  [[nodiscard]] int64_t per_round(const SharedWork& w) const;
  void move_whole(SharedWork& w, bool from_cells);
  void reduce_direct(SharedWork& w);
  void write_round(SharedWork& w, int64_t k);
  void reduce_round(SharedWork& w, int64_t k);
  void read_round(SharedWork& w, int64_t k);

  // messages.cpp: send and recv.
  [[nodiscard]] Channel& channel(int from, int to) const {
    return *at<Channel>(layout_.channel(from, to));
  }
  [[nodiscard]] Entry& entry(int from, int to, uint64_t number) const {
    return *at<Entry>(layout_.entry(from, to, number));
  }
  void post(Ref<SharedWork> w);
  void advance_messages();
  void take_back(int to);
  void push(int to);
  bool put(int to, const Ref<SharedWork>& w);
  bool put_entry(int to, const Ref<SharedWork>& w, bool pieces);
  [[nodiscard]] bool slot_comes(int to) const;
  void fill_pool(Entry& e, const SharedWork& w);
  [[nodiscard]] bool has_entry(int from, int to, uint64_t number) const;
  [[nodiscard]] bool has_slot(int to) const;
  void pull(int from);
  bool take(int from, Inbox& inbox);
  bool begin(int from, Inbox& inbox, const Entry& e);
  bool give_early(int from, Inbox& inbox);
  bool make_room(int from, Inbox& inbox);
  bool fetch(int from, const Entry& e, std::byte* to, int64_t& moved);
  void finish(const Ref<SharedWork>& w);
  bool match(int from, const Early& m, const SharedWork& w);
  [[nodiscard]] bool message_ready(const SharedWork& w) const;

  SharedGroupSetup setup_;
  SegmentLayout layout_;
  std::deque<Ref<SharedWork>> queue_;
  uint64_t rounds_ = 0;  // of staging, before the collective at the head; equal on all ranks
  std::vector<Outbox> outboxes_;
  MessagePool pool_;
  std::vector<Inbox> inboxes_;
  int messages_ = 0;  // works under way
};

}  // namespace tessera

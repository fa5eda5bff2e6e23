// SPDX-License-Identifier: Apache-2.0
// A group over messages: creation, order of collectives, and failures. The data of collectives is
// in moves.cpp, send and recv in pairs.cpp.
#include "tessera/dist/messages/group_impl.h"
#include "tessera/dist/shared_memory/mapped_segments_impl.h"

#include <algorithm>

namespace tessera {
namespace {

using Kind = CollectiveKind;
using Clock = std::chrono::steady_clock;

// A connection breaks as the consequence of a failure, of which the side channel gets time to tell.
constexpr std::chrono::milliseconds kExplained{150};

bool is_message(const Collective& c) { return c.kind == Kind::send || c.kind == Kind::recv; }

}  // namespace

Ref<ProcessGroup> make_message_group(std::shared_ptr<MessageWorld> world, std::vector<int> ranks,
                                     int rank, std::string name, Deadline deadline) {
  const auto host_of = [&](int r) -> const std::string& {
    return world->places[static_cast<size_t>(r)].host;
  };
  const bool one_host =
      std::ranges::all_of(ranks, [&](int r) { return host_of(r) == host_of(ranks[0]); });
  if (world->may_share && one_host) {
    const auto source = std::make_shared<MappedSegments>(world->bootstrap);
    const auto left = deadline - Clock::now();
    const auto segment =
        source->segment(ranks, name, world->comm->world_rank,
                        shared_group_bytes(static_cast<int>(ranks.size()), kMessagePool),
                        std::chrono::duration_cast<std::chrono::milliseconds>(left));
    return make_shared_group({.rank = rank,
                              .ranks = std::move(ranks),
                              .name = std::move(name),
                              .backend = world->backend,
                              .mode = PayloadMode::staged,
                              .pool = kMessagePool,
                              .segment = segment,
                              .source = source,
                              .comm = world->comm});
  }
  const std::string mine =
      PackedWriter().text(name).put(static_cast<int32_t>(*world->next_id)).bytes();
  const auto parts = world->bootstrap->all_gather(ranks, "group", mine, deadline);
  int id = *world->next_id;
  for (size_t i = 0; i < parts.size(); ++i) {
    PackedReader in(parts[i]);
    const std::string theirs = in.text();
    id = std::max(id, in.get<int32_t>());
    if (theirs != name) {
      fail<CollectiveMismatch>("process_group", "ranks disagree on the group they make: rank ",
                               world->comm->world_rank, ": '", name, "', rank ", ranks[i], ": '",
                               theirs, "'; make groups in the same order on all ranks");
    }
  }
  *world->next_id = id + 1;
  if (Messages::kFirstGroupTag + 2 * id + 1 > world->messages->largest_tag())
    fail<UsageError>("process_group", "group '", name, "' is number ", id,
                     ": this MPI has tags for fewer; make groups once and keep them");
  return make_ref<MessageGroup>(std::move(world), std::move(ranks), rank, std::move(name), id);
}

MessageGroup::MessageGroup(std::shared_ptr<MessageWorld> world, std::vector<int> ranks, int rank,
                           std::string name, int id)
    : QueuedGroup(rank, std::move(ranks), std::move(name), world->comm),
      world_(std::move(world)),
      failure_(world_->side->group_failure(static_cast<uint64_t>(id))),
      id_(id),
      outgoing_(static_cast<size_t>(size())),
      inboxes_(static_cast<size_t>(size())) {}

MessageGroup::~MessageGroup() {
  expect_no_lock("a group is dropped");
  for (Inbox& inbox : inboxes_) world_->messages->abandon(inbox.handle, inbox.opening);
}

Ref<Work> MessageGroup::start(Collective c) {
  auto w = make_ref<MessageWork>(std::move(c), Ref<MessageGroup>(this));
  const auto guard = comm().lock();
  world_->side->look();  // discards messages of peers that have given up
  if (is_message(w->c)) post(w);
  else queue_.push_back(w);
  if (!advance()) comm().add(Ref<ProcessGroup>(this), this);
  return w;
}

Ref<ProcessGroup> MessageGroup::make_subgroup(std::span<const int> members, std::string name) {
  std::vector<int> world_ranks;
  int mine = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    world_ranks.push_back(world(members[i]));
    if (members[i] == rank()) mine = static_cast<int>(i);
  }
  return make_message_group(world_, std::move(world_ranks), mine, std::move(name),
                            deadline_after(timeout()));
}

void MessageGroup::abort(std::string_view why) {
  const std::string text =
      concat("group ", name(), " was aborted by rank ", comm().world_rank, ": ", why);
  const auto guard = comm().lock();
  claim(FailureKind::peer, comm().world_rank, text);
  comm().dump(text);
  failed();
}

void MessageGroup::raise_failure(std::string_view at) {
  {
    const auto guard = comm().lock();
    if (!failed()) return;
  }
  failure_->raise(at);
}

void MessageGroup::abandon(std::string_view why) {
  failure_->claim(FailureKind::peer, comm().world_rank,
                  concat("rank ", comm().world_rank, " failed: ", why));
  failed();
}

std::string MessageGroup::where(const MessageWork& w) const {
  return concat(w.c, " #", w.c.sequence, " in group ", name());
}

void MessageGroup::claim(FailureKind kind, int world_rank, const std::string& text) {
  if (failure_->claim(kind, world_rank, text))
    world_->side->report(static_cast<uint64_t>(id_), *failure_);
}

bool MessageGroup::failed() {
  if (!has_failed(*failure_)) return false;
  if (!queue_.empty() || messages_ > 0) end_all();
  return true;
}

void MessageGroup::end_with_failure(const Ref<MessageWork>& w) {
  if (w->done) return;
  // Messages may still be in progress: their buffers are kept alive, and the use ends with them.
  struct Owner {
    Ref<MessageWork> work;
    ~Owner() {
      if (work->c.use && !work->c.use->ended()) work->c.use->end(work->error);
    }
    explicit Owner(const Ref<MessageWork>& its) : work(its) {}
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
  };
  const auto owner = std::make_shared<Owner>(w);
  for (MessageWork::Transfer& transfer : w->transfers)
    world_->messages->abandon(transfer.handle, owner);
  end(w, failure_->error(where(*w)), owner);
}

void MessageGroup::end_all() {
  for (const auto& w : queue_) end_with_failure(w);
  queue_.clear();
  for (auto& outgoing : outgoing_) {
    for (const auto& w : outgoing) end_with_failure(w);
    outgoing.clear();
  }
  for (Inbox& inbox : inboxes_) {
    if (inbox.current) {
      inbox.current->transfers.push_back({inbox.handle, -1, true});
      inbox.handle = nullptr;
      end_with_failure(inbox.current);
    } else if (inbox.to_unexpected) {
      world_->messages->abandon(inbox.handle, inbox.to_unexpected);
    } else {
      world_->messages->abandon(inbox.handle, inbox.opening);
    }
    for (const auto& w : inbox.posted) end_with_failure(w);
    inbox = {};
  }
  messages_ = 0;
  drop_owners();
  if (failure_->kind == FailureKind::timeout) comm().dump(failure_->text.data());
}

void MessageGroup::drop_owners() {
  if (auto gone = world_->messages->let_go(); !gone.empty())
    comm().later([owners = std::move(gone)] {});
}

// Whether the transport has broken; fails the group if nothing explains it in time.
bool MessageGroup::broke() {
  if (broken_.empty()) return false;
  world_->side->look();
  if (!failed() && Clock::now() - broken_since_ > kExplained)
    claim(FailureKind::peer, comm().world_rank, broken_);
  return true;
}

bool MessageGroup::advance() {
  // An error of the transport fails the group: its peers must be notified.
  try {
    while (!broke() && !failed() && !queue_.empty()) {
      const Ref<MessageWork> w = queue_.front();
      Step s;
      do s = step(*w);
      while (s == Step::moved);
      if (s == Step::blocked) break;
      if (s == Step::failed) continue;
      end(w, nullptr);
      queue_.pop_front();
    }
    if (messages_ > 0 && broken_.empty() && !failure_->happened()) advance_pairs();
  } catch (const std::exception& e) {
    broken_ = e.what();
    broken_since_ = Clock::now();
  }
  if (failure_->happened()) failed();
  drop_owners();
  return queue_.empty() && messages_ == 0;
}

int MessageGroup::waits_for(const MessageWork& w) const {
  if (w.c.kind == Kind::recv) return w.c.root;
  for (const bool receives : {true, false}) {
    for (const MessageWork::Transfer& transfer : w.transfers) {
      if (transfer.handle && transfer.receives == receives) return transfer.member;
    }
  }
  return -1;
}

// True once a peer whose data is missing has left. Its farewell comes behind all that it has sent
// to this rank, which is looked at once more.
bool MessageGroup::left_behind(int member, const MessageWork& w) {
  if (member < 0 || member == rank() || !world_->side->has_left(world(member))) return false;
  if (!std::exchange(last_look_, true)) return false;
  claim(FailureKind::peer, world(member),
        concat("rank ", world(member), " returned while rank ", comm().world_rank,
               " waits for it in ", where(w)));
  return true;
}

void MessageGroup::publish_wait(const QueuedWork& w) {
  const int member = waits_for(head_of(w));
  comm().waits_for(member < 0 ? -1 : world(member));
}

// The work that holds up `w`: a collective waits for the one at the head of the queue.
const MessageWork& MessageGroup::head_of(const QueuedWork& w) const {
  return is_message(w.c) ? static_cast<const MessageWork&>(w) : *queue_.front();
}

void MessageGroup::time_out(QueuedWork& w) {
  std::string late, place;
  int waited_for = -1;
  {
    const auto guard = comm().lock();
    advance();
    if (w.done || !broken_.empty()) return;  // broke() explains it, or gives up soon
    const MessageWork& head = head_of(w);
    place = where(head);
    const int member = waits_for(head);
    const PendingUse* before = in_the_way(head.c);
    late = before ? "what is under way on its tensors, " + before->text()
                  : "its own messages to leave";
    if (member >= 0) {
      waited_for = world(member);
      late = concat(
          "rank ", waited_for,
          head.stage == MessageWork::Stage::opening ? " never arrived" : " makes no progress");
    }
  }
  int culprit = comm().world_rank;
  if (waited_for >= 0) {
    const std::string seen = comm().describe(waited_for);  // also learns who waits for whom
    culprit = comm().culprit(waited_for);
    late += "; " + (culprit == waited_for ? seen
                                          : concat("it is itself held up by rank ", culprit, "; ",
                                                   comm().describe(culprit)));
  }
  const auto guard = comm().lock();
  advance();
  if (w.done || !broken_.empty()) return;
  claim(FailureKind::timeout, culprit,
        concat("rank ", comm().world_rank, " gave up after ", w.c.timeout.count(), " ms in ", place,
               ", waiting for: ", late, "; flight record: ", recorder().path()));
  failed();
}

}  // namespace tessera

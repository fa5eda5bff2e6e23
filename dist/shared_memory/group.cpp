// SPDX-License-Identifier: Apache-2.0
// Order of a group's collectives, agreement, failure and deadlines. Data transfer is in moves.cpp,
// send and recv in messages.cpp.
#include "tessera/core/message.h"
#include "tessera/dist/shared_memory/group_impl.h"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

using Kind = CollectiveKind;
using Clock = std::chrono::steady_clock;

bool is_message(const Collective& c) { return c.kind == Kind::send || c.kind == Kind::recv; }

// Whether the payload passes through `reduced` between `written` and `read`.
bool three_phases(Kind k) { return k == Kind::all_reduce || k == Kind::reduce; }

}  // namespace

size_t shared_group_bytes(int n, size_t pool) { return SegmentLayout(n, pool).bytes(); }

Ref<ProcessGroup> make_shared_group(SharedGroupSetup setup) {
  return make_ref<SharedGroup>(std::move(setup));
}

SharedGroup::SharedGroup(SharedGroupSetup setup)
    : QueuedGroup(setup.rank, setup.ranks, setup.name, setup.comm),
      setup_(std::move(setup)),
      layout_(size(), setup_.pool),
      outboxes_(static_cast<size_t>(size())),
      pool_(at(layout_.pool(rank())), setup_.pool),
      inboxes_(static_cast<size_t>(size())) {
  constexpr int kMost = 1024;  // a slot is cut into slices of a cache line or more
  if (size() > kMost) {
    fail<LaunchError>("process_group", "group ", name(), " has ", counted(size(), "rank"),
                      "; at most ", kMost, " share memory");
  }
}

SharedGroup::~SharedGroup() = default;

Ref<Work> SharedGroup::start(Collective c) {
  auto w = make_ref<SharedWork>(std::move(c), Ref<SharedGroup>(this));
  const auto guard = comm().lock();
  if (is_message(w->c)) post(w);
  else queue_.push_back(w);
  if (!advance()) comm().add(Ref<ProcessGroup>(this), this);
  return w;
}

Ref<ProcessGroup> SharedGroup::make_subgroup(std::span<const int> members, std::string name) {
  SharedGroupSetup setup = setup_;
  setup.name = std::move(name);
  setup.ranks.clear();
  for (size_t i = 0; i < members.size(); ++i) {
    setup.ranks.push_back(world(members[i]));
    if (members[i] == rank()) setup.rank = static_cast<int>(i);
  }
  setup.segment = setup_.source->segment(
      setup.ranks, setup.name, comm().world_rank,
      shared_group_bytes(static_cast<int>(members.size()), setup_.pool), timeout());
  // Also where they do not meet: this rank is then not in the middle of making a group any more.
  struct Settle {
    SegmentSource& source;
    int rank;
    ~Settle() { source.settled(rank); }
  };
  const Settle settle{*setup_.source, comm().world_rank};
  Ref<ProcessGroup> group = make_shared_group(std::move(setup));
  group->barrier()->wait();
  return group;
}

void SharedGroup::abort(std::string_view why) {
  const std::string text =
      concat("group ", name(), " was aborted by rank ", comm().world_rank, ": ", why);
  const auto guard = comm().lock();
  header().failure.claim(FailureKind::peer, comm().world_rank, text);
  wake(header());
  comm().dump(text);
  (void)failed();
}

void SharedGroup::raise_failure(std::string_view at) {
  {
    const auto guard = comm().lock();
    if (!failed()) return;
  }
  header().failure.raise(at);
}

void SharedGroup::abandon(std::string_view why) {
  header().failure.claim(FailureKind::peer, comm().world_rank,
                         concat("rank ", comm().world_rank, " failed: ", why));
  wake(header());
  failed();
}

std::string SharedGroup::where(const SharedWork& w) const {
  return concat(w.c, " #", w.c.sequence, " in group ", name());
}

// Ends all work where the group or the world has failed.
bool SharedGroup::failed() {
  if (!has_failed(header().failure)) return false;
  if (!queue_.empty() || messages_ > 0) end_all();
  return true;
}

void SharedGroup::end_all() {
  // No peer may use this rank's tensors when they are freed. Peers that see the failure do not use
  // them any more, so this waits at most for one copy.
  const bool lent = std::ranges::any_of(outboxes_, [](const Outbox& box) {
    return std::ranges::any_of(box.lent, [](const Lent& l) { return l.work != nullptr; });
  });
  if (lent || (!queue_.empty() && queue_.front()->exposed)) {
    comm().later([self = Ref<SharedGroup>(this)] {
      for (int p = 0; p < self->size(); ++p) {
        while (p != self->rank() && self->cell(p).touching.load(std::memory_order_seq_cst) != 0)
          std::this_thread::yield();
      }
    });
  }
  const Failure& failure = header().failure;
  const auto end_one = [&](const Ref<SharedWork>& w) {
    if (!w->done) end(w, failure.error(where(*w)));
  };
  for (const auto& w : queue_) end_one(w);
  queue_.clear();
  for (Outbox& box : outboxes_) {
    for (const auto& w : box.waiting) end_one(w);
    for (const Lent& l : box.lent)
      if (l.work) end_one(l.work);
    box = {};
  }
  for (Inbox& inbox : inboxes_) {
    for (const auto& w : inbox.posted) end_one(w);
    if (inbox.current) end_one(inbox.current);
    inbox = {};
  }
  messages_ = 0;
  if (failure.kind == FailureKind::timeout) comm().dump(failure.text.data());
}

bool SharedGroup::advance() {
  try {
    if (!failed()) {
      if (!queue_.empty()) advance_collectives();
      if (messages_ > 0) advance_messages();
    }
  } catch (const std::exception& e) {  // bytes that were released, no memory: peers must not wait
    header().failure.claim(FailureKind::peer, comm().world_rank,
                           concat("rank ", comm().world_rank, " failed: ", e.what()));
    wake(header());
    failed();
  }
  return queue_.empty() && messages_ == 0;
}

void SharedGroup::advance_collectives() {
  while (!queue_.empty()) {
    const Ref<SharedWork> w = queue_.front();
    Step s;
    do s = step(*w);
    while (s == Step::moved);
    if (s == Step::blocked) return;
    if (s == Step::failed) {
      failed();
      return;
    }
    rounds_ += static_cast<uint64_t>(w->rounds);
    end(w, nullptr);
    queue_.pop_front();
  }
}

void SharedGroup::publish(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.store(value, std::memory_order_seq_cst);
  wake(header());
}

void SharedGroup::announce(SharedWork& w) {
  Announcement& a = announcement(w, rank());
  a.signature = Signature(w.c);
  a.extent = extent(w);
  const int64_t bytes = contribution(w);
  a.is_inline = bytes <= static_cast<int64_t>(SegmentLayout::kInlineBytes);
  if (a.is_inline && bytes > 0)
    std::memcpy(payload(w, rank()), w.c.in.data, static_cast<size_t>(bytes));
  a.in = reinterpret_cast<uint64_t>(w.c.in.data);
  a.out = reinterpret_cast<uint64_t>(w.c.out.data);
  // Also for a report of what the members disagree on.
  const Counts& own = w.c.send.empty() ? w.c.receive : w.c.send;
  std::copy(own.begin(), own.end(), counts(w, rank()));
  w.exposed = setup_.mode == PayloadMode::direct;
  recorder().started(w.c.record);
  publish(cell(rank()).arrived, w.c.sequence);
}

// The round that the current phase is about. Each phase is a turn behind the one before it, so that
// a rank waits for what its peers did a turn ago.
int64_t SharedGroup::round_of(const SharedWork& w) {
  return w.turn - (w.phase == 2 && !three_phases(w.c.kind) ? 1 : w.phase);
}

// Whether `peer` has done what a work waits for.
bool SharedGroup::ready(const SharedWork& w, int peer) const {
  const Cell& theirs = cell(peer);
  const auto reached = [](const std::atomic<uint64_t>& counter, int64_t at_least) {
    return static_cast<int64_t>(counter.load(std::memory_order_seq_cst)) >= at_least;
  };
  switch (w.stage) {
    case SharedWork::Stage::queued: return true;
    case SharedWork::Stage::arriving:
      return reached(theirs.arrived, static_cast<int64_t>(w.c.sequence));
    case SharedWork::Stage::leaving: return reached(theirs.read, static_cast<int64_t>(rounds_) + 1);
    case SharedWork::Stage::rounds: {
      const int64_t ended = static_cast<int64_t>(rounds_) + round_of(w) + 1;
      switch (w.phase) {
        case 0: return reached(theirs.read, ended - static_cast<int64_t>(SegmentLayout::kSlots));
        case 1: return reached(theirs.written, ended);
        default: return reached(three_phases(w.c.kind) ? theirs.reduced : theirs.written, ended);
      }
    }
  }
  return true;
}

SharedGroup::Step SharedGroup::all_ready(const SharedWork& w) {
  for (int p = 0; p < size(); ++p) {
    if (p == rank() || ready(w, p)) continue;
    return peer_left(p, w) ? Step::failed : Step::blocked;
  }
  return Step::moved;
}

bool SharedGroup::peer_left(int peer, const SharedWork& w) {
  WorldBoard* board = comm().board();
  if (!board || board->rank(world(peer)).left.load(std::memory_order_seq_cst) == 0) return false;
  if (is_message(w.c) ? message_ready(w) : ready(w, peer)) return false;  // its last act
  if (board->failure.happened()) return true;                             // which says more
  header().failure.claim(
      FailureKind::peer, world(peer),
      concat("rank ", world(peer), " returned while rank ", comm().world_rank, " waits for it in ",
             w.c, " #", w.c.sequence, " of group ", name()));
  wake(header());
  return true;
}

bool SharedGroup::agree(const SharedWork& w, int peer) {
  const Announcement &mine = announcement(w, rank()), &theirs = announcement(w, peer);
  const bool pair = w.c.kind == Kind::all_to_all && mine.signature == theirs.signature;
  const int64_t expected = pair ? w.c.receive[static_cast<size_t>(peer)] : 0;
  const int64_t sent = pair ? counts(w, peer)[rank()] : 0;
  if (mine.signature == theirs.signature && expected == sent) return true;
  const auto side = [&](int whose, const Announcement& a) {
    std::string text = concat("rank ", world(whose), ": ", a.signature.text());
    if (a.signature.counts_hash == 0 || mine.signature.count != theirs.signature.count) return text;
    for (int i = 0; i < size(); ++i) text += concat(i ? ", " : " counts [", counts(w, whose)[i]);
    return text + "]";
  };
  std::string text = concat("members of group ", name(), " disagree on collective #", w.c.sequence,
                            ": ", side(rank(), mine), ", ", side(peer, theirs));
  if (pair) {
    text = concat("members of group ", name(), " disagree on all_to_all #", w.c.sequence, ": rank ",
                  world(peer), " sends ", counted(sent, "element"), " to rank ", world(rank()),
                  ", which expects ", expected);
  }
  header().failure.claim(FailureKind::mismatch, world(peer), text);
  wake(header());
  return false;
}

SharedGroup::Step SharedGroup::step(SharedWork& w) {
  Cell& own = cell(rank());
  switch (w.stage) {
    case SharedWork::Stage::queued:
      if (!w.c.may_start()) return Step::blocked;
      announce(w);
      w.stage = SharedWork::Stage::arriving;
      return Step::moved;
    case SharedWork::Stage::arriving: {
      const Step s = all_ready(w);
      return s == Step::moved ? arrived(w) : s;
    }
    case SharedWork::Stage::leaving: {
      const Step s = all_ready(w);
      return s == Step::moved ? Step::finished : s;
    }
    case SharedWork::Stage::rounds: break;
  }
  const int64_t round = round_of(w);
  const bool skipped = w.phase == 1 && !three_phases(w.c.kind);
  if (round >= 0 && round < w.rounds && !skipped) {
    if (const Step s = all_ready(w); s != Step::moved) return s;
    const uint64_t ended = rounds_ + static_cast<uint64_t>(round + 1);
    const auto start = Clock::now();
    switch (w.phase) {
      case 0: write_round(w, round); break;
      case 1: reduce_round(w, round); break;
      default: read_round(w, round);
    }
    recorder().moved(start);
    publish(w.phase == 0 ? own.written : w.phase == 1 ? own.reduced : own.read, ended);
    if (w.phase == 2 && round + 1 == w.rounds) return Step::finished;
  }
  if (++w.phase == 3) {
    w.phase = 0;
    ++w.turn;
  }
  return Step::moved;
}

// All members have announced: compares, then finishes from the cells or chooses how to move.
SharedGroup::Step SharedGroup::arrived(SharedWork& w) {
  bool from_cells = true;
  int64_t longest = 0;
  for (int p = 0; p < size(); ++p) {
    if (p != rank() && !agree(w, p)) return Step::failed;
    const Announcement& a = announcement(w, p);
    from_cells &= a.is_inline != 0;
    longest = std::max(longest, a.extent);
  }
  if (from_cells) {
    move_whole(w, true);
    return Step::finished;
  }
  if (setup_.mode == PayloadMode::staged) {
    w.stage = SharedWork::Stage::rounds;
    w.rounds = (longest + per_round(w) - 1) / per_round(w);
    return Step::moved;
  }
  Cell& own = cell(rank());
  // Either this rank sees the failure of one that gives up, or that one sees this rank here.
  {
    const Touching touching(own.touching);
    if (header().failure.happened()) return Step::failed;
    const auto start = Clock::now();
    if (three_phases(w.c.kind)) reduce_direct(w);
    else move_whole(w, false);
    recorder().moved(start);
  }
  w.rounds = 1;
  w.stage = SharedWork::Stage::leaving;
  publish(own.read, rounds_ + 1);
  return Step::moved;
}

void SharedGroup::publish_wait(const QueuedWork& w) {
  int peer = w.c.root;
  if (!is_message(w.c)) {
    for (peer = 0; peer < size() && (peer == rank() || ready(*queue_.front(), peer));) ++peer;
  }
  comm().waits_for(peer < size() ? world(peer) : -1);
}

void SharedGroup::time_out(QueuedWork& w) {
  const bool message = is_message(w.c);
  std::string late, place;
  int culprit = -1;
  {
    const auto guard = comm().lock();
    advance();
    if (w.done) return;
    const SharedWork& head = message ? static_cast<SharedWork&>(w) : *queue_.front();
    place = where(head);
    if (const PendingUse* before = in_the_way(head.c)) {
      late = concat("what is under way on its tensors, ", before->text());
      culprit = comm().world_rank;
    }
    for (int p = 0; p < size(); ++p) {
      if (message ? p != w.c.root : p == rank() || ready(head, p)) continue;
      const uint64_t last = cell(p).arrived.load(std::memory_order_seq_cst);
      if (culprit < 0) culprit = world(p);
      late += concat(late.empty() ? "rank " : ", rank ", world(p));
      if (message) late += concat(" (its last collective here is #", last, ')');
      else if (head.stage == SharedWork::Stage::arriving)
        late += concat(" never arrived (its last collective here is #", last, ')');
      else late += " arrived but makes no progress";
    }
  }
  if (culprit < 0) return;  // the last peer came while this rank looked
  const int waited_for = culprit;
  culprit = comm().culprit(culprit);
  if (culprit != waited_for)
    late += concat("; rank ", waited_for, " itself waits, held up by rank ", culprit);
  if (const std::string seen = comm().describe(culprit); !seen.empty()) late += "; " + seen;
  const auto guard = comm().lock();
  advance();
  if (w.done) return;
  header().failure.claim(
      FailureKind::timeout, culprit,
      concat("rank ", comm().world_rank, " gave up after ", w.c.timeout.count(), " ms in ", place,
             ", waiting for: ", late, "; flight record: ", recorder().path()));
  wake(header());
  (void)failed();
}

}  // namespace tessera

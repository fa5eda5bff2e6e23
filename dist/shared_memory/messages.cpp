// SPDX-License-Identifier: Apache-2.0
// send and recv: a ring of entries per ordered pair of ranks, one for a message. Its bytes are in a
// slot if they are few. Larger ones stay in the sender's tensor among threads, whose use ends when
// its receiver has copied them; among processes they are copied into the sender's pool at once, but
// for what a receiver that is there takes meanwhile: it goes through slots in pieces, which stay in
// the caches. So does what finds no room in the pool, as both ranks come to it.
// Messages of one pair and tag arrive in order.
#include "tessera/dist/shared_memory/group_impl.h"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

int64_t bytes_of(const Collective& c) { return c.count * item_size(c.dtype); }

int64_t filled(const Entry& e) {
  return static_cast<int64_t>(e.filled.load(std::memory_order_seq_cst));
}

bool is_taken(const Entry& e, uint64_t number) {
  return e.taken.load(std::memory_order_seq_cst) > number;
}

}  // namespace

void SharedGroup::post(Ref<SharedWork> w) {
  ++messages_;
  recorder().started(w->c.record);
  const auto peer = static_cast<size_t>(w->c.root);
  if (w->c.kind == CollectiveKind::send) outboxes_[peer].waiting.push_back(std::move(w));
  else inboxes_[peer].posted.push_back(std::move(w));
}

void SharedGroup::finish(const Ref<SharedWork>& w) {
  end(w, nullptr);
  --messages_;
}

void SharedGroup::advance_messages() {
  const auto each = [&](const auto& advance) {
    for (int p = 0; p < size() && !header().failure.happened(); ++p) advance(p);
  };
  each([&](int p) { take_back(p); });
  each([&](int p) { push(p); });
  each([&](int p) { pull(p); });
  failed();
}

bool SharedGroup::has_entry(int from, int to, uint64_t number) const {
  return number < SegmentLayout::kEntries ||
         is_taken(entry(from, to, number), number - SegmentLayout::kEntries);
}

bool SharedGroup::has_slot(int to) const {
  return outboxes_[static_cast<size_t>(to)].slots -
             channel(rank(), to).slots_taken.load(std::memory_order_seq_cst) <
         SegmentLayout::kRing;
}

// Whether the peer has done what a message waits for.
bool SharedGroup::message_ready(const SharedWork& w) const {
  const int peer = w.c.root;
  if (w.c.kind == CollectiveKind::recv) {
    return channel(peer, rank()).written.load(std::memory_order_seq_cst) !=
           inboxes_[static_cast<size_t>(peer)].seen;
  }
  const Outbox& box = outboxes_[static_cast<size_t>(peer)];
  const auto lent =
      std::ranges::find_if(box.lent, [&](const Lent& l) { return l.work.get() == &w; });
  if (lent != box.lent.end()) return is_taken(entry(rank(), peer, lent->number), lent->number);
  const uint64_t next = channel(rank(), peer).written.load(std::memory_order_relaxed);
  return has_entry(rank(), peer, next) && has_slot(peer);
}

// --- sending ---------------------------------------------------------------------------------------

// Ends what its receiver has copied.
void SharedGroup::take_back(int to) {
  std::vector<Lent>& lent = outboxes_[static_cast<size_t>(to)].lent;
  std::erase_if(lent, [&](const Lent& l) {
    if (!is_taken(entry(rank(), to, l.number), l.number)) return false;
    if (l.work) finish(l.work);
    else pool_.give_back(l.in_pool);
    return true;
  });
  if (!lent.empty() && lent.front().work) peer_left(to, *lent.front().work);
}

// A message that must wait for its bytes holds up those of its tag alone.
void SharedGroup::push(int to) {
  std::deque<Ref<SharedWork>>& waiting = outboxes_[static_cast<size_t>(to)].waiting;
  std::vector<int> held;
  for (auto w = waiting.begin(); w != waiting.end();) {
    const Collective& c = (*w)->c;
    if (std::ranges::find(held, c.tag) != held.end() || !(*w)->c.may_start()) {
      held.push_back(c.tag);
      ++w;
    } else if (put(to, *w)) {
      w = waiting.erase(w);
    } else {
      peer_left(to, **w);
      if ((*w)->moved > 0) std::rotate(waiting.begin(), w, w + 1);  // its pieces stay together
      return;
    }
  }
}

// True once all of a message is in the channel.
bool SharedGroup::put(int to, const Ref<SharedWork>& w) {
  const int64_t awaited = channel(rank(), to).awaited.load(std::memory_order_relaxed);
  const bool pieces = w->moved == 0 && awaited == 1 + int64_t{w->c.tag};
  do {
    if (!put_entry(to, w, pieces)) return false;
  } while (w->moved < bytes_of(w->c));
  const std::vector<Lent>& lent = outboxes_[static_cast<size_t>(to)].lent;
  if (lent.empty() || lent.back().work != w) finish(w);
  return true;
}

// Whether a receiver that is there makes a slot free.
bool SharedGroup::slot_comes(int to) const {
  constexpr auto kPatience = std::chrono::microseconds(100);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!has_slot(to)) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// `pieces`: its recv is posted, so that pieces need not be kept.
bool SharedGroup::put_entry(int to, const Ref<SharedWork>& w, bool pieces) {
  Outbox& box = outboxes_[static_cast<size_t>(to)];
  Channel& ring = channel(rank(), to);
  const Collective& c = w->c;
  const uint64_t number = ring.written.load(std::memory_order_relaxed);
  if (!has_entry(rank(), to, number)) return false;
  Entry& e = entry(rank(), to, number);
  const int64_t rest = bytes_of(c) - w->moved;
  e.count = c.count;
  e.tag = c.tag;
  e.dtype = c.dtype;
  e.begin = w->moved;
  e.bytes = rest;
  const bool slot = rest > 0 && (has_slot(to) || (pieces && w->moved > 0 && slot_comes(to)));
  const int64_t piece = std::min(rest, static_cast<int64_t>(SegmentLayout::kRingBytes));
  std::optional<size_t> in_pool;
  if (rest == 0 || (slot && piece == rest)) {
    e.place = Place::slot;
  } else if (w->moved == 0 && setup_.mode == PayloadMode::direct) {
    e.place = Place::tensor;
    e.where = reinterpret_cast<uint64_t>(c.in.data);
    box.lent.push_back({number, w});
  } else if (!(slot && pieces) && (in_pool = pool_.take(static_cast<size_t>(rest)))) {
    e.place = Place::pool;
    e.where = layout_.pool(rank()) + *in_pool;
    box.lent.push_back({number, nullptr, *in_pool});
  } else if (slot) {
    e.place = Place::slot;
    e.bytes = piece;
  } else {
    return false;
  }
  if (e.place == Place::slot && e.bytes > 0) {
    std::memcpy(at(layout_.slot(rank(), to, box.slots++)), c.in.data + w->moved,
                static_cast<size_t>(e.bytes));
  }
  w->moved += e.bytes;
  e.filled.store(e.place == Place::pool ? 0 : static_cast<uint64_t>(e.bytes),
                 std::memory_order_relaxed);
  publish(ring.written, number + 1);
  if (e.place == Place::pool) fill_pool(e, *w);
  return true;
}

// In steps, so that a receiver that is there copies at the same time.
void SharedGroup::fill_pool(Entry& e, const SharedWork& w) {
  constexpr int64_t kStep = 256 * 1024;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t begin = 0; begin < e.bytes; begin += kStep) {
    const int64_t bytes = std::min(kStep, e.bytes - begin);
    std::memcpy(at(e.where) + begin, w.c.in.data + e.begin + begin, static_cast<size_t>(bytes));
    publish(e.filled, static_cast<uint64_t>(begin + bytes));
  }
  recorder().moved(start);
}

// --- receiving -------------------------------------------------------------------------------------

void SharedGroup::pull(int from) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  while (inbox.current || !inbox.posted.empty()) {
    if (!give_early(from, inbox) || !take(from, inbox)) return;
  }
}

bool SharedGroup::match(int from, const Early& m, const SharedWork& w) {
  if (m.count == w.c.count && m.dtype == w.c.dtype) return true;
  header().failure.claim(
      FailureKind::mismatch, world(from),
      concat("members of group ", name(), " disagree on a message: rank ", world(from), ": ",
             message_text(CollectiveKind::send, rank(), m.dtype, m.count, m.tag), ", rank ",
             world(rank()), ": ",
             message_text(CollectiveKind::recv, from, w.c.dtype, w.c.count, w.c.tag)));
  wake(header());
  return false;
}

// Messages that came before their recvs; false: the group has failed.
bool SharedGroup::give_early(int from, Inbox& inbox) {
  for (auto m = inbox.early.begin(); m != inbox.early.end();) {
    Entry& e = entry(from, rank(), m->number);
    const bool whole = (m->kept ? m->moved : filled(e)) == m->bytes();
    const auto w = whole ? recv_of(inbox.posted, m->tag) : inbox.posted.end();
    if (w == inbox.posted.end()) {
      ++m;
      continue;
    }
    if (!match(from, *m, **w)) return false;
    if (!m->kept) {
      if (!fetch(from, e, (*w)->c.out.data, m->moved)) return false;
      publish(e.taken, m->number + 1);
    } else if (m->moved > 0) {
      std::memcpy((*w)->c.out.data, m->kept.get(), static_cast<size_t>(m->moved));
    }
    const Ref<SharedWork> done = *w;
    inbox.posted.erase(w);
    m = inbox.early.erase(m);
    finish(done);
  }
  return true;
}

// Copies what is new of the bytes of an entry; false: nothing, or the group has failed.
bool SharedGroup::fetch(int from, const Entry& e, std::byte* to, int64_t& moved) {
  const Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  const auto copy_to = [&](const std::byte* bytes, int64_t count) {
    const auto start = std::chrono::steady_clock::now();
    copy_payload(to + moved, bytes, count);
    recorder().moved(start);
    moved += count;
  };
  switch (e.place) {
    case Place::slot:
      if (e.bytes > 0) {
        std::memcpy(to + moved, at(layout_.slot(from, rank(), inbox.slots)),
                    static_cast<size_t>(e.bytes));
      }
      moved += e.bytes;
      return true;
    case Place::pool: {
      const int64_t here = moved - e.begin, more = filled(e) - here;
      if (more > 0) copy_to(at(e.where) + here, more);
      return more > 0;
    }
    case Place::tensor: {
      // Either this rank sees the failure of a sender that gives up, or that one sees it here.
      const Touching touching(cell(rank()).touching);
      if (header().failure.happened()) return false;
      copy_to(reinterpret_cast<const std::byte*>(e.where), e.bytes);
      return true;
    }
  }
  return false;
}

// Takes what is new of the next entry; false where there is none, or on a failure.
bool SharedGroup::take(int from, Inbox& inbox) {
  Channel& ring = channel(from, rank());
  if (ring.written.load(std::memory_order_seq_cst) == inbox.seen) {
    if (make_room(from, inbox)) return true;
    const SharedWork* next = inbox.current ? nullptr : first_to_come(inbox.posted);
    const int64_t awaited = next ? 1 + int64_t{next->c.tag} : 0;
    if (ring.awaited.load(std::memory_order_relaxed) != awaited)
      ring.awaited.store(awaited, std::memory_order_relaxed);
    if (inbox.current) peer_left(from, *inbox.current);
    else if (next) peer_left(from, *next);
    return false;
  }
  Entry& e = entry(from, rank(), inbox.seen);
  if (!inbox.current && !inbox.to_early && !begin(from, inbox, e)) return false;
  if (!inbox.current && !inbox.to_early) {  // it stays where it is
    ++inbox.seen;
    return true;
  }
  const Ref<SharedWork> current = inbox.current;
  Early* early = current ? nullptr : &inbox.early.back();
  int64_t& moved = current ? current->moved : early->moved;
  if (!fetch(from, e, current ? current->c.out.data : early->kept.get(), moved)) return false;
  const int64_t all = e.count * item_size(e.dtype);
  if (e.place != Place::slot && moved < all) return true;  // its sender fills it
  if (e.place == Place::slot && e.bytes > 0)
    ring.slots_taken.store(++inbox.slots, std::memory_order_seq_cst);
  publish(e.taken, ++inbox.seen);
  if (moved < all) return true;
  inbox.current = nullptr;
  inbox.to_early = false;
  if (current) finish(current);
  return true;
}

// A message begins: finds out where it goes; false: the group has failed.
bool SharedGroup::begin(int from, Inbox& inbox, const Entry& e) {
  Early m{e.count, e.tag, e.dtype, inbox.seen};
  const auto w = recv_of(inbox.posted, m.tag);
  if (w != inbox.posted.end()) {
    if (!match(from, m, **w)) return false;
    inbox.current = *w;
    inbox.posted.erase(w);
    return true;
  }
  if (e.place == Place::slot) {
    m.kept = std::make_unique<std::byte[]>(static_cast<size_t>(m.bytes()));
    inbox.to_early = true;
  }
  inbox.early.push_back(std::move(m));
  return true;
}

// The message that a recv waits for may not have an entry yet: then the oldest one is kept here.
// False: there are entries, or a failure.
bool SharedGroup::make_room(int from, Inbox& inbox) {
  if (has_entry(from, rank(), inbox.seen)) return false;
  const uint64_t oldest = inbox.seen - SegmentLayout::kEntries;
  const auto m = std::ranges::find_if(
      inbox.early, [&](const Early& early) { return early.number == oldest && !early.kept; });
  if (m == inbox.early.end()) return false;
  Entry& e = entry(from, rank(), oldest);
  auto kept = std::make_unique<std::byte[]>(static_cast<size_t>(m->bytes()));
  if (!fetch(from, e, kept.get(), m->moved)) return false;
  m->kept = std::move(kept);
  publish(e.taken, oldest + 1);
  return true;
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// send and recv: a ring of chunks per ordered pair of ranks, the same for threads and processes. A
// send is complete when its last chunk is in the ring. Messages of one pair and tag arrive in
// order; one that arrives before its recv, while a recv of another tag waits, is kept on the heap.
#include "tessera/dist/shared_memory/group_impl.h"

#include <algorithm>
#include <cstring>

namespace tessera {
void SharedGroup::post(Ref<SharedWork> w) {
  ++messages_;
  recorder().started(w->c.record);
  const auto peer = static_cast<size_t>(w->c.root);
  if (w->c.kind == CollectiveKind::send) outgoing_[peer].push_back(std::move(w));
  else inboxes_[peer].posted.push_back(std::move(w));
}

void SharedGroup::advance_messages() {
  for (int p = 0; p < size(); ++p) {
    if (!outgoing_[static_cast<size_t>(p)].empty()) push(p);
    if (header().failure.happened()) break;
  }
  for (int p = 0; p < size(); ++p) {
    const Inbox& inbox = inboxes_[static_cast<size_t>(p)];
    if (!inbox.posted.empty() || inbox.current) pull(p);
    if (header().failure.happened()) break;
  }
  failed();
}

bool SharedGroup::message_ready(const SharedWork& w) const {
  const bool sends = w.c.kind == CollectiveKind::send;
  const int from = sends ? rank() : w.c.root, to = sends ? w.c.root : rank();
  const Channel& channel = *at<Channel>(layout_.channel(from, to));
  const uint64_t waiting = channel.written.load(std::memory_order_seq_cst) -
                           channel.taken.load(std::memory_order_seq_cst);
  return sends ? waiting < SegmentLayout::kRing : waiting > 0;
}

void SharedGroup::push(int to) {
  auto& outgoing = outgoing_[static_cast<size_t>(to)];
  Channel& channel = *at<Channel>(layout_.channel(rank(), to));
  while (!outgoing.empty()) {
    const Ref<SharedWork> w = outgoing.front();
    const Collective& c = w->c;
    if (!message_ready(*w)) {
      peer_left(to, *w);
      return;
    }
    const uint64_t at_chunk = channel.written.load(std::memory_order_relaxed);
    const size_t i = at_chunk % SegmentLayout::kRing;
    const int64_t all = c.count * item_size(c.dtype);
    const int64_t bytes = std::min<int64_t>(all - w->moved, SegmentLayout::kRingBytes);
    *at<Chunk>(layout_.chunk(rank(), to, i)) = {c.count, c.tag, bytes, c.sequence, c.dtype};
    if (bytes > 0) {
      std::memcpy(at(layout_.chunk_bytes(rank(), to, i)), c.in.data + w->moved,
                  static_cast<size_t>(bytes));
    }
    publish(channel.written, at_chunk + 1);
    w->moved += bytes;
    if (w->moved < all) continue;
    end(w, nullptr);
    outgoing.pop_front();
    --messages_;
  }
}

void SharedGroup::pull(int from) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  const auto give = [&] {  // messages kept for a recv that has come
    for (auto w = inbox.posted.begin(); w != inbox.posted.end();) {
      const auto kept = std::ranges::find_if(inbox.unexpected, [&](const Message& m) {
        return m.tag == (*w)->c.tag && m.moved == m.bytes;
      });
      if (kept == inbox.unexpected.end()) {
        ++w;
        continue;
      }
      if (!match(from, *kept, **w)) return false;
      if (kept->bytes > 0)
        std::memcpy((*w)->c.out.data, kept->data.get(), static_cast<size_t>(kept->bytes));
      inbox.unexpected.erase(kept);
      end(*w, nullptr);
      w = inbox.posted.erase(w);
      --messages_;
    }
    return true;
  };
  do {
    if (!give()) return;
  } while ((inbox.current || !inbox.posted.empty()) && take(from, inbox));
}

bool SharedGroup::match(int from, const Message& m, const SharedWork& w) {
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

// Takes one chunk out of the ring; false where there is none, or on a failure.
bool SharedGroup::take(int from, Inbox& inbox) {
  Channel& channel = *at<Channel>(layout_.channel(from, rank()));
  const uint64_t taken = channel.taken.load(std::memory_order_relaxed);
  if (channel.written.load(std::memory_order_seq_cst) == taken) {
    peer_left(from, inbox.current ? *inbox.current : *inbox.posted.front());
    return false;
  }
  const size_t i = taken % SegmentLayout::kRing;
  const Chunk& chunk = *at<Chunk>(layout_.chunk(from, rank(), i));
  if (!inbox.current && !inbox.to_unexpected) {  // a message begins
    const Message m{chunk.tag, chunk.count, chunk.count * item_size(chunk.dtype),
                    0,         chunk.dtype, {}};
    const auto w = std::ranges::find_if(
        inbox.posted, [&](const Ref<SharedWork>& posted) { return posted->c.tag == m.tag; });
    if (w != inbox.posted.end()) {
      if (!match(from, m, **w)) return false;
      inbox.current = *w;
      inbox.posted.erase(w);
    } else {
      inbox.unexpected.push_back({m.tag, m.count, m.bytes, 0, m.dtype,
                                  std::make_unique<std::byte[]>(static_cast<size_t>(m.bytes))});
      inbox.to_unexpected = true;
    }
  }
  const Ref<SharedWork> current = inbox.current;
  Message* kept = current ? nullptr : &inbox.unexpected.back();
  int64_t& moved = current ? current->moved : kept->moved;
  if (chunk.bytes > 0) {
    std::byte* to = current ? current->c.out.data : kept->data.get();
    std::memcpy(to + moved, at(layout_.chunk_bytes(from, rank(), i)),
                static_cast<size_t>(chunk.bytes));
  }
  moved += chunk.bytes;
  const bool complete = moved == chunk.count * item_size(chunk.dtype);
  publish(channel.taken, taken + 1);
  if (!complete) return true;
  inbox.current = nullptr;
  inbox.to_unexpected = false;
  if (current) {
    end(current, nullptr);
    --messages_;
  }
  return true;
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// send and recv over messages: an opening with tag, type and a small payload, then the rest. One
// message per source is received at a time; one without a matching recv, while a recv of another
// tag waits, is stored on the heap.
#include "tessera/dist/messages/group_impl.h"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

int tag_of(int group) { return Messages::kFirstGroupTag + 2 * group + 1; }

}  // namespace

void MessageGroup::post(const Ref<MessageWork>& w) {
  ++messages_;
  const Collective& c = w->c;
  recorder().started(c.record);
  const auto peer = static_cast<size_t>(c.root);
  if (c.kind == CollectiveKind::recv) inboxes_[peer].posted.push_back(w);
  else outgoing_[peer].push_back(w);
}

void MessageGroup::send_message(MessageWork& w) {
  const Collective& c = w.c;
  w.stage = MessageWork::Stage::opening;
  w.out = std::make_unique_for_overwrite<Opening[]>(1);
  Opening& opening = w.out[0];
  opening.sequence = c.sequence;
  opening.tag = c.tag;
  opening.payload = c.count * item_size(c.dtype);
  opening.signature = Signature(c);
  const auto send = [&](const void* data, size_t bytes) {
    w.transfers.push_back(
        {world_->messages->send(world(c.root), tag_of(id_), data, bytes), c.root, false});
  };
  if (opening.is_inline() && opening.payload > 0)
    std::memcpy(opening.data.data(), c.in.data, static_cast<size_t>(opening.payload));
  send(&opening, opening.bytes());
  if (!opening.is_inline()) send(c.in.data, static_cast<size_t>(opening.payload));
}

void MessageGroup::advance_pairs() {
  for (int p = 0; p < size() && !failure_->happened(); ++p) {
    advance_outgoing(p);
    advance_inbox(p);
  }
}

// A message that must wait for its bytes holds up those of its tag alone.
void MessageGroup::advance_outgoing(int to) {
  auto& outgoing = outgoing_[static_cast<size_t>(to)];
  std::vector<int> held;
  bool first = true;  // of what the peer has not taken, for it may have left
  for (auto it = outgoing.begin(); it != outgoing.end();) {
    const Ref<MessageWork> w = *it;
    const int tag = w->c.tag;
    const bool queued = w->stage == MessageWork::Stage::queued;
    if (queued && (std::ranges::find(held, tag) != held.end() || !w->c.may_start())) {
      held.push_back(tag);
      ++it;
      continue;
    }
    if (queued) send_message(*w);
    if (transfers_done(*w)) {
      finish(w);
      it = outgoing.erase(it);
      continue;
    }
    if (std::exchange(first, false)) left_behind(to, *w);
    ++it;
  }
}

bool MessageGroup::deliver(int from, const Opening& opening, MessageWork& w) {
  const Signature& theirs = opening.signature;
  if (theirs.count == w.c.count && theirs.dtype == w.c.dtype) return true;
  claim(FailureKind::mismatch, world(from),
        concat("members of group ", name(), " disagree on a message: rank ", world(from), ": ",
               message_text(CollectiveKind::send, rank(), theirs.dtype, theirs.count, opening.tag),
               ", rank ", world(rank()), ": ",
               message_text(CollectiveKind::recv, from, w.c.dtype, w.c.count, w.c.tag)));
  return false;
}

namespace {

void fill(MessageWork& w, const std::byte* data, int64_t bytes) {
  if (bytes > 0) std::memcpy(w.c.out.data, data, static_cast<size_t>(bytes));
}

}  // namespace

void MessageGroup::finish(const Ref<MessageWork>& message) {
  end(message, nullptr);
  --messages_;
}

// Messages that came before a recv asked for them; false: the group has failed.
bool MessageGroup::take_unexpected(int from) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  for (auto kept = inbox.unexpected.begin(); kept != inbox.unexpected.end();) {
    const auto w = recv_of(inbox.posted, (*kept)->opening.tag);
    if (w == inbox.posted.end()) {
      ++kept;
      continue;
    }
    if (!deliver(from, (*kept)->opening, **w)) return false;
    fill(**w, (*kept)->data.data(), (*kept)->opening.payload);
    finish(*w);
    inbox.posted.erase(w);
    kept = inbox.unexpected.erase(kept);
  }
  return true;
}

// The opening that has come, with its payload if that is inside; false: the group has failed.
bool MessageGroup::take_opening(int from) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  const Opening& opening = *inbox.opening;
  const auto receive = [&](void* to) {
    inbox.handle = world_->messages->receive(world(from), tag_of(id_), to,
                                             static_cast<size_t>(opening.payload));
  };
  if (const auto w = recv_of(inbox.posted, opening.tag); w != inbox.posted.end()) {
    if (!deliver(from, opening, **w)) return false;
    const Ref<MessageWork> work = *w;
    inbox.posted.erase(w);
    if (opening.is_inline()) {
      fill(*work, opening.data.data(), opening.payload);
      finish(work);
    } else {
      inbox.current = work;
      receive(work->c.out.data);
    }
    return true;
  }
  auto kept = std::make_shared<Unexpected>();
  kept->opening = opening;
  kept->data.resize(static_cast<size_t>(opening.payload));
  if (opening.is_inline()) {
    std::copy_n(opening.data.data(), kept->data.size(), kept->data.data());
    inbox.unexpected.push_back(std::move(kept));
  } else {
    receive(kept->data.data());
    inbox.to_unexpected = std::move(kept);
  }
  return true;
}

void MessageGroup::advance_inbox(int from) {
  Inbox& inbox = inboxes_[static_cast<size_t>(from)];
  while (take_unexpected(from)) {
    if (!inbox.handle) {
      if (inbox.posted.empty()) return;
      inbox.opening = std::make_shared<Opening>();
      inbox.handle =
          world_->messages->receive(world(from), tag_of(id_), inbox.opening.get(), sizeof(Opening));
    }
    if (!world_->messages->done(inbox.handle)) {
      if (inbox.current) left_behind(from, *inbox.current);
      else if (const MessageWork* w = first_to_come(inbox.posted)) left_behind(from, *w);
      return;
    }
    last_look_ = false;
    if (inbox.current) {  // its payload is here
      finish(std::exchange(inbox.current, nullptr));
    } else if (inbox.to_unexpected) {
      inbox.unexpected.push_back(std::exchange(inbox.to_unexpected, nullptr));
    } else if (!take_opening(from)) {
      return;
    }
  }
}

}  // namespace tessera

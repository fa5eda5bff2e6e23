// SPDX-License-Identifier: Apache-2.0
// Collectives over messages: opening messages from all to all, then up to two exchanges. Large
// reductions and broadcasts are split into shares, one per rank, to balance the traffic.
#include "tessera/core/message.h"
#include "tessera/dist/messages/group_impl.h"
#include "tessera/dist/process_group/reduce_tree_impl.h"

#include <cstring>

namespace tessera {
namespace {

using Kind = CollectiveKind;

const std::byte* input(const Collective& c) { return c.in.data; }
std::byte* output(const Collective& c) { return c.out.data; }

// A run of elements, in bytes.
struct Run {
  int64_t begin = 0, bytes = 0;
};
Run share(const Collective& c, int r, int n) {
  const int64_t item = item_size(c.dtype), from = c.count * r / n, to = c.count * (r + 1) / n;
  return {from * item, (to - from) * item};
}
Run part(const Counts& counts, int r, int64_t item) {
  return {offset_of(counts, r) * item, counts[static_cast<size_t>(r)] * item};
}

// What `from` sends to `to` of its input in the first exchange, as either side computes it. For
// all_to_all only the sender's and the receiver's own view exist.
Run first_piece(const Collective& c, int from, int to, int n, bool in_shares) {
  const int64_t item = item_size(c.dtype), whole = c.count * item;
  switch (c.kind) {
    case Kind::all_reduce: return in_shares ? share(c, to, n) : Run{0, whole};
    case Kind::reduce:
      if (in_shares) return share(c, to, n);
      return to == c.root ? Run{0, whole} : Run{};
    case Kind::broadcast:
      if (from != c.root) return {};
      return in_shares ? share(c, to, n) : Run{0, whole};
    case Kind::all_gather: return {0, c.receive[static_cast<size_t>(from)] * item};
    case Kind::gather:
      return to == c.root ? Run{0, c.receive[static_cast<size_t>(from)] * item} : Run{};
    case Kind::reduce_scatter: return part(c.send, to, item);
    case Kind::scatter: return from == c.root ? part(c.send, to, item) : Run{};
    default: return {};
  }
}

bool reduces(Kind k) {
  return k == Kind::all_reduce || k == Kind::reduce || k == Kind::reduce_scatter;
}

}  // namespace

// Whether all ranks work on a share each; the same answer on all, by the signature alone.
bool MessageGroup::in_shares(const MessageWork& w) const {
  const Collective& c = w.c;
  const bool can =
      c.kind == Kind::all_reduce || c.kind == Kind::reduce || c.kind == Kind::broadcast;
  return can && c.count * item_size(c.dtype) > static_cast<int64_t>(Opening::kInline);
}

void MessageGroup::send_to(MessageWork& w, int member, const void* data, int64_t bytes) {
  if (bytes == 0 || member == rank()) return;
  const int tag = Messages::kFirstGroupTag + 2 * id_;
  w.transfers.push_back(
      {world_->messages->send(world(member), tag, data, static_cast<size_t>(bytes)), member,
       false});
}

void MessageGroup::receive_from(MessageWork& w, int member, void* data, int64_t bytes) {
  if (bytes == 0 || member == rank()) return;
  const int tag = Messages::kFirstGroupTag + 2 * id_;
  w.transfers.push_back(
      {world_->messages->receive(world(member), tag, data, static_cast<size_t>(bytes)), member,
       true});
}

bool MessageGroup::transfers_done(MessageWork& w) {
  bool all = true;
  for (MessageWork::Transfer& transfer : w.transfers)
    all &= world_->messages->done(transfer.handle);
  return all;
}

MessageGroup::Step MessageGroup::step(MessageWork& w) {
  using Stage = MessageWork::Stage;
  if (w.stage == Stage::queued) {
    if (!w.c.may_start()) return Step::blocked;
    open(w);
    w.stage = Stage::opening;
    return Step::moved;
  }
  if (!transfers_done(w)) return left_behind(waits_for(w), w) ? Step::failed : Step::blocked;
  w.transfers.clear();
  last_look_ = false;
  switch (w.stage) {
    case Stage::opening:
      if (!agree(w)) return Step::failed;
      first_exchange(w);
      w.stage = Stage::first;
      return Step::moved;
    case Stage::first:
      if (reduces(w.c.kind)) reduce(w);
      second_exchange(w);
      w.stage = Stage::second;
      return Step::moved;
    default: return Step::finished;
  }
}

void MessageGroup::open(MessageWork& w) {
  const Collective& c = w.c;
  const int n = size();
  const int64_t item = item_size(c.dtype);
  const auto members = static_cast<size_t>(n);
  w.out = std::make_unique_for_overwrite<Opening[]>(members);
  w.in = std::make_unique_for_overwrite<Opening[]>(members);
  const Signature signature(c);
  for (int p = 0; p < n; ++p) {
    if (p == rank()) continue;
    Opening& opening = w.out[static_cast<size_t>(p)];
    const Run piece = c.kind == Kind::all_to_all ? part(c.send, p, item)
                                                 : first_piece(c, rank(), p, n, in_shares(w));
    opening.sequence = c.sequence;
    opening.tag = 0;
    opening.payload = piece.bytes;
    opening.signature = signature;
    if (opening.is_inline() && piece.bytes > 0)
      std::memcpy(opening.data.data(), input(c) + piece.begin, static_cast<size_t>(piece.bytes));
    receive_from(w, p, &w.in[static_cast<size_t>(p)], sizeof(Opening));
    send_to(w, p, &opening, static_cast<int64_t>(opening.bytes()));
  }
  recorder().started(c.record);
}

bool MessageGroup::agree(MessageWork& w) {
  const Collective& c = w.c;
  const Signature mine(c);
  const int64_t item = item_size(c.dtype);
  for (int p = 0; p < size(); ++p) {
    if (p == rank()) continue;
    const Opening& theirs = w.in[static_cast<size_t>(p)];
    if (!(theirs.signature == mine)) {
      const bool same = theirs.signature.text() == mine.text();
      claim(FailureKind::mismatch, world(p),
            concat("members of group ", name(), " disagree on collective #", c.sequence, ": rank ",
                   world(rank()), ": ", mine.text(), ", rank ", world(p), ": ",
                   theirs.signature.text(), same ? " with other counts" : ""));
      return false;
    }
    if (c.kind != Kind::all_to_all) continue;
    const int64_t expected = c.receive[static_cast<size_t>(p)];
    if (theirs.payload == expected * item) continue;
    claim(FailureKind::mismatch, world(p),
          concat("members of group ", name(), " disagree on all_to_all #", c.sequence, ": rank ",
                 world(p), " sends ", counted(theirs.payload / item, "element"), " to rank ",
                 world(rank()), ", which expects ", expected));
    return false;
  }
  return true;
}

void MessageGroup::first_exchange(MessageWork& w) {
  const Collective& c = w.c;
  const int n = size(), me = rank();
  const int64_t item = item_size(c.dtype);
  const bool shares = in_shares(w);
  // Parts of others that are reduced here lie one after another.
  const Run own = first_piece(c, me, me, n, shares);
  const bool keeps = reduces(c.kind) && (c.kind != Kind::reduce || shares || me == c.root);
  if (keeps)
    w.temporary = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(own.bytes * n));
  const auto place = [&](int p) -> std::byte* {
    switch (c.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
      case Kind::reduce_scatter: return w.temporary.get() + own.bytes * p;
      case Kind::broadcast: return output(c) + (shares ? share(c, me, n).begin : 0);
      case Kind::all_gather:
      case Kind::gather:
      case Kind::all_to_all: return output(c) + offset_of(c.receive, p) * item;
      default: return output(c);
    }
  };
  for (int p = 0; p < n; ++p) {
    if (p == me) continue;
    const Opening &theirs = w.in[static_cast<size_t>(p)], &mine = w.out[static_cast<size_t>(p)];
    if (!theirs.is_inline()) receive_from(w, p, place(p), theirs.payload);
    else if (theirs.payload > 0)
      std::memcpy(place(p), theirs.data.data(), static_cast<size_t>(theirs.payload));
    if (mine.is_inline()) continue;
    const Run piece =
        c.kind == Kind::all_to_all ? part(c.send, p, item) : first_piece(c, me, p, n, shares);
    send_to(w, p, input(c) + piece.begin, piece.bytes);
  }
  // This rank's own contribution to its output.
  const auto keep = [&](int64_t to, int64_t from, int64_t bytes) {
    if (bytes > 0 && output(c) + to != input(c) + from)
      std::memmove(output(c) + to, input(c) + from, static_cast<size_t>(bytes));
  };
  if ((c.kind == Kind::all_gather || c.kind == Kind::gather) && c.out.defined()) {
    const Run piece = part(c.receive, me, item);
    keep(piece.begin, 0, piece.bytes);
  } else if (c.kind == Kind::all_to_all) {
    const Run from = part(c.send, me, item);
    keep(offset_of(c.receive, me) * item, from.begin, from.bytes);
  } else if (c.kind == Kind::scatter && me == c.root) {
    const Run piece = part(c.send, me, item);
    keep(0, piece.begin, piece.bytes);
  }
}

// Reduces this rank's elements: its share, its chunk, or all.
void MessageGroup::reduce(MessageWork& w) {
  const Collective& c = w.c;
  if (!w.temporary) return;
  const int n = size(), me = rank();
  const Run own = first_piece(c, me, me, n, in_shares(w));
  std::vector<const void*> sources;
  for (int p = 0; p < n; ++p) {
    sources.push_back(p == me ? input(c) + own.begin : w.temporary.get() + own.bytes * p);
  }
  // A rank that has no output keeps its share where its own contribution was received.
  void* to = w.temporary.get() + own.bytes * me;
  if (c.kind == Kind::reduce_scatter) to = output(c);
  else if (c.out.defined()) to = output(c) + own.begin;
  reduce_tree(reduced_as(c.dtype), c.op, sources, {&to, 1}, own.bytes / item_size(c.dtype));
}

void MessageGroup::second_exchange(MessageWork& w) {
  const Collective& c = w.c;
  if (!in_shares(w)) return;
  const int n = size(), me = rank();
  const Run own = share(c, me, n);
  for (int p = 0; p < n; ++p) {
    if (p == me) continue;
    const bool to_p = c.kind == Kind::all_reduce || (c.kind == Kind::reduce && p == c.root) ||
                      (c.kind == Kind::broadcast && p != c.root);
    const bool from_p = c.kind == Kind::all_reduce || (c.kind == Kind::reduce && me == c.root) ||
                        (c.kind == Kind::broadcast && me != c.root);
    if (to_p) {
      const std::byte* from = c.kind == Kind::reduce ? w.temporary.get() + own.bytes * me
                              : c.out.defined()      ? output(c) + own.begin
                                                     : input(c) + own.begin;
      send_to(w, p, from, own.bytes);
    }
    if (from_p) {
      const Run theirs = share(c, p, n);
      receive_from(w, p, output(c) + theirs.begin, theirs.bytes);
    }
  }
}

}  // namespace tessera

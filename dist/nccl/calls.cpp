// SPDX-License-Identifier: Apache-2.0
// Collectives as calls of NCCL on the group's stream. What only moves bytes moves them as u8, so
// that every dtype can; forms with counts are messages or reductions in one group of calls.
#include "tessera/dist/nccl/group_impl.h"

#include <algorithm>

namespace tessera {
namespace {

using Kind = CollectiveKind;

int type_of(DType t) {
  switch (t) {
    case DType::f64: return kNcclF64;
    case DType::f32: return kNcclF32;
    case DType::bf16: return kNcclBf16;
    case DType::f16: return kNcclF16;
    case DType::i64: return kNcclI64;
    case DType::i32: return kNcclI32;
    case DType::u8:
    case DType::bool_: return kNcclU8;
    default:
      fail<DTypeError>("nccl", "reductions of ", t, " are not NCCL's: reduce in bf16 or f32");
  }
}

int op_of(ReduceOp op) {
  constexpr std::array<int, 4> kOps{kNcclSum, kNcclAvg, kNcclMax, kNcclMin};
  return kOps[static_cast<size_t>(op)];
}

bool even(const Counts& counts) {
  return std::ranges::all_of(counts, [&](int64_t n) { return n == counts[0]; });
}

}  // namespace

int NcclGroup::queue(NcclWork& w) {
  Collective& c = w.c;
  void *const to = c.out.data, *const stream = channel_->stream.handle,
              *const communicator = channel_->communicator;
  const void* from = c.in.data;
  const int64_t item = item_size(c.dtype);
  const auto n = static_cast<size_t>(c.count);
  switch (c.kind) {
    case Kind::all_reduce:
      return api_.all_reduce(from, to, n, type_of(c.dtype), op_of(c.op), communicator, stream);
    case Kind::reduce:
      return api_.reduce(from, to, n, type_of(c.dtype), op_of(c.op), c.root, communicator, stream);
    case Kind::broadcast: {
      void* const data = from ? const_cast<void*>(from) : to;
      return api_.broadcast(data, data, n * static_cast<size_t>(item), kNcclU8, c.root,
                            communicator, stream);
    }
    case Kind::all_gather:
      if (!even(c.receive)) return queue_pairs(w);
      return api_.all_gather(from, to, static_cast<size_t>(c.receive[0] * item), kNcclU8,
                             communicator, stream);
    case Kind::reduce_scatter: {
      const int type = type_of(c.dtype), op = op_of(c.op);
      if (even(c.send))
        return api_.reduce_scatter(from, to, static_cast<size_t>(c.send[0]), type, op, communicator,
                                   stream);
      const auto* part = static_cast<const std::byte*>(from);
      int code = api_.group_start();
      for (int p = 0; p < size() && code == 0; ++p) {
        const int64_t count = c.send[static_cast<size_t>(p)];
        if (count > 0)
          code = api_.reduce(part, p == rank() ? to : nullptr, static_cast<size_t>(count), type, op,
                             p, communicator, stream);
        part += count * item;
      }
      const int ended = api_.group_end();
      return code ? code : ended;
    }
    case Kind::barrier: {
      void* const data = w.scratch.address();
      return api_.all_reduce(data, data, 1, kNcclU8, kNcclMax, communicator, stream);
    }
    default: return queue_pairs(w);
  }
}

// Collectives made of messages between pairs, in one group of calls.
int NcclGroup::queue_pairs(NcclWork& w) {
  const Collective& c = w.c;
  const int me = rank();
  const int64_t item = item_size(c.dtype);
  void *const communicator = channel_->communicator, *const stream = channel_->stream.handle;
  const auto message = [&](bool sends, std::byte* data, int64_t count, int peer) {
    const auto bytes = static_cast<size_t>(count * item);
    if (bytes == 0) return 0;
    return sends ? api_.send(data, bytes, kNcclU8, peer, communicator, stream)
                 : api_.receive(data, bytes, kNcclU8, peer, communicator, stream);
  };
  const auto part = [](const Counts& counts, int p) {
    return counts.empty() ? 0 : counts[static_cast<size_t>(p)];
  };
  w.pairs = true;
  int code = api_.group_start();
  std::byte *from = c.in.data, *to = c.out.data;
  std::byte *own_from = from, *own_to = to;
  int64_t own = 0;
  for (int p = 0; p < size() && code == 0; ++p) {
    // What this rank sends to p, and receives from it.
    int64_t sends = 0, receives = 0;
    switch (c.kind) {
      case Kind::all_to_all: sends = part(c.send, p), receives = part(c.receive, p); break;
      case Kind::all_gather: sends = part(c.receive, me), receives = part(c.receive, p); break;
      case Kind::gather:
        sends = p == c.root ? part(c.receive, me) : 0;
        receives = me == c.root ? part(c.receive, p) : 0;
        break;
      default:
        sends = me == c.root ? part(c.send, p) : 0;
        receives = p == c.root ? part(c.send, me) : 0;
    }
    if (p == me) {
      own_from = from, own_to = to, own = receives;
    } else {
      code = message(true, from, sends, p);
      if (code == 0) code = message(false, to, receives, p);
    }
    if (c.kind == Kind::all_to_all || (c.kind == Kind::scatter && me == c.root))
      from += sends * item;
    if (c.kind != Kind::scatter) to += receives * item;
  }
  const int ended = api_.group_end();
  if (code == 0) code = ended;
  const bool rooted = c.kind == Kind::gather || c.kind == Kind::scatter;
  if (code == 0 && own > 0 && own_from != own_to && (!rooted || me == c.root))
    code = api_.copy(own_to, own_from, static_cast<size_t>(own * item), stream);
  return code;
}

}  // namespace tessera

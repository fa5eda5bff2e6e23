// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/shared_memory/segment_impl.h"

#include <thread>

namespace tessera {

bool Failure::claim(FailureKind of, int world_rank, std::string_view why) {
  uint32_t none = 0;
  if (!state.compare_exchange_strong(none, 1, std::memory_order_seq_cst)) return false;
  kind = of;
  rank = world_rank;
  const size_t length = std::min(why.size(), text.size() - 1);
  std::copy_n(why.data(), length, text.data());
  text[length] = 0;
  state.store(2, std::memory_order_seq_cst);
  return true;
}

void Failure::raise(std::string_view where) const {
  // A process may have died between the claim and the text, so even this wait has an end.
  for (int i = 0; i < 2000 && state.load(std::memory_order_acquire) != 2; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (state.load(std::memory_order_acquire) != 2)
    fail<PeerFailed>(where, "a rank died while it reported a failure");
  const std::string_view why = text.data();
  switch (kind) {
    case FailureKind::timeout: fail<CollectiveTimeout>(where, why);
    case FailureKind::mismatch: fail<CollectiveMismatch>(where, why);
    default: fail<PeerFailed>(where, why);
  }
}

Signature::Signature(const Collective& c)
    : count(c.count),
      counts_hash(0),
      root(c.root),
      kind(c.kind),
      op(ReduceOp::sum),
      dtype(c.dtype) {
  const Counts* common = nullptr;
  switch (kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce: op = c.op; break;
    case CollectiveKind::reduce_scatter:
      op = c.op;
      common = &c.send;
      break;
    case CollectiveKind::all_gather:
    case CollectiveKind::gather: common = &c.receive; break;
    case CollectiveKind::scatter: common = &c.send; break;
    default: break;
  }
  if (!common) return;
  counts_hash = 0xcbf29ce484222325u;
  for (int64_t n : *common) counts_hash = (counts_hash ^ static_cast<uint64_t>(n)) * 0x100000001b3u;
}

std::string Signature::text() const {
  Collective c;
  c.kind = kind;
  c.op = op;
  c.dtype = dtype;
  c.count = count;
  c.root = root;
  return concat(c);
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The fields of each collective that must be equal on all members; counts of all members enter as
// one hash.
#include "tessera/dist/process_group/signature_impl.h"

namespace tessera {

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

// SPDX-License-Identifier: Apache-2.0
// Data transfer of a collective: at once, from cells or from tensors, or in rounds through staging
// slots. In a round of all_reduce and reduce each rank leaves its own share of its slot free and
// writes the reduced share there; collectives with a chunk per rank split a slot into slices.
#include "tessera/core/parallel.h"
#include "tessera/dist/process_group/reduce_tree_impl.h"
#include "tessera/dist/shared_memory/group_impl.h"

#include <cstring>

namespace tessera {
namespace {

using Kind = CollectiveKind;

int64_t largest(const Counts& counts) { return *std::max_element(counts.begin(), counts.end()); }

bool has_parts(Kind k) {
  return k == Kind::reduce_scatter || k == Kind::scatter || k == Kind::all_to_all;
}

// The share of `length` elements that rank r of n reduces: whole cache lines.
struct Share {
  int64_t begin, end;
};
Share share_of(int64_t length, int r, int n, int64_t item) {
  const int64_t line = 64 / item;
  const int64_t each = ((length + n - 1) / n + line - 1) / line * line;
  return {std::min(r * each, length), std::min((r + 1) * each, length)};
}

}  // namespace

void copy_payload(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes == 0 || to == from) return;
  parallel_for(bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    std::memmove(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

// Bytes that a rank announces with its cell if they are few.
int64_t SharedGroup::contribution(const SharedWork& w) const {
  return w.c.in.defined() ? w.c.in.numel() * item_size(w.c.dtype) : 0;
}

// Elements that decide how many rounds a collective takes; the largest of all ranks counts.
int64_t SharedGroup::extent(const SharedWork& w) const {
  if (has_parts(w.c.kind)) return largest(w.c.send);
  if (w.c.kind == Kind::all_gather || w.c.kind == Kind::gather) return w.c.in.numel();
  return w.c.count;
}

int64_t SharedGroup::per_round(const SharedWork& w) const {
  const auto slot_bytes = static_cast<int64_t>(SegmentLayout::kStagingBytes);
  const int64_t bytes = has_parts(w.c.kind) ? slot_bytes / size() / 64 * 64 : slot_bytes;
  return bytes / item_size(w.c.dtype);
}

void SharedGroup::move_whole(SharedWork& w, bool from_cells) {
  const Collective& c = w.c;
  const int n = size(), me = rank();
  const int64_t item = item_size(c.dtype);
  const auto source = [&](int p) -> const std::byte* {
    if (p == me) return c.in.defined() ? c.in.data : nullptr;
    return from_cells ? payload(w, p) : reinterpret_cast<const std::byte*>(announcement(w, p).in);
  };
  const auto reduce_all = [&](int64_t offset, int64_t count) {
    std::vector<const void*> sources;
    for (int p = 0; p < n; ++p) sources.push_back(source(p) + offset * item);
    void* const output = c.out.data;
    reduce_tree(reduced_as(c.dtype), c.op, sources, {&output, 1}, count);
  };
  switch (c.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      if (c.out.defined()) reduce_all(0, c.count);
      break;
    case Kind::broadcast:
      if (me != c.root) copy_payload(c.out.data, source(c.root), c.count * item);
      break;
    case Kind::all_gather:
    case Kind::gather: {
      if (!c.out.defined()) break;
      std::byte* to = c.out.data;
      for (int p = 0; p < n; ++p) {
        const int64_t bytes = c.receive[static_cast<size_t>(p)] * item;
        copy_payload(to, source(p), bytes);
        to += bytes;
      }
      break;
    }
    case Kind::reduce_scatter:
      reduce_all(offset_of(c.send, me), c.send[static_cast<size_t>(me)]);
      break;
    case Kind::all_to_all: {
      std::byte* to = c.out.data;
      for (int p = 0; p < n; ++p) {
        int64_t offset = 0;
        for (int i = 0; i < me; ++i) offset += counts(w, p)[i];
        const int64_t bytes = c.receive[static_cast<size_t>(p)] * item;
        copy_payload(to, source(p) + offset * item, bytes);
        to += bytes;
      }
      break;
    }
    case Kind::scatter:
      copy_payload(c.out.data, source(c.root) + offset_of(c.send, me) * item,
                   c.send[static_cast<size_t>(me)] * item);
      break;
    default: break;
  }
}

// Each rank reduces its share of the elements and writes it wherever it is wanted: every byte is
// read and written once, and nobody waits in between.
void SharedGroup::reduce_direct(SharedWork& w) {
  const Collective& c = w.c;
  const int64_t item = item_size(c.dtype);
  const Share share = share_of(c.count, rank(), size(), item);
  std::vector<const void*> sources;
  std::vector<void*> outputs;
  for (int p = 0; p < size(); ++p) {
    const Announcement& a = announcement(w, p);
    sources.push_back(reinterpret_cast<const std::byte*>(a.in) + share.begin * item);
    if (a.out != 0) outputs.push_back(reinterpret_cast<std::byte*>(a.out) + share.begin * item);
  }
  reduce_tree(reduced_as(c.dtype), c.op, sources, outputs, share.end - share.begin);
}

void SharedGroup::write_round(SharedWork& w, int64_t k) {
  const Collective& c = w.c;
  if (!c.in.defined()) return;
  const int64_t item = item_size(c.dtype), each = per_round(w), from = k * each;
  std::byte* to = slot(rank(), k);
  const std::byte* in = c.in.data;
  const auto put = [&](int64_t at, int64_t begin, int64_t end) {
    if (begin < end)
      std::memcpy(to + at * item, in + begin * item, static_cast<size_t>((end - begin) * item));
  };
  if (has_parts(c.kind)) {
    for (int p = 0; p < size(); ++p) {
      if (p == rank()) continue;
      const int64_t part = c.send[static_cast<size_t>(p)], start = offset_of(c.send, p);
      put(p * each, start + std::min(from, part), start + std::min(from + each, part));
    }
    return;
  }
  const int64_t length = std::min(each, c.in.numel() - from);
  if (c.kind == Kind::all_reduce || c.kind == Kind::reduce) {
    const Share own = share_of(length, rank(), size(), item);
    put(0, from, from + own.begin);
    put(own.end, from + own.end, from + length);
  } else {
    put(0, from, from + length);
  }
}

void SharedGroup::reduce_round(SharedWork& w, int64_t k) {
  const Collective& c = w.c;
  const int64_t item = item_size(c.dtype), from = k * per_round(w);
  const Share own = share_of(std::min(per_round(w), c.count - from), rank(), size(), item);
  std::vector<const void*> sources;
  for (int p = 0; p < size(); ++p) {
    sources.push_back(p == rank() ? c.in.data + (from + own.begin) * item
                                  : slot(p, k) + own.begin * item);
  }
  std::vector<void*> outputs{slot(rank(), k) + own.begin * item};
  if (c.out.defined()) outputs.push_back(c.out.data + (from + own.begin) * item);
  reduce_tree(reduced_as(c.dtype), c.op, sources, outputs, own.end - own.begin);
}

void SharedGroup::read_round(SharedWork& w, int64_t k) {
  const Collective& c = w.c;
  if (!c.out.defined()) return;
  const int n = size(), me = rank();
  const int64_t item = item_size(c.dtype), each = per_round(w), from = k * each;
  std::byte* out = c.out.data;
  const auto get = [&](int64_t at, const std::byte* source, int64_t count) {
    if (count > 0 && out + at * item != source)
      std::memmove(out + at * item, source, static_cast<size_t>(count * item));
  };
  // Elements of a part of `whole` that this round moves.
  const auto now = [&](int64_t whole) { return std::clamp<int64_t>(whole - from, 0, each); };
  // The members' parts, one behind the other.
  const auto get_parts = [&](const auto& source_of) {
    int64_t start = 0;
    for (int p = 0; p < n; ++p) {
      const int64_t whole = c.receive[static_cast<size_t>(p)];
      if (now(whole) > 0) get(start + from, source_of(p), now(whole));
      start += whole;
    }
  };
  // What member p has for this rank.
  const auto part_from = [&](int p) -> const std::byte* {
    return p == me ? c.in.data + (offset_of(c.send, me) + from) * item
                   : slot(p, k) + me * each * item;
  };
  switch (c.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      for (int p = 0; p < n; ++p) {
        const Share theirs = share_of(now(c.count), p, n, item);
        if (p != me)
          get(from + theirs.begin, slot(p, k) + theirs.begin * item, theirs.end - theirs.begin);
      }
      break;
    case Kind::broadcast: get(from, slot(c.root, k), now(c.count)); break;
    case Kind::all_gather:
    case Kind::gather:
      get_parts([&](int p) { return p == me ? c.in.data + from * item : slot(p, k); });
      break;
    case Kind::reduce_scatter: {
      const int64_t count = now(c.send[static_cast<size_t>(me)]);
      if (count == 0) break;
      std::vector<const void*> sources;
      for (int p = 0; p < n; ++p) sources.push_back(part_from(p));
      void* const output = out + from * item;
      reduce_tree(reduced_as(c.dtype), c.op, sources, {&output, 1}, count);
      break;
    }
    case Kind::all_to_all: get_parts(part_from); break;
    case Kind::scatter: {
      const int64_t count = now(c.send[static_cast<size_t>(me)]);
      if (count > 0) get(from, part_from(c.root), count);
      break;
    }
    default: break;
  }
}

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Masks as kernels read them, on CPU and CUDA: whether one query sees one key, and how much a block
// of queries sees of a block of keys.
#pragma once

#include "tessera/kernels/mask/block_map.h"

#include <cstdint>
#include <limits>

namespace tessera::op {

/// Of q and k, and of v, on a device.
inline constexpr int kMostHeadSize = 256;

/// The optional inputs that say which keys are seen, in their order.
struct MaskOperands {
  Tensor query_positions, key_positions, query_documents, key_documents, blocks, bits;

  MaskOperands(Tensors in, size_t first) {
    for (Tensor* x :
         {&query_positions, &key_positions, &query_documents, &key_documents, &blocks, &bits}) {
      if (first < in.size()) *x = in[first];
      ++first;
    }
  }
};

/// Its values, on whichever device they lie.
template <class T> const T* pointer_to(const Tensor& x) {
  return x.device().is_cpu() ? x.data<T>() : x.device_data<T>();
}

/// Positions or document ids: start, start + 1 ... where no tensor holds them. Plain data.
struct Ids {
  const int64_t* data = nullptr;
  int64_t batch = 0, step = 0, start = 0;

  Ids(const Tensor& x, int64_t first) : start(first) {
    if (!x.defined()) return;
    const bool batched = x.rank() == 2;
    data = pointer_to<int64_t>(x);
    batch = batched ? x.strides()[0] : 0;
    step = x.strides()[batched ? 1 : 0];
  }
  [[nodiscard]] TESSERA_HD int64_t at(int64_t b, int64_t i) const {
    return data ? data[b * batch + i * step] : start + i;
  }
};

/// One query or key.
struct Token {
  int64_t position, document;
};
/// What some queries, or keys, lie between; the last included.
struct Extent {
  Token first{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
  Token last{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::min()};
  TESSERA_HD void add(const Token& t) {
    if (t.position < first.position) first.position = t.position;
    if (t.position > last.position) last.position = t.position;
    if (t.document < first.document) first.document = t.document;
    if (t.document > last.document) last.document = t.document;
  }
};

TESSERA_HD int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// What one condition lets a query see: keys whose position, or document id, is `first` or one of
/// the `more` numbers behind it. Modulo 2^64, so that no position is out of range.
struct SeenNumbers {
  uint64_t first, more;
  [[nodiscard]] TESSERA_HD bool has(int64_t number) const {
    return static_cast<uint64_t>(number) - first <= more;
  }
};
/// `query`: its document id for Kind::document, its position for the others.
TESSERA_HD SeenNumbers seen_numbers(AttentionMask::Kind kind, int64_t n, int64_t query) {
  using Kind = AttentionMask::Kind;
  const auto q = static_cast<uint64_t>(query), size = static_cast<uint64_t>(n);
  const auto up_to = [](uint64_t last) -> SeenNumbers {
    constexpr auto kFirst = static_cast<uint64_t>(std::numeric_limits<int64_t>::min());
    return {kFirst, last - kFirst};
  };
  switch (kind) {
    case Kind::causal: return up_to(q);
    case Kind::document: return {q, 0};
    case Kind::window: return {q - (size - 1), 2 * (size - 1)};
    case Kind::chunk: return {static_cast<uint64_t>(floor_div(query, n)) * size, size - 1};
    default: return up_to(size - 1);
  }
}

/// Whether a query sees a key.
TESSERA_HD bool sees(AttentionMask::Kind kind, int64_t n, const Token& q, const Token& k) {
  const bool documents = kind == AttentionMask::Kind::document;
  return seen_numbers(kind, n, documents ? q.document : q.position)
      .has(documents ? k.document : k.position);
}
TESSERA_HD bool sees(const AttentionMask& mask, const Token& q, const Token& k) {
  return mask.evaluate(true,
                       [&](AttentionMask::Kind kind, int64_t n) { return sees(kind, n, q, k); });
}

/// How much of a block is seen; & and | of these numbers are those of masks. `some` may be none.
enum Part : int { kNone = 0, kSome = 1, kAll = 3 };

TESSERA_HD int part_seen(AttentionMask::Kind kind, int64_t n, const Extent& q, const Extent& k) {
  using Kind = AttentionMask::Kind;
  const auto part = [](bool all, bool none) -> int { return all ? kAll : none ? kNone : kSome; };
  const Token &q0 = q.first, &q1 = q.last, &k0 = k.first, &k1 = k.last;
  switch (kind) {
    case Kind::causal: return part(k1.position <= q0.position, k0.position > q1.position);
    case Kind::document:
      return part(
          q0.document == q1.document && k0.document == k1.document && q0.document == k0.document,
          q1.document < k0.document || k1.document < q0.document);
    case Kind::window:
      return part(q1.position - k0.position < n && k1.position - q0.position < n,
                  q0.position - k1.position >= n || k0.position - q1.position >= n);
    case Kind::chunk: {
      const int64_t qa = floor_div(q0.position, n), qb = floor_div(q1.position, n),
                    ka = floor_div(k0.position, n), kb = floor_div(k1.position, n);
      return part(qa == qb && ka == kb && qa == ka, qb < ka || kb < qa);
    }
    default: return part(k1.position < n, k0.position >= n);
  }
}
TESSERA_HD int part_seen(const AttentionMask& mask, const Extent& q, const Extent& k) {
  return mask.evaluate(static_cast<int>(kAll), [&](AttentionMask::Kind kind, int64_t n) {
    return part_seen(kind, n, q, k);
  });
}

}  // namespace tessera::op

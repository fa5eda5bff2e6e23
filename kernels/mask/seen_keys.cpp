// SPDX-License-Identifier: Apache-2.0
// Ranges are tried first. A batch whose keys or documents are out of order, or a mask that leaves a
// gap for one query, turns all of the call to lists of blocks.
#include "tessera/kernels/mask/seen_keys_impl.h"

namespace tessera::op::attention {
namespace {

// The keys of a document, where ids do not fall from one key to the next.
KeyRange keys_of(const Ids& documents, int64_t batch, int64_t keys, int64_t id) {
  const auto first_above = [&](int64_t from, auto&& above) {
    int64_t low = from, high = keys;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (above(documents.at(batch, middle))) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  const int64_t first = first_above(0, [&](int64_t x) { return x >= id; });
  return {first, first_above(first, [&](int64_t x) { return x > id; }) - 1};
}

// The extents of each block of `n` queries or keys.
std::vector<Extent> extents(const Ids& positions, const Ids& documents, int64_t batch, int64_t n) {
  std::vector<Extent> all(static_cast<size_t>((n + kBlock - 1) / kBlock));
  for (int64_t i = 0; i < n; ++i)
    all[static_cast<size_t>(i / kBlock)].add({positions.at(batch, i), documents.at(batch, i)});
  return all;
}

}  // namespace

SeenKeys::SeenKeys(std::string_view name, const AttentionMask& mask, const MaskSizes& sizes,
                   const MaskOperands& x, int64_t query_start, int64_t key_start)
    : mask_(mask),
      sizes_(sizes),
      query_positions_(x.query_positions, query_start),
      key_positions_(x.key_positions, key_start),
      query_documents_(x.query_documents, 0),
      key_documents_(x.key_documents, 0),
      map_(x.blocks),
      bits_(x.bits) {
  for (const Tensor* t :
       {&x.query_positions, &x.key_positions, &x.query_documents, &x.key_documents}) {
    if (t->defined() && t->rank() == 2) lists_ = sizes.batches;
  }
  if (map_.defined() && map_.shape()[0] != 1) lists_ = sizes.batches;
  ranged_ = !map_.defined() && find_ranges();
  if (!ranged_) find_blocks(name);
}

bool SeenKeys::find_ranges() {
  const bool documents = mask_.has(AttentionMask::Kind::document);
  ranges_.reserve(static_cast<size_t>(lists_ * sizes_.queries));
  for (int64_t b = 0; b < lists_; ++b) {
    const int64_t start = sizes_.keys > 0 ? key_positions_.at(b, 0) : 0;
    bool in_order = true;
    for (int64_t j = 1; key_positions_.data && j < sizes_.keys; ++j)
      in_order = in_order && key_positions_.at(b, j) == start + j;
    for (int64_t j = 1; documents && j < sizes_.keys; ++j)
      in_order = in_order && key_documents_.at(b, j) >= key_documents_.at(b, j - 1);
    KeyRange document{0, -1};
    for (int64_t i = 0; in_order && i < sizes_.queries; ++i) {
      if (documents) {
        const int64_t id = query_documents_.at(b, i);
        if (i == 0 || id != query_documents_.at(b, i - 1))
          document = keys_of(key_documents_, b, sizes_.keys, id);
        starts_.push_back(document.first);
      }
      const OneRange seen =
          range_seen(mask_, query_positions_.at(b, i), sizes_.keys, start, document);
      in_order = seen.one;
      ranges_.push_back(seen.range);
    }
    if (in_order) continue;
    ranges_.clear();
    starts_.clear();
    return false;
  }
  return true;
}

void SeenKeys::find_blocks(std::string_view name) {
  ends_.push_back(0);
  const int64_t most = BlockMap::kBits + (bits_.defined() ? bits_.shape()[0] : 0);
  for (int64_t b = 0; b < lists_; ++b) {
    const auto queries = extents(query_positions_, query_documents_, b, sizes_.queries),
               keys = extents(key_positions_, key_documents_, b, sizes_.keys);
    for (size_t i = 0; i < queries.size(); ++i) {
      for (size_t j = 0; j < keys.size(); ++j) {
        int32_t value = BlockMap::kPartial;
        if (map_.defined()) {
          const Shape& step = map_.strides();
          const int64_t row = map_.shape()[0] > 1 ? b : 0;
          value = map_.data<int32_t>()[row * step[0] + static_cast<int64_t>(i) * step[1] +
                                       static_cast<int64_t>(j) * step[2]];
          if (value < 0 || value >= most) {
            fail<ValueError>(name, "blocks[", row, "][", i, "][", j, "] of ", map_.meta(), " is ",
                             value, ": expected 0 to ", most - 1, ", as there are ",
                             most - BlockMap::kBits, " blocks of bits");
          }
        }
        int32_t bits = value >= BlockMap::kBits ? value - BlockMap::kBits : SeenBlock::kWhole;
        if (value == BlockMap::kPartial) {
          const int part = part_seen(mask_, queries[i], keys[j]);
          if (part == kNone) continue;
          if (part == kSome) bits = SeenBlock::kByMask;
        }
        if (value != BlockMap::kEmpty) blocks_.push_back({static_cast<int32_t>(j), bits});
      }
      ends_.push_back(blocks_.size());
    }
  }
}

void SeenKeys::words(int64_t batch, int64_t row, int64_t rows, const SeenBlock& block,
                     uint64_t* words) const {
  if (block.bits >= 0) {
    const int64_t *from = bits_.data<int64_t>() + block.bits * bits_.strides()[0],
                  step = bits_.strides()[1];
    for (int64_t i = 0; i < rows; ++i)
      words[i] = static_cast<uint64_t>(from[(row % kBlock + i) * step]);
    return;
  }
  const int64_t first = block.block * kBlock, keys = std::min(kBlock, sizes_.keys - first);
  std::array<Token, kBlock> k;
  for (int64_t j = 0; j < keys; ++j)
    k[static_cast<size_t>(j)] = {key_positions_.at(batch, first + j),
                                 key_documents_.at(batch, first + j)};
  for (int64_t i = 0; i < rows; ++i) {
    const Token q{query_positions_.at(batch, row + i), query_documents_.at(batch, row + i)};
    words[i] = mask_.evaluate(~uint64_t{0}, [&](AttentionMask::Kind kind, int64_t n) {
      uint64_t word = 0;
      for (int64_t j = 0; j < keys; ++j)
        word |= static_cast<uint64_t>(sees(kind, n, q, k[static_cast<size_t>(j)])) << j;
      return word;
    });
  }
}

}  // namespace tessera::op::attention

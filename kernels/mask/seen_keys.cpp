// SPDX-License-Identifier: Apache-2.0
// Ranges are tried first. A batch whose keys or documents are out of order, or a mask that leaves a
// gap for one query, turns all of the call to lists of blocks.
#include "tessera/core/message.h"
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

// The extents of each block of a batch.
std::vector<Extent> extents(const TokenBlocks& tokens, int64_t batch) {
  std::vector<Extent> all;
  for (int64_t i = 0; i < tokens.n; i += kBlock) all.push_back(tokens.find_extent(batch, i));
  return all;
}

}  // namespace

void SeenKeys::find(std::string_view name, const MaskOperands& x) {
  for (const Tensor* t :
       {&x.query_positions, &x.key_positions, &x.query_documents, &x.key_documents}) {
    if (t->defined() && t->rank() == 2) lists_ = sizes_.batches;
  }
  if (x.blocks.defined() && x.blocks.shape()[0] != 1) lists_ = sizes_.batches;
  ranged_ = !x.blocks.defined() && find_ranges();
  if (!ranged_) find_blocks(name, x.blocks);
}

bool SeenKeys::find_ranges() {
  const bool documents = view_.mask.has(AttentionMask::Kind::document);
  ranges_.reserve(static_cast<size_t>(lists_ * sizes_.queries));
  for (int64_t b = 0; b < lists_; ++b) {
    const int64_t start = sizes_.keys > 0 ? view_.key.positions.at(b, 0) : 0;
    bool in_order = true;
    for (int64_t j = 1; view_.key.positions.data && j < sizes_.keys; ++j)
      in_order = in_order && view_.key.positions.at(b, j) == start + j;
    for (int64_t j = 1; documents && j < sizes_.keys; ++j)
      in_order = in_order && view_.key.documents.at(b, j) >= view_.key.documents.at(b, j - 1);
    KeyRange document{0, -1};
    for (int64_t i = 0; in_order && i < sizes_.queries; ++i) {
      if (documents) {
        const int64_t id = view_.query.documents.at(b, i);
        if (i == 0 || id != view_.query.documents.at(b, i - 1))
          document = keys_of(view_.key.documents, b, sizes_.keys, id);
        starts_.push_back(document.first);
      }
      const OneRange seen =
          range_seen(view_.mask, view_.query.positions.at(b, i), sizes_.keys, start, document);
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

void SeenKeys::find_blocks(std::string_view name, const Tensor& map) {
  ends_.push_back(0);
  for (int64_t b = 0; b < lists_; ++b) {
    const std::vector<Extent> queries = extents(view_.query, b), keys = extents(view_.key, b);
    MaskView view = view_;
    view.query.extents = queries.data();
    view.key.extents = keys.data();
    for (int64_t i = 0; i < sizes_.queries; i += kBlock) {
      for (int64_t j = 0; j < sizes_.keys; j += kBlock) {
        const BlockSeen seen = view.block(b, i, j);
        if (seen.by == BlockSeen::kBroken) {
          fail<ValueError>(name, "blocks[", view.block_step[0] ? b : 0, "][", i / kBlock, "][",
                           j / kBlock, "] of ", map.meta(), " is ", view.map_entry(b, i, j),
                           ": expected 0 to ", BlockMap::kBits + view.bit_blocks - 1,
                           ", as there are ", counted(view.bit_blocks, "block"), " of bits");
        }
        if (seen.by != BlockSeen::kNothing)
          blocks_.push_back({static_cast<int32_t>(j / kBlock), seen});
      }
      ends_.push_back(blocks_.size());
    }
  }
}

void SeenKeys::words(int64_t batch, int64_t row, int64_t rows, const SeenBlock& block,
                     uint64_t* words) const {
  if (block.seen.by >= 0) {
    for (int64_t i = 0; i < rows; ++i) words[i] = view_.word(block.seen, row + i);
    return;
  }
  const int64_t first = block.block * kBlock, keys = std::min(kBlock, sizes_.keys - first);
  for (int64_t i = 0; i < rows; ++i) {
    words[i] = view_.mask.evaluate(~uint64_t{0}, [&](AttentionMask::Kind kind, int64_t n) {
      const SeenNumbers seen = seen_numbers(kind, n, view_.query.ids(kind).at(batch, row + i));
      const Ids& numbers = view_.key.ids(kind);
      uint64_t word = 0;
      for (int64_t j = 0; j < keys; ++j)
        word |= static_cast<uint64_t>(seen.has(numbers.at(batch, first + j))) << j;
      return word;
    });
  }
}

}  // namespace tessera::op::attention

// SPDX-License-Identifier: Apache-2.0
// Asks the predicate once for each pair, a row of blocks by one thread, and keeps bits where a
// block is neither empty nor full. A selected map is made block by block from the blocks of the
// whole map that it touches, so that most are settled without bits, and the others' bits are copied
// in runs.
#include "tessera/kernels/mask/block_map.h"

#include "tessera/core/message.h"
#include "tessera/kernels/mask/mask_impl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace tessera {
namespace {

constexpr int64_t kBlock = kAttentionBlock;

int64_t blocks_of(int64_t n) { return (n + kBlock - 1) / kBlock; }

void check(const BlockMapSizes& z) {
  const auto of = [&](const Tensor& x, const char* name, int64_t n) {
    if (!x.defined()) return;
    if (x.dtype() != DType::i64)
      fail<DTypeError>("block_map", name, " must be i64: given ", x.meta(), "; cast them");
    if (!x.device().is_cpu())
      fail<DeviceError>("block_map", name, " must lie on the CPU: given ", x.meta());
    if (x.shape() != Shape{n} && x.shape() != Shape{z.batches, n}) {
      fail<ShapeError>("block_map", name, " must be ", Shape{n}, " or ", Shape{z.batches, n},
                       ": given ", x.meta());
    }
  };
  of(z.query_positions, "query_positions", z.queries);
  of(z.key_positions, "key_positions", z.keys);
}

// Places that follow each other within a block, and come from one block of the whole map.
struct Run {
  int64_t source, from;  // that block, and the first of them in it
  int64_t to, count;
};

// Places of one row of queries or keys, in blocks.
class Places {
 public:
  Places(const Tensor& places, int64_t row) : ids_(places, 0), row_(row), n_(places.size(-1)) {
    for (int64_t block = 0; block < blocks(); ++block) {
      std::set<int64_t> from;
      std::vector<Run> runs;
      for (int64_t i = 0; i < count(block); ++i) {
        const int64_t source = at(block, i) / kBlock, in_source = at(block, i) % kBlock;
        from.insert(source);
        const bool follows = !runs.empty() && runs.back().source == source &&
                             runs.back().from + runs.back().count == in_source;
        if (follows) ++runs.back().count;
        else runs.push_back({source, in_source, i, 1});
      }
      sources_.emplace_back(from.begin(), from.end());
      runs_.push_back(std::move(runs));
    }
  }

  [[nodiscard]] int64_t blocks() const { return blocks_of(n_); }
  [[nodiscard]] int64_t count(int64_t block) const { return std::min(kBlock, n_ - block * kBlock); }
  [[nodiscard]] int64_t at(int64_t block, int64_t i) const {
    return ids_.at(row_, block * kBlock + i);
  }
  // The blocks of the whole map in which a block's places lie.
  [[nodiscard]] const std::vector<int64_t>& sources(int64_t block) const {
    return sources_[static_cast<size_t>(block)];
  }
  [[nodiscard]] const std::vector<Run>& runs(int64_t block) const {
    return runs_[static_cast<size_t>(block)];
  }
  // Whether a block is one of the whole map's `all` places, in its order.
  [[nodiscard]] bool is_whole(int64_t block, int64_t all) const {
    const Run& first = runs(block)[0];
    return runs(block).size() == 1 && first.from == 0 &&
           first.count == std::min(kBlock, all - first.source * kBlock);
  }

 private:
  op::Ids ids_;
  int64_t row_, n_;
  std::vector<std::vector<int64_t>> sources_;  // of each block, in order
  std::vector<std::vector<Run>> runs_;
};

void check_places(const Tensor& x, std::string_view name, int64_t blocks) {
  if (x.dtype() != DType::i64)
    fail<DTypeError>("block_map", name, " must be i64: given ", x.meta(), "; cast them");
  if (!x.device().is_cpu())
    fail<DeviceError>("block_map", name, " must lie on the CPU: given ", x.meta());
  if (x.rank() != 1 && x.rank() != 2)
    fail<ShapeError>("block_map", name, " must be (N) or (B, N): given ", x.meta());
  for (int64_t b = 0; b < (x.rank() == 2 ? x.size(0) : 1); ++b) {
    const op::Ids places(x, 0);
    for (int64_t i = 0; i < x.size(-1); ++i) {
      const int64_t place = places.at(b, i);
      if (place >= 0 && place < blocks * kBlock) continue;
      fail<IndexError>("block_map", name, '[', i, "] of row ", b, " is ", place,
                       ": expected 0 or more, and less than the ", blocks * kBlock,
                       " that the map has blocks for");
    }
  }
}

// Makes the blocks of a selected map one after the other.
class Selection {
 public:
  explicit Selection(const BlockMap& map) : map_(map) {}

  int32_t block(int64_t batch, const Places& queries, int64_t i, const Places& keys, int64_t j) {
    bool empty = true, full = true, by_mask = true;
    const auto &rows = queries.sources(i), &columns = keys.sources(j);
    for (const int64_t row : rows) {
      for (const int64_t column : columns) {
        const int32_t value = at(batch, row, column);
        empty = empty && value == BlockMap::kEmpty;
        full = full && value == BlockMap::kFull;
        by_mask = by_mask && value == BlockMap::kPartial;
      }
    }
    if (empty) return BlockMap::kEmpty;
    if (full) return BlockMap::kFull;
    if (by_mask) return BlockMap::kPartial;
    if (queries.is_whole(i, map_.blocks.size(1) * kBlock) &&
        keys.is_whole(j, map_.blocks.size(2) * kBlock)) {
      return kept(at(batch, rows[0], columns[0]));
    }
    std::array<uint64_t, kBlock> words{};
    int64_t seen = 0;
    for (int64_t r = 0; r < queries.count(i); ++r) {
      uint64_t& word = words[static_cast<size_t>(r)];
      for (const Run& run : keys.runs(j))
        word |= (seen_word(batch, queries.at(i, r), run) >> run.from & low_bits(run.count))
                << run.to;
      seen += std::popcount(word);
    }
    if (seen == 0) return BlockMap::kEmpty;
    if (seen == queries.count(i) * keys.count(j)) return BlockMap::kFull;
    return added(words.data());
  }
  [[nodiscard]] Tensor bits() const {
    if (bits_.empty()) return {};
    const Tensor all = empty({static_cast<int64_t>(bits_.size()) / kBlock, kBlock}, DType::i64);
    std::ranges::copy(bits_, all.data<int64_t>());
    return all;
  }

 private:
  [[nodiscard]] int32_t at(int64_t batch, int64_t row, int64_t column) const {
    const Tensor& x = map_.blocks;
    return x.data<int32_t>()[(x.size(0) > 1 ? batch : 0) * x.strides()[0] + row * x.strides()[1] +
                             column * x.strides()[2]];
  }
  [[nodiscard]] int64_t word(int64_t block, int64_t row) const {
    return map_.bits.data<int64_t>()[block * map_.bits.strides()[0] + row * map_.bits.strides()[1]];
  }
  static uint64_t low_bits(int64_t n) { return ~uint64_t{0} >> (kBlock - n); }
  // What a query sees of the block of the whole map that these keys come from.
  [[nodiscard]] uint64_t seen_word(int64_t batch, int64_t query, const Run& keys) const {
    const int32_t value = at(batch, query / kBlock, keys.source);
    if (value == BlockMap::kPartial) {
      fail<ValueError>("block_map", "query ", query, " and key ", keys.source * kBlock + keys.from,
                       " lie in a block that the mask decides, and move into one with others that "
                       "the map decides: give bits for all of them, as make_block_map does");
    }
    if (value < BlockMap::kBits) return value == BlockMap::kFull ? ~uint64_t{0} : 0;
    return static_cast<uint64_t>(word(value - BlockMap::kBits, query % kBlock));
  }
  // A block of the whole map with its bits.
  int32_t kept(int32_t value) {
    const auto [at, fresh] = moved_.try_emplace(value, 0);
    if (!fresh) return at->second;
    std::array<uint64_t, kBlock> words;
    for (int64_t r = 0; r < kBlock; ++r)
      words[static_cast<size_t>(r)] = static_cast<uint64_t>(word(value - BlockMap::kBits, r));
    return at->second = added(words.data());
  }
  int32_t added(const uint64_t* words) {
    const auto number = static_cast<int32_t>(bits_.size() / static_cast<size_t>(kBlock));
    for (int64_t r = 0; r < kBlock; ++r) bits_.push_back(static_cast<int64_t>(words[r]));
    return BlockMap::kBits + number;
  }

  const BlockMap& map_;
  std::map<int32_t, int32_t> moved_;
  std::vector<int64_t> bits_;
};

// Of up to 64 queries or keys that follow each other.
struct Positions {
  std::array<int64_t, kBlock> values;
  size_t count;
  Positions(const op::Ids& ids, int64_t batch, int64_t first, int64_t end)
      : count(static_cast<size_t>(std::min(kBlock, end - first))) {
    for (size_t i = 0; i < count; ++i) values[i] = ids.at(batch, first + static_cast<int64_t>(i));
  }
  [[nodiscard]] std::span<const int64_t> all() const { return {values.data(), count}; }
};

// What 64 queries see of all keys. Made by one thread, which numbers the bits from 0.
struct BlockRow {
  std::vector<uint64_t> bits;
  std::exception_ptr error;

  int32_t add(int64_t batch, const Positions& queries, const Positions& keys,
              const detail::SeenOfBlock& seen) {
    std::array<uint64_t, kBlock> words{};
    seen(batch, queries.all(), keys.all(), std::span(words).first(queries.count));
    size_t pairs = 0;
    for (const uint64_t word : words) pairs += static_cast<size_t>(std::popcount(word));
    if (pairs == 0) return BlockMap::kEmpty;
    if (pairs == queries.count * keys.count) return BlockMap::kFull;
    bits.insert(bits.end(), words.begin(), words.end());
    return BlockMap::kBits + static_cast<int32_t>(bits.size() / words.size()) - 1;
  }
};

// The bits of all rows, whose blocks then have the numbers of the whole.
Tensor joined(const std::vector<BlockRow>& rows, std::span<int32_t> blocks) {
  size_t words = 0;
  for (const BlockRow& row : rows) {
    if (row.error) std::rethrow_exception(row.error);
    words += row.bits.size();
  }
  if (words == 0) return {};
  const Tensor all = empty({static_cast<int64_t>(words) / kBlock, kBlock}, DType::i64);
  auto* to = all.data<int64_t>();
  int32_t before = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto& bits = rows[r].bits;
    to = std::ranges::copy(bits, to).out;
    const size_t columns = blocks.size() / rows.size();
    for (int32_t& value : blocks.subspan(r * columns, columns))
      if (value >= BlockMap::kBits) value += before;
    before += static_cast<int32_t>(bits.size() / static_cast<size_t>(kBlock));
  }
  return all;
}

}  // namespace

BlockMap detail::make_block_map(const BlockMapSizes& z, const SeenOfBlock& seen) {
  check(z);
  const op::Ids queries(z.query_positions, z.query_start), keys(z.key_positions, z.key_start);
  const Shape shape{z.batches, blocks_of(z.queries), blocks_of(z.keys)};
  const Tensor blocks = empty(shape, DType::i32);
  auto* const values = blocks.data<int32_t>();
  std::vector<BlockRow> rows(static_cast<size_t>(shape[0] * shape[1]));
  parallel_for(shape[0] * shape[1], 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t batch = r / shape[1], first = r % shape[1] * kBlock;
      const Positions of_queries(queries, batch, first, z.queries);
      BlockRow& row = rows[static_cast<size_t>(r)];
      try {
        for (int64_t j = 0; j < shape[2]; ++j)
          values[r * shape[2] + j] =
              row.add(batch, of_queries, {keys, batch, j * kBlock, z.keys}, seen);
      } catch (...) {
        row.error = std::current_exception();
      }
    }
  });
  return {blocks, joined(rows, {values, static_cast<size_t>(shape.numel())})};
}

BlockMap select_block_map(const BlockMap& map, const Tensor& queries, const Tensor& keys) {
  if (map.blocks.rank() != 3 || map.blocks.dtype() != DType::i32 || !map.blocks.device().is_cpu()) {
    fail<ShapeError>("block_map", "blocks must be (B or 1, T / 64, S / 64) i32 on the CPU: given ",
                     map.blocks.meta());
  }
  check_places(queries, "queries", map.blocks.size(1));
  check_places(keys, "keys", map.blocks.size(2));
  int64_t batches = map.blocks.size(0);
  for (const Tensor* x : {&queries, &keys}) {
    if (x->rank() == 1 || x->size(0) == batches) continue;
    if (batches > 1) {
      fail<ShapeError>("block_map", "places ", x->meta(), " do not fit the ",
                       counted(batches, "batch"), " of ", map.blocks.meta());
    }
    batches = x->size(0);
  }
  const Tensor blocks =
      empty({batches, blocks_of(queries.size(-1)), blocks_of(keys.size(-1))}, DType::i32);
  auto* to = blocks.data<int32_t>();
  Selection selection(map);
  for (int64_t b = 0; b < batches; ++b) {
    const Places rows(queries, b), columns(keys, b);
    for (int64_t i = 0; i < rows.blocks(); ++i) {
      for (int64_t j = 0; j < columns.blocks(); ++j)
        *to++ = selection.block(b, rows, i, columns, j);
    }
  }
  return {blocks, selection.bits()};
}

}  // namespace tessera

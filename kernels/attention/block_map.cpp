// SPDX-License-Identifier: Apache-2.0
// Asks the predicate once for each pair, and keeps bits where a block is neither empty nor full.
#include "tessera/kernels/attention/block_map.h"

#include "tessera/core/error.h"
#include "tessera/kernels/attention/mask_impl.h"

#include <algorithm>
#include <array>
#include <vector>

namespace tessera {
namespace {

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

}  // namespace

BlockMap make_block_map(const BlockMapSizes& z, const AttentionPredicate& sees) {
  check(z);
  const op::Ids queries(z.query_positions, z.query_start), keys(z.key_positions, z.key_start);
  constexpr int64_t kBlock = kAttentionBlock;
  const Shape shape{z.batches, (z.queries + kBlock - 1) / kBlock, (z.keys + kBlock - 1) / kBlock};
  const Tensor blocks = empty(shape, DType::i32);
  auto* at = blocks.data<int32_t>();
  std::vector<uint64_t> bits;
  for (int64_t b = 0; b < z.batches; ++b) {
    for (int64_t q = 0; q < z.queries; q += kBlock) {
      const int64_t rows = std::min(kBlock, z.queries - q);
      for (int64_t k = 0; k < z.keys; k += kBlock, ++at) {
        const int64_t columns = std::min(kBlock, z.keys - k);
        std::array<uint64_t, kBlock> words{};
        int64_t seen = 0;
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t position = queries.at(b, q + i);
          for (int64_t j = 0; j < columns; ++j) {
            if (!sees(b, position, keys.at(b, k + j))) continue;
            words[static_cast<size_t>(i)] |= uint64_t{1} << j;
            ++seen;
          }
        }
        *at = seen == 0 ? BlockMap::kEmpty : BlockMap::kFull;
        if (seen == 0 || seen == rows * columns) continue;
        *at = BlockMap::kBits + static_cast<int32_t>(bits.size() / static_cast<size_t>(kBlock));
        bits.insert(bits.end(), words.begin(), words.end());
      }
    }
  }
  if (bits.empty()) return {blocks};
  const Tensor words = empty({static_cast<int64_t>(bits.size()) / kBlock, kBlock}, DType::i64);
  std::ranges::transform(bits, words.data<int64_t>(),
                         [](uint64_t w) { return static_cast<int64_t>(w); });
  return {blocks, words};
}

}  // namespace tessera

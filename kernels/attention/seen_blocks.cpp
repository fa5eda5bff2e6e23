// SPDX-License-Identifier: Apache-2.0
// Counts what SeenKeys found: where keys are ranges, the blocks from the first key to the last that
// a block of queries sees.
#include "tessera/kernels/attention/seen_blocks.h"

#include "tessera/kernels/mask/seen_keys_impl.h"

#include <algorithm>

namespace tessera {

Tensor count_seen_blocks(int64_t batches, int64_t queries, int64_t keys,
                         const AttentionOptions& o) {
  const op::Attention op{o.mask, true, 1, o.query_start.value_or(0), o.key_start};
  const TensorList masks{o.query_positions, o.key_positions,    o.query_documents,
                         o.key_documents,   o.block_map.blocks, o.block_map.bits};
  for (const Tensor& x : masks) {
    if (x.defined() && !x.device().is_cpu())
      fail<DeviceError>("seen_blocks", "operands must lie on the CPU: given ", x.meta());
  }
  // The op's own checks, of operands without values.
  TensorList in;
  for (const int64_t length : {queries, keys, keys})
    in.push_back(empty({batches, length, 1, 1}, DType::f32, kMeta));
  for (const Tensor& x : masks) in.push_back(x);
  (void)op.meta(MetaArray(Tensors(in.data(), in.size())));
  const op::attention::SeenKeys seen(op, {batches, queries, keys}, Tensors(in.data(), in.size()));
  const Tensor counts =
      empty({seen.lists(), (queries + kAttentionBlock - 1) / kAttentionBlock}, DType::i64);
  auto* to = counts.data<int64_t>();
  for (int64_t b = 0; b < seen.lists(); ++b) {
    for (int64_t row = 0; row < queries; row += kAttentionBlock) {
      if (!seen.in_ranges()) {
        *to++ = static_cast<int64_t>(seen.blocks(b, row).size());
        continue;
      }
      int64_t first = keys, last = -1;
      for (int64_t i = row; i < std::min(row + kAttentionBlock, queries); ++i) {
        const op::attention::KeyRange& range = seen.ranges(b)[i];
        if (range.empty()) continue;
        first = std::min(first, range.first);
        last = std::max(last, range.last);
      }
      *to++ = last < first ? 0 : last / kAttentionBlock - first / kAttentionBlock + 1;
    }
  }
  return counts;
}

}  // namespace tessera

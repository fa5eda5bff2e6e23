// SPDX-License-Identifier: Apache-2.0
// What lies in each block of queries and of keys, found on the device: once for a call.
#pragma once

#include "tessera/kernels/mask/mask_view_impl.h"
#include "tessera/kernels/shared/launch.cuh"

#include <array>

namespace tessera::op {

/// (lists, blocks) extents.
static __global__ void find_extents(TokenBlocks tokens, Extent* extents, int64_t blocks,
                                    int64_t lists) {
  for (int64_t i = first_item(); i < lists * blocks; i += item_step()) {
    extents[i] = tokens.find_extent(i / blocks, i % blocks * tokens.rows);
  }
}

/// Cuts tokens into blocks of `rows`. The tensor holds their extents and must live as long.
inline Tensor cut_into_blocks(TokenBlocks& tokens, int64_t rows, const Tensor& positions,
                              const Tensor& documents, Stream stream) {
  tokens.rows = rows;
  if ((!positions.defined() && !documents.defined()) || tokens.n == 0) return {};
  const auto batched = [](const Tensor& x) { return x.defined() && x.rank() == 2; };
  const bool each = batched(positions) || batched(documents);
  const int64_t blocks = ceil_div(tokens.n, rows),
                lists = each ? (batched(positions) ? positions : documents).shape()[0] : 1;
  constexpr int64_t kWords = sizeof(Extent) / sizeof(int64_t);
  const Tensor kept = empty({lists * blocks * kWords}, DType::i64,
                            (positions.defined() ? positions : documents).device());
  auto* to = reinterpret_cast<Extent*>(kept.device_data<int64_t>());
  if (lists > 0)
    launch(find_extents, blocks_for(lists * blocks), kThreads, 0, stream, tokens, to, blocks,
           lists);
  tokens.extents = to;
  tokens.step = each ? blocks : 0;
  return kept;
}
/// Cuts queries and keys into blocks of `rows`; the tensors must live as long as the view.
inline std::array<Tensor, 2> cut_into_blocks(MaskView& view, int64_t rows, const MaskOperands& x,
                                             Stream stream) {
  return {cut_into_blocks(view.query, rows, x.query_positions, x.query_documents, stream),
          cut_into_blocks(view.key, rows, x.key_positions, x.key_documents, stream)};
}

}  // namespace tessera::op

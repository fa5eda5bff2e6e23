// SPDX-License-Identifier: Apache-2.0
// Kernels over lists of tensors: their pointers travel in the kernel's arguments, and a block takes
// one chunk of one tensor, so that a hundred small tensors cost a few launches. Chunks depend on
// the sizes alone.
#pragma once

#include "tessera/kernels/shared/launch.cuh"

#include <array>
#include <vector>

namespace tessera {

inline constexpr int64_t kListChunkOnDevice = 8192;  // elements per block

/// Up to kMost tensors of each of P lists.
template <int P> struct ListBatch {
  static constexpr int kMost = 48;
  void* pointers[kMost][P];
  int64_t sizes[kMost];
  int first[kMost + 1];  // the first block of each tensor, then their number
  int count = 0;

  struct Place {
    int tensor;
    int64_t begin, end;
  };
  /// The elements that this block takes.
  __device__ Place place() const {
    int tensor = 0;
    while (static_cast<int>(blockIdx.x) >= first[tensor + 1]) ++tensor;
    const int64_t begin = (static_cast<int>(blockIdx.x) - first[tensor]) * kListChunkOnDevice;
    return {tensor, begin, min(sizes[tensor], begin + kListChunkOnDevice)};
  }
};

/// One entry of the lists: row-major tensors of one size.
template <int P> using ListEntry = std::array<Tensor, P>;

/// Calls run(batch, blocks) over all entries of `dtype`, as many at a time as fit.
template <int P, class Run>
void for_each_batch(const std::vector<ListEntry<P>>& entries, DType dtype, Run&& run) {
  constexpr int64_t kMostBlocks = 1 << 20;
  ListBatch<P> batch;
  batch.first[0] = 0;
  const auto flush = [&] {
    if (batch.count > 0) run(batch, static_cast<unsigned>(batch.first[batch.count]));
    batch.count = 0;
  };
  for (const ListEntry<P>& entry : entries) {
    if (entry[0].dtype() != dtype || entry[0].numel() == 0) continue;
    if (batch.count == ListBatch<P>::kMost ||
        (batch.count > 0 && batch.first[batch.count] > kMostBlocks))
      flush();
    const int i = batch.count++;
    for (int p = 0; p < P; ++p)
      batch.pointers[i][p] = entry[static_cast<size_t>(p)].raw_device_data();
    batch.sizes[i] = entry[0].numel();
    batch.first[i + 1] =
        batch.first[i] + static_cast<int>(ceil_div(batch.sizes[i], kListChunkOnDevice));
  }
  flush();
}

/// Work on row-major copies of tensors that an op writes in place: `done` brings the strided ones
/// back.
class WrittenRows {
 public:
  explicit WrittenRows(Stream stream) : stream_(stream) {}
  Tensor add(const Tensor& x) {
    const Tensor rows = row_major(x, stream_);
    if (!x.is_contiguous()) strided_.push_back({rows, x});
    return rows;
  }
  void done() const {
    for (const auto& [rows, x] : strided_) copy_strided(rows, x, stream_);
  }

 private:
  Stream stream_;
  std::vector<std::array<Tensor, 2>> strided_;
};

}  // namespace tessera

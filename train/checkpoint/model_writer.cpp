// SPDX-License-Identifier: Apache-2.0
// All chunks of a tensor have names with the same beginning, and a safetensors file is written in
// the order of names, so a tensor's chunks are asked for one after the other.
#include "tessera/train/checkpoint/model_writer.h"

#include "tessera/nn/io/safetensors.h"
#include "tessera/train/checkpoint/plan.h"

namespace tessera::train {
namespace {

constexpr const char* kFile = "rank-00000.safetensors";

struct Chunk {
  size_t tensor;
  Box box;
};

}  // namespace

uint64_t write_model(const CheckpointFolder& folder, Manifest manifest, const Tokenizer* tokenizer,
                     const std::vector<ComingTensor>& tensors,
                     const std::function<Tensor(const std::string& name)>& read) {
  std::vector<Chunk> chunks;
  std::vector<io::TensorBytes> bytes;
  uint64_t needed = uint64_t{1} << 20;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, dtype, shape] = tensors[i];
    manifest.model[name] = {dtype, shape};
    needed += static_cast<uint64_t>(shape.numel() * item_size(dtype));
    if (shape.numel() == 0) continue;
    for (const Box& box : pieces_of(whole_box(shape), dtype, kChunkBytes)) {
      chunks.push_back({i, box});
      bytes.push_back({chunk_name(name, box), dtype, box.size});
    }
  }
  const std::string partial = folder.begin(manifest.progress.step);
  try {
    if (tokenizer) {
      manifest.tokenizer = entries_of(*tokenizer);
      for (const TokenizerEntry& file : *manifest.tokenizer) needed += file.sum.bytes;
    }
    io::require_space(partial, needed, "checkpoint");
    if (tokenizer) {
      for (const auto& [name, text] : tokenizer->files())
        io::write_file_atomically(io::below(partial, name), text);
    }
    Tensor one;
    size_t held = tensors.size();
    const auto sums =
        io::write_safetensors(io::below(partial, kFile), bytes, {}, [&](size_t c) -> const void* {
          const auto& [name, dtype, shape] = tensors[chunks[c].tensor];
          if (std::exchange(held, chunks[c].tensor) != chunks[c].tensor) {
            one = {};
            one = read(name);
            if (one.dtype() != dtype || one.shape() != shape) {
              fail<DataError>("checkpoint", name, " is ", one.meta(), ", expected ",
                              tessera::name(dtype), shape);
            }
          }
          return static_cast<const char*>(one.read_data()) +
                 offset_in(whole_box(shape), chunks[c].box) * item_size(dtype);
        });
    if (!chunks.empty()) manifest.files = {{kFile, sums.bytes, sums.header}};
    for (size_t c = 0; c < chunks.size(); ++c) {
      manifest.model[tensors[chunks[c].tensor].name].chunks.push_back(
          {0, chunks[c].box, sums.tensors[c]});
    }
    io::write_file_atomically(io::below(partial, kManifestFile), manifest_text(manifest));
    folder.finish(manifest.progress.step);
    return sums.bytes;
  } catch (...) {
    folder.recover();
    throw;
  }
}

}  // namespace tessera::train

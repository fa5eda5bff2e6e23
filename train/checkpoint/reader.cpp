// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/checkpoint/reader.h"

#include "tessera/core/message.h"
#include "tessera/dist/dtensor.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/checkpoint/plan.h"
#include "tessera/train/ranks/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// A file that is missing or has another size; empty: neither.
std::string size_fault(const std::string& folder, const std::string& name, uint64_t expected) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(io::below(folder, name), error);
  if (error) return fmt::format("{}: {}", name, error.message());
  if (bytes == expected) return "";
  return fmt::format("{} has {}, expected {}", name, counted(bytes, "byte"), expected);
}

std::string sum_fault(std::string_view what, uint32_t is, uint32_t expected) {
  return fmt::format("{} has the checksum {:08x}, expected {:08x}", what, is, expected);
}

// Opens a file, unless something is wrong with it, which is returned. A file of whole tensors has
// no checksum of its header, and may hold tensors without elements, which have no chunk.
std::string open_listed(const std::string& folder, const CheckpointFile& listed, bool whole_tensors,
                        size_t chunks, std::shared_ptr<const io::SafetensorsFile>& file) {
  std::string fault = size_fault(folder, listed.name, listed.bytes);
  if (!fault.empty()) return fault;
  try {
    file = std::make_shared<const io::SafetensorsFile>(io::below(folder, listed.name));
  } catch (const Error& error) {
    return concat(listed.name, ": ", error.what());
  }
  if (whole_tensors) return "";
  if (file->header() != listed.head) {
    return sum_fault(concat("the header of ", listed.name), file->header().crc32c,
                     listed.head.crc32c);
  }
  if (file->entries().size() == chunks) return "";
  return concat(listed.name, " holds ", counted(file->entries().size(), "chunk"),
                ", but the manifest lists ", chunks);
}

// What is wrong with the tensor `key` of a file; empty: nothing.
std::string entry_fault(const io::SafetensorsFile& file, const std::string& key,
                        const std::string& where, DType dtype, const Shape& shape) {
  const auto at = file.entries().find(key);
  if (at == file.entries().end()) return concat(where, " is missing");
  const Shape there{std::span<const int64_t>(at->second.shape)};
  if (at->second.dtype == io::file_type_name(dtype) && there == shape) return "";
  return concat(where, " is ", at->second.dtype, " of ", there, ", but the manifest says ",
                io::file_type_name(dtype), " of ", shape);
}

// A run of bytes of a chunk that is read and checked at once.
struct PieceOfChunk {
  Box box;
  uint64_t begin = 0, bytes = 0;
};

// A chunk is one piece, so that its checksum can be compared; a whole tensor has as many as it
// needs.
std::vector<PieceOfChunk> pieces(const ChunkEntry& chunk, DType dtype, bool whole_tensors) {
  const auto item = static_cast<uint64_t>(item_size(dtype));
  const auto piece = [&](const Box& box) {
    return PieceOfChunk{box, static_cast<uint64_t>(offset_in(chunk.box, box)) * item,
                        static_cast<uint64_t>(box.numel()) * item};
  };
  if (!whole_tensors) return {piece(chunk.box)};
  std::vector<PieceOfChunk> all;
  for (const Box& box : pieces_of(chunk.box, dtype, kChunkBytes)) all.push_back(piece(box));
  return all;
}

}  // namespace

std::string read_manifest(const std::string& folder) {
  const std::string path = io::below(folder, kManifestFile);
  std::error_code error;
  if (!fs::exists(path, error))
    fail<DataError>("checkpoint", folder, " is incomplete or damaged: it has no ", kManifestFile);
  std::string text = io::read_file(path);
  const Manifest manifest = parse_manifest(text, path);
  const fs::path whole = fs::absolute(folder).lexically_normal();
  const std::string name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  if (const auto step = step_of(name); step && *step != manifest.progress.step) {
    fail<DataError>("checkpoint", folder, " is named ", name, ", but its manifest is of step ",
                    manifest.progress.step, "; rename it to step-", manifest.progress.step,
                    " if that step is missing, or remove it");
  }
  std::vector<std::string> faults;
  const auto check = [&](const std::string& file, uint64_t bytes) {
    if (std::string fault = size_fault(folder, file, bytes); !fault.empty())
      faults.push_back(std::move(fault));
  };
  for (const CheckpointFile& file : manifest.files) check(file.name, file.bytes);
  if (manifest.tokenizer)
    for (const TokenizerEntry& file : *manifest.tokenizer) check(file.name, file.sum.bytes);
  if (!faults.empty())
    fail<DataError>("checkpoint", folder, " is incomplete or damaged: ", first_few(faults));
  return text;
}

CheckpointReader::CheckpointReader(const std::string& step_folder, const std::string& manifest_text)
    : CheckpointReader(step_folder,
                       parse_manifest(manifest_text, io::below(step_folder, kManifestFile))) {}

CheckpointReader::CheckpointReader(std::string folder, Manifest manifest)
    : path_(std::move(folder)),
      manifest_(std::move(manifest)),
      chunks_in_file_(manifest_.files.size()) {
  for (const auto& [part, entries] : manifest_.parts()) {
    for (const auto& [name, entry] : *entries) {
      for (const ChunkEntry& chunk : entry.chunks) ++chunks_in_file_[chunk.file];
    }
  }
}

std::vector<std::string> CheckpointReader::faults() const {
  std::vector<Need> needs;
  for (const auto& [part, entries] : manifest_.parts()) {
    for (const auto& [name, entry] : *entries) {
      if (entry.shape.numel() > 0) needs.push_back({name, &entry, whole_box(entry.shape)});
    }
  }
  std::vector<std::string> faults = whole_file_faults(0, 1);
  if (faults.empty()) faults = walk(needs, {});
  std::vector<TokenizerFile> files;
  for (std::string& fault : tokenizer_faults(files)) faults.push_back(std::move(fault));
  return faults;
}

void CheckpointReader::verify() const {
  if (const auto found = faults(); !found.empty()) fail_damaged(found);
}

std::vector<std::string> CheckpointReader::faults_of(
    const std::vector<nn::NamedParameter>& tensors) const {
  std::vector<std::string> faults =
      whole_file_faults(static_cast<size_t>(own_rank()), static_cast<size_t>(rank_count()));
  if (faults.empty()) faults = walk(needs_of(tensors), {});
  return faults;
}

void CheckpointReader::fill(const std::vector<nn::NamedParameter>& tensors) const {
  std::vector<Tensor> shards;
  for (const auto& [name, t] : tensors) {
    Tensor shard = t.is_distributed() ? local(t) : t;
    if (shard.numel() > 0) shards.push_back(std::move(shard));
  }
  fill(needs_of(tensors), shards);
}

void CheckpointReader::fill(const std::vector<Need>& needs,
                            const std::vector<Tensor>& shards) const {
  // A shard that is not in host memory in one piece is read beside it first.
  struct Target {
    Tensor shard, host;
  };
  std::vector<Target> targets;
  for (const Tensor& shard : shards) {
    const bool direct = shard.device().is_cpu() && shard.is_contiguous();
    shard.storage().bump_version();
    targets.push_back({shard, direct ? shard : empty(shard.shape(), shard.dtype())});
  }
  const auto found = walk(needs, [&](size_t i, const Box& piece, const void* bytes) {
    const auto both = overlap(piece, needs[i].box);
    copy_box(*both, needs[i].box, targets[i].host.raw_data(), piece, bytes,
             item_size(needs[i].entry->dtype));
  });
  if (!found.empty()) fail_damaged(found);
  for (const Target& t : targets) {
    if (t.host.handle() != t.shard.handle()) nn::copy_values(t.shard, t.host);
  }
}

std::vector<std::string> CheckpointReader::tokenizer_faults(
    std::vector<TokenizerFile>& files) const {
  std::vector<std::string> faults;
  if (!manifest_.tokenizer) return faults;
  for (const auto& [name, expected] : *manifest_.tokenizer) {
    std::string fault = size_fault(path_, name, expected.bytes);
    if (fault.empty()) {
      files.push_back({name, io::read_file(io::below(path_, name))});
      const uint32_t sum = io::crc32c(files.back().bytes);
      if (sum != expected.crc32c) fault = sum_fault(name, sum, expected.crc32c);
    }
    if (!fault.empty()) faults.push_back(std::move(fault));
  }
  return faults;
}

std::shared_ptr<const Tokenizer> CheckpointReader::tokenizer() const {
  if (!manifest_.tokenizer) return nullptr;
  std::vector<TokenizerFile> files;
  if (const auto found = tokenizer_faults(files); !found.empty()) fail_damaged(found);
  return make_tokenizer(std::move(files));
}

const TensorEntry& CheckpointReader::entry(const std::string& tensor) const {
  const TensorEntry* entry = manifest_.find(tensor);
  if (!entry) fail<DataError>("checkpoint", path_, " has no tensor ", io::excerpt(tensor));
  return *entry;
}

Tensor CheckpointReader::read(const std::string& tensor) const {
  return read(tensor, whole_box(entry(tensor).shape));
}

Tensor CheckpointReader::read(const std::string& tensor, const Box& box) const {
  const TensorEntry& there = entry(tensor);
  Tensor t = empty(box.size, there.dtype);
  if (t.numel() == 0) return t;
  fill({{tensor, &there, box}}, {t});
  return t;
}

std::vector<nn::NamedParameter> CheckpointReader::read_all(const TensorEntries& part) const {
  std::vector<nn::NamedParameter> all;
  for (const auto& [name, entry] : part) all.push_back({name, empty(entry.shape, entry.dtype)});
  fill(all);
  return all;
}

std::vector<CheckpointReader::Need> CheckpointReader::needs_of(
    const std::vector<nn::NamedParameter>& tensors) const {
  std::vector<Need> needs;
  for (const auto& [name, t] : tensors) {
    const TensorEntry& there = entry(name);
    if (there.dtype != t.dtype() || there.shape != t.shape()) {
      fail<DataError>("checkpoint", path_, ": ", name, " is ", tessera::name(there.dtype),
                      there.shape, ", expected ", t.meta());
    }
    Box box = own_box(t);
    if (box.numel() > 0) needs.push_back({name, &there, std::move(box)});
  }
  return needs;
}

std::vector<std::string> CheckpointReader::whole_file_faults(size_t first, size_t parts) const {
  std::vector<std::string> faults;
  if (!manifest_.whole_tensors) return faults;
  for (size_t i = first; i < manifest_.files.size(); i += parts) {
    const CheckpointFile& file = manifest_.files[i];
    std::string fault = size_fault(path_, file.name, file.bytes);
    if (fault.empty()) {
      const io::FileSum sum = io::sum_of_file(io::below(path_, file.name));
      if (sum != file.head) fault = sum_fault(file.name, sum.crc32c, file.head.crc32c);
    }
    if (!fault.empty()) faults.push_back(std::move(fault));
  }
  return faults;
}

std::string CheckpointReader::open(size_t f,
                                   std::shared_ptr<const io::SafetensorsFile>& opened) const {
  constexpr size_t kMostOpen = 64;
  const std::lock_guard lock(mutex_);
  if (const auto at = opened_.find(f); at != opened_.end()) {
    opened = at->second;
    return "";
  }
  std::string fault =
      open_listed(path_, manifest_.files[f], manifest_.whole_tensors, chunks_in_file_[f], opened);
  if (!fault.empty()) return fault;
  if (opened_.size() == kMostOpen) opened_.clear();
  opened_[f] = opened;
  return "";
}

std::vector<std::string> CheckpointReader::walk(const std::vector<Need>& needs,
                                                const Take& take) const {
  struct Job {
    size_t need;
    const ChunkEntry* chunk;
  };
  std::vector<std::vector<Job>> jobs(manifest_.files.size());
  for (size_t i = 0; i < needs.size(); ++i) {
    for (const ChunkEntry& chunk : needs[i].entry->chunks) {
      if (overlap(chunk.box, needs[i].box)) jobs[chunk.file].push_back({i, &chunk});
    }
  }
  std::vector<std::string> faults;
  std::vector<char> bytes;
  const bool whole = manifest_.whole_tensors;
  for (size_t f = 0; f < jobs.size(); ++f) {
    if (jobs[f].empty()) continue;
    const CheckpointFile& listed = manifest_.files[f];
    std::shared_ptr<const io::SafetensorsFile> file;
    std::string fault = open(f, file);
    if (!fault.empty()) {
      faults.push_back(std::move(fault));
      continue;
    }
    for (const auto& [i, chunk] : jobs[f]) {
      const auto& [name, entry, box] = needs[i];
      const std::string key = whole ? name : chunk_name(name, chunk->box);
      const std::string where = concat(listed.name, ": ", io::excerpt(key));
      fault = entry_fault(*file, key, where, entry->dtype, chunk->box.size);
      if (!fault.empty()) {
        faults.push_back(std::move(fault));
        continue;
      }
      for (const PieceOfChunk& piece : pieces(*chunk, entry->dtype, whole)) {
        if (!overlap(piece.box, box)) continue;
        bytes.resize(piece.bytes);
        file->read_bytes(key, piece.begin, piece.bytes, bytes.data());
        const uint32_t sum = whole ? 0 : io::crc32c({bytes.data(), bytes.size()});
        if (sum != chunk->crc32c) faults.push_back(sum_fault(where, sum, chunk->crc32c));
        else if (take) take(i, piece.box, bytes.data());
      }
    }
  }
  return faults;
}

void CheckpointReader::fail_damaged(const std::vector<std::string>& faults) const {
  fail<DataError>("checkpoint", path_, " is incomplete or damaged: ", first_few(faults));
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// That all ranks share the folder is seen by a file with a random text, which rank 0 writes there
// and sends to all: a host with a disk of its own under the same path has another file, or none.
#include "tessera/train/checkpoint/saving.h"

#include "tessera/core/scopes.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/train/ranks/ranks.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNonce = ".shared";

std::string file_of(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string random_text() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

uint64_t bytes_of(const std::vector<PlannedTensor>& plan) {
  constexpr uint64_t kChunk = 256;  // above what one takes in headers and manifest
  uint64_t bytes = 0;
  for (const PlannedTensor& t : plan) {
    bytes += static_cast<uint64_t>(t.shape.numel() * item_size(t.dtype)) +
             t.chunks.size() * (kChunk + 2 * t.name.size());
  }
  return bytes;
}

// Sums as the bytes of numbers: the plan says whose they are.
std::string packed(const io::SafetensorsSums& sums) {
  std::string text(3 * sizeof(uint64_t) + sums.tensors.size() * sizeof(uint32_t), '\0');
  const std::array<uint64_t, 3> of_file{sums.bytes, sums.header.bytes, sums.header.crc32c};
  std::memcpy(text.data(), of_file.data(), sizeof of_file);
  if (!sums.tensors.empty()) {
    std::memcpy(text.data() + sizeof of_file, sums.tensors.data(),
                sums.tensors.size() * sizeof(uint32_t));
  }
  return text;
}

io::SafetensorsSums unpacked(const std::string& text) {
  std::array<uint64_t, 3> of_file{};
  std::memcpy(of_file.data(), text.data(), sizeof of_file);
  io::SafetensorsSums sums{of_file[0], {of_file[1], static_cast<uint32_t>(of_file[2])}};
  sums.tensors.resize((text.size() - sizeof of_file) / sizeof(uint32_t));
  if (!sums.tensors.empty()) {
    std::memcpy(sums.tensors.data(), text.data() + sizeof of_file,
                sums.tensors.size() * sizeof(uint32_t));
  }
  return sums;
}

}  // namespace

Saving::Saving(CheckpointFolder folder, const Checkpoint& c, Snapshot snapshot)
    : folder_(std::move(folder)), rank_(own_rank()), ranks_(rank_count()) {
  manifest_.progress = c.progress;
  manifest_.seed = c.seed;
  manifest_.config = c.config;
  manifest_.data_windows = c.data_windows;
  manifest_.products = c.products;
  manifest_.data = c.data;
  manifest_.mesh = c.mesh;
  if (c.tokenizer && rank_ == 0) {
    tokenizer_ = c.tokenizer;
    manifest_.tokenizer = entries_of(*tokenizer_);
  }
  Holdings own;
  on_all_or_none([&] {
    own.add("model", c.model, ranks_);
    own.add("optimizer", c.optimizer, ranks_);
    own.add("train_state", c.train_state, ranks_);
  });
  const std::vector<std::string> texts = different_texts(own.text());
  on_all_or_none([&] {
    std::vector<Holdings> different;
    for (const std::string& text : texts) different.push_back(Holdings::parse(text));
    plan_ = plan_chunks(different, ranks_);
  });
  try {
    share_folder();
    on_all_or_none([&] { take_chunks(c, snapshot); });
  } catch (const Error&) {
    if (rank_ == 0) folder_.recover();
    throw;
  }
}

void Saving::share_folder() {
  std::string nonce;
  on_all_or_none([&] {
    if (rank_ != 0) return;
    partial_ = folder_.begin(step());
    constexpr uint64_t kSlack = uint64_t{1} << 20;
    uint64_t bytes = bytes_of(plan_) + manifest_.config.size() + kSlack;
    if (manifest_.tokenizer)
      for (const auto& [name, sum] : *manifest_.tokenizer) bytes += sum.bytes;
    io::require_space(partial_, bytes, "checkpoint");
    nonce = random_text();
    io::write_file_atomically((fs::path(partial_) / kNonce).string(), nonce);
  });
  partial_ = text_of_first(partial_);
  nonce = text_of_first(nonce);
  on_all_or_none([&] {
    std::string found;
    try {
      found = io::read_file((fs::path(partial_) / kNonce).string());
    } catch (const IoError&) {  // it is not there
    }
    if (found == nonce) return;
    fail<IoError>("checkpoint", "rank ", rank_, " on host ", host_name(), " does not see ",
                  partial_, ", which rank 0 writes: give a folder that all hosts share");
  });
}

void Saving::take_chunks(const Checkpoint& c, Snapshot snapshot) {
  const NoGrad guard;
  std::map<std::string_view, const Tensor*> own;
  for (const auto* part : {&c.model, &c.optimizer, &c.train_state}) {
    for (const auto& [name, tensor] : *part) own.emplace(name, &tensor);
  }
  for (const PlannedTensor& t : plan_) {
    const char* bytes = nullptr;  // of what this rank holds
    Box box;
    for (const PlannedChunk& chunk : t.chunks) {
      if (chunk.writer != rank_) continue;
      if (!bytes) {
        const Tensor& tensor = *own.at(t.name);
        box = own_box(tensor);
        held_.push_back(
            to_device(contiguous(tensor.is_distributed() ? local(tensor) : tensor.detach()), kCpu));
        bytes = static_cast<const char*>(held_.back().read_data());
      }
      chunks_.push_back({chunk_name(t.name, chunk.box), t.dtype, chunk.box.size,
                         bytes + offset_in(box, chunk.box) * item_size(t.dtype)});
    }
  }
  if (snapshot == Snapshot::no) return;
  for (const io::TensorBytes& chunk : chunks_)
    snapshot_bytes_ += chunk.shape.numel() * item_size(chunk.dtype);
  snapshot_.reset(new std::byte[static_cast<size_t>(snapshot_bytes_)]);
  std::byte* to = snapshot_.get();
  for (io::TensorBytes& chunk : chunks_) {
    const auto bytes = static_cast<size_t>(chunk.shape.numel() * item_size(chunk.dtype));
    std::memcpy(to, chunk.data, bytes);
    chunk.data = std::exchange(to, to + bytes);
  }
  held_.clear();
}

void Saving::write() noexcept {
  try {
    if (!chunks_.empty()) {
      sums_ = io::write_safetensors((fs::path(partial_) / file_of(rank_)).string(), chunks_,
                                    {{"step", std::to_string(step())}});
    }
    if (tokenizer_) {  // on rank 0
      for (const auto& [name, bytes] : tokenizer_->files())
        io::write_file_atomically((fs::path(partial_) / name).string(), bytes);
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  chunks_.clear();
  held_.clear();
  snapshot_.reset();
}

uint64_t Saving::commit() {
  uint64_t bytes = 0;
  try {
    on_all_or_none([&] {
      if (error_) std::rethrow_exception(error_);
    });
    const std::vector<std::string> sums = texts_of_ranks(packed(sums_));
    on_all_or_none([&] {
      bytes = finish_manifest(sums);
      if (rank_ != 0) return;
      std::error_code ignored;
      fs::remove(fs::path(partial_) / kNonce, ignored);
      io::write_file_atomically((fs::path(partial_) / kManifestFile).string(),
                                manifest_text(manifest_));
      folder_.finish(step());
    });
  } catch (const Error&) {
    if (rank_ == 0) folder_.recover();
    throw;
  }
  return bytes;
}

uint64_t Saving::finish_manifest(const std::vector<std::string>& sums) {
  uint64_t bytes = 0;
  std::vector<io::SafetensorsSums> of_ranks;
  std::vector<size_t> files, used(sums.size());  // by rank: its file, and sums taken of it
  for (size_t r = 0; r < sums.size(); ++r) {
    of_ranks.push_back(unpacked(sums[r]));
    files.push_back(manifest_.files.size());
    bytes += of_ranks[r].bytes;
    if (!of_ranks[r].tensors.empty()) {
      manifest_.files.push_back(
          {file_of(static_cast<int>(r)), of_ranks[r].bytes, of_ranks[r].header});
    }
  }
  for (const PlannedTensor& t : plan_) {
    TensorEntry entry{t.dtype, t.shape};
    for (const PlannedChunk& chunk : t.chunks) {
      const auto r = static_cast<size_t>(chunk.writer);
      entry.chunks.push_back({files[r], chunk.box, of_ranks[r].tensors.at(used[r]++)});
    }
    TensorEntries& part = t.part == "model"       ? manifest_.model
                          : t.part == "optimizer" ? manifest_.optimizer
                                                  : manifest_.train_state;
    part.emplace(t.name, std::move(entry));
  }
  return bytes;
}

BackgroundSave::BackgroundSave(CheckpointFolder folder, const Checkpoint& checkpoint)
    : saving_(std::move(folder), checkpoint, Snapshot::yes), writer_([this] {
        saving_.write();
        written_.store(true, std::memory_order_release);
      }) {}

BackgroundSave::~BackgroundSave() {
  if (writer_.joinable()) writer_.join();
}

uint64_t BackgroundSave::finish() {
  writer_.join();
  return saving_.commit();
}

uint64_t save(const CheckpointFolder& folder, const Checkpoint& checkpoint) {
  const Patience patience;
  Saving saving(folder, checkpoint, Snapshot::no);
  saving.write();
  return saving.commit();
}

}  // namespace tessera::train

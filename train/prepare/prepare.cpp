// SPDX-License-Identifier: Apache-2.0
// A shard is written under a temporary name, synced and renamed, then the index lists it: so what
// the index lists is whole at any moment, and a preparation that was interrupted goes on after its
// last shard. It counts only if it ended where shards end in any case: filled to shard_tokens, in
// sources that are what they were.
#include "tessera/train/prepare/prepare.h"

#include "tessera/core/error.h"
#include "tessera/nn/io/crc32c.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/new_folder.h"
#include "tessera/train/data/encode_documents.h"
#include "tessera/train/data/text_reader.h"
#include "tessera/train/data/token_source.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <optional>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOut = "--out";

template <class T> void append_bytes(std::string& bytes, std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    const auto value = static_cast<T>(id);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

class ShardWriter {
 public:
  ShardWriter(const fs::path& folder, size_t number, ElementType type)
      : type_(type),
        tokens_((folder / tokens_file(number)).string()),
        documents_path_((folder / documents_file(number)).string()) {
    tokens_.write(npy_header(type, 0));
  }

  [[nodiscard]] int64_t tokens() const { return shard_.tokens; }
  void add(const EncodedPart& part) {
    if (part.begins) {
      drop_empty();
      starts_.push_back(static_cast<uint32_t>(shard_.tokens));
    }
    if (type_ == ElementType::u16) append_bytes<uint16_t>(waiting_, part.ids);
    else append_bytes<uint32_t>(waiting_, part.ids);
    shard_.tokens += std::ssize(part.ids);
    constexpr size_t kBlock = 1 << 20;
    if (waiting_.size() >= kBlock) write_waiting();
  }
  DataShard finish(const SourcePosition& end) {
    drop_empty();
    write_waiting();
    tokens_.write_front(npy_header(type_, shard_.tokens));
    tokens_.commit();
    const std::string_view starts(reinterpret_cast<const char*>(starts_.data()),
                                  starts_.size() * sizeof(uint32_t));
    shard_.documents = std::ssize(starts_);
    shard_.documents_crc32c = io::crc32c(starts);
    shard_.end = end;
    io::write_file_atomically(documents_path_, [&](const auto& write) {
      write(npy_header(ElementType::u32, shard_.documents));
      write(starts);
    });
    return shard_;
  }

 private:
  // The document that was begun last, if it has given no tokens: there is nothing to learn of it.
  void drop_empty() {
    if (!starts_.empty() && starts_.back() == shard_.tokens) starts_.pop_back();
  }
  void write_waiting() {
    shard_.tokens_crc32c = io::crc32c(waiting_, shard_.tokens_crc32c);
    tokens_.write(waiting_);
    waiting_.clear();
  }

  ElementType type_;
  io::AtomicFile tokens_;
  std::string documents_path_, waiting_;
  std::vector<uint32_t> starts_;
  DataShard shard_;
};

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const Tokenizer& tokenizer,
              const std::function<void(const PrepareProgress&)>& progress)
      : options_(options), tokenizer_(tokenizer), report_(progress) {
    options_.out = io::new_folder_path(options_.out, kOut);
    partial_ = options_.out + ".partial";
    index_.vocabulary = tokenizer.vocabulary();
    index_.around = document_tokens(options.document_tokens, tokenizer, "--document_tokens");
    index_.tokenizer = entries_of(tokenizer).value();
    index_.type = index_.vocabulary <= UINT16_MAX + 1 ? ElementType::u16 : ElementType::u32;
    index_.text_field = options.text_field;
    index_.shard_tokens = options.shard_tokens;
  }

  DataIndex run() {
    refuse_within_sources();
    find_sources();
    io::unfinished_folder(partial_.string(), kOut);
    const io::FolderLock lock(partial_.string(), kOut);
    io::refuse_existing(options_.out, kOut);  // another process may have held the lock until now
    keep_finished();
    write_index();
    clear();
    encode();
    if (index_.shards.empty())
      fail<DataError>(
          "data prepare", options_.paths[0],
          options_.paths.size() > 1 || paths_.size() > 1 ? " and its neighbours are" : " is",
          " empty; give text");
    index_.complete = true;
    write_index();
    io::rename_new_folder(partial_.string(), options_.out, kOut);
    // Only now: without its file the folder could be locked again before it has its name.
    std::error_code ignored;
    fs::remove(fs::path(options_.out) / ".lock", ignored);
    return index_;
  }

 private:
  // An interrupted preparation would read its own shards.
  void refuse_within_sources() const {
    for (const std::string& path : options_.paths) {
      std::error_code error;
      if (!fs::is_directory(path, error)) continue;
      const fs::path inside = fs::weakly_canonical(options_.out, error)
                                  .lexically_relative(fs::weakly_canonical(path, error));
      if (error || inside.empty() || *inside.begin() == "..") continue;
      fail<IoError>(kOut, options_.out, " lies in ", path, ", which is read: give another folder");
    }
  }
  void find_sources() {
    for (const std::string& path : options_.paths) {
      const DataFiles files = find_data(path, "data prepare");
      if (!files.kind->is_text)
        fail<DataError>("data prepare", path, " holds token ids, expected text");
      if (options_.say && !files.listing.empty())
        options_.say(data_files_line(files.listing, "data", options_.paths.size() > 1 ? path : ""));
      paths_.insert(paths_.end(), files.paths.begin(), files.paths.end());
      for (DataFile& file : fingerprint_data(path, "data prepare")) {
        progress_.all_bytes += static_cast<int64_t>(file.bytes);
        index_.sources.push_back(std::move(file));
      }
    }
    if (options_.say) options_.say("data: " + text_of(index_.around, tokenizer_));
    if (paths_.size() != index_.sources.size())
      fail<DataError>("data prepare", "files appeared or went while they were listed; try again");
  }
  // Shards of an interrupted preparation that are those which this one would make.
  void keep_finished() {
    if (!is_prepared(partial_.string())) return;
    std::optional<DataIndex> before;
    try {
      before = read_index(partial_.string());
    } catch (const Error&) {  // not ours to read: it is made anew
      return;
    }
    DataIndex same = *before;
    same.complete = false;
    same.sources = index_.sources;
    same.shards.clear();
    if (same != index_) return;
    const auto unlike = std::ranges::mismatch(before->sources, index_.sources, same_data);
    const int64_t unchanged = unlike.in1 - before->sources.begin();
    for (const DataShard& shard : before->shards) {
      if (shard.tokens < index_.shard_tokens || shard.end.source >= unchanged) break;
      try {
        (void)open_shard(partial_.string(), *before, index_.shards.size());
      } catch (const Error&) {
        break;
      }
      index_.shards.push_back(shard);
      position_ = shard.end;
    }
    progress_.resumed_shards = index_.shards.size();
    progress_.tokens = index_.tokens();
    progress_.documents = index_.documents();
  }
  // Removes what the shards that are kept do not need: parts of files, and shards to make anew.
  void clear() const {
    std::vector<std::string> kept{std::string(kDataIndexFile)};
    for (size_t i = 0; i < index_.shards.size(); ++i) {
      kept.push_back(tokens_file(i));
      kept.push_back(documents_file(i));
    }
    std::ranges::sort(kept);
    std::error_code error;
    for (fs::directory_iterator at(partial_, error), end; !error && at != end;
         at.increment(error)) {
      const std::string name = at->path().filename().string();
      const bool own = name.starts_with("tokens-") || name.starts_with("documents-") ||
                       name.starts_with(kDataIndexFile) ||
                       name.starts_with(".probe.");  // of io::require_writable_folder
      if (own && !std::ranges::binary_search(kept, name)) fs::remove(at->path(), error);
      if (error) break;
    }
    if (error) fail<IoError>(kOut, "cannot clear ", partial_.string(), ": ", error.message());
  }
  void write_index() const {
    io::write_file_atomically((partial_ / kDataIndexFile).string(), index_text(index_));
  }

  void encode() {
    DocumentEncoder encoder(tokenizer_, index_.around, options_.threads,
                            [this](const EncodedPart& part) { take(part); });
    const SourcePosition from = position_;
    for (size_t i = 0; i < paths_.size(); ++i) {
      const auto source = static_cast<int64_t>(i);
      const auto bytes = static_cast<int64_t>(index_.sources[i].bytes);
      if (source >= from.source) {
        int64_t document = 0, read = 0;
        read_documents(paths_[i], options_.text_field, [&](std::string_view text) {
          const SourcePosition end{source, ++document};
          read += std::ssize(text);
          progress_.bytes = before_ + std::min(read, bytes);
          if (end <= from) return;
          ends_.push_back(end);
          encoder.add(text);
        });
      }
      before_ += bytes;
    }
    progress_.bytes = before_;
    encoder.finish();
    if (shard_ && shard_->tokens() > 0) finish_shard();
    shard_.reset();
  }
  void take(const EncodedPart& part) {
    if (!shard_) shard_.emplace(partial_, index_.shards.size(), index_.type);
    shard_->add(part);
    progress_.tokens += std::ssize(part.ids);
    if (part.ends) {
      ++progress_.documents;
      position_ = ends_.front();
      ends_.pop_front();
      if (shard_->tokens() >= index_.shard_tokens) finish_shard();
    }
    if (report_) report_(progress_);
  }
  void finish_shard() {
    index_.shards.push_back(shard_->finish(position_));
    shard_.reset();
    write_index();
  }

  PrepareOptions options_;
  const Tokenizer& tokenizer_;
  std::function<void(const PrepareProgress&)> report_;
  fs::path partial_;
  std::vector<std::string> paths_;  // of the sources
  DataIndex index_;
  std::optional<ShardWriter> shard_;
  SourcePosition position_;          // after the last document that is in a shard
  std::deque<SourcePosition> ends_;  // of documents that are being encoded
  PrepareProgress progress_;
  int64_t before_ = 0;  // bytes of the sources that are read
};

}  // namespace

DataIndex prepare_data(const PrepareOptions& options, const Tokenizer& tokenizer,
                       const std::function<void(const PrepareProgress&)>& progress) {
  return Preparation(options, tokenizer, progress).run();
}

}  // namespace tessera::train

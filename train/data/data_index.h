// SPDX-License-Identifier: Apache-2.0
// The index of prepared data: a folder of shards, each of two .npy files, the tokens and where
// documents begin. It names the tokenizer, so that data of another one is never trained on, and the
// sources, so that an interrupted preparation goes on only where they are unchanged. The names of
// the files follow from the number of the shard: no name is read from an index.
#pragma once

#include "tessera/train/arrays/array_file.h"
#include "tessera/train/data/fingerprint.h"
#include "tessera/train/tokenizer/document_tokens.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

inline constexpr std::string_view kDataIndexFile = "data_index.json";

/// A place between two documents of the sources.
struct SourcePosition {
  int64_t source = 0;    ///< sources before it are done
  int64_t document = 0;  ///< documents of it that are done
  auto operator<=>(const SourcePosition&) const = default;
};

/// Whole documents, one after another.
struct DataShard {
  int64_t tokens = 0, documents = 0;
  uint32_t tokens_crc32c = 0;     ///< of the token ids, without the header
  uint32_t documents_crc32c = 0;  ///< of the starts of documents, without the header
  SourcePosition end;             ///< after its last document
  bool operator==(const DataShard&) const = default;
};

struct DataIndex {
  bool complete = false;  ///< false while the folder is being prepared
  int64_t vocabulary = 0;
  DocumentTokens around;                  ///< each document
  std::vector<TokenizerEntry> tokenizer;  ///< its files; none: bytes
  ElementType type = ElementType::u16;    ///< of token ids, u16 or u32; starts are u32
  std::string text_field;
  int64_t shard_tokens = 0;  ///< a shard ends with the document that reaches it
  DataFingerprint sources;
  std::vector<DataShard> shards;
  bool operator==(const DataIndex&) const = default;

  [[nodiscard]] TESSERA_API int64_t tokens() const;
  [[nodiscard]] TESSERA_API int64_t documents() const;
};

/// As JSON.
[[nodiscard]] TESSERA_API std::string index_text(const DataIndex& index);
/// DataError, which names `path` and the member: not an index, or one that contradicts itself.
[[nodiscard]] TESSERA_API DataIndex parse_index(std::string_view text, const std::string& path);
/// Reads the index of a folder. IoError: cannot be read, or above 1 GiB.
[[nodiscard]] TESSERA_API DataIndex read_index(const std::string& folder);

/// Whether the folder has an index.
[[nodiscard]] TESSERA_API bool is_prepared(const std::string& folder);
/// The files of shard `i`: `tokens-00000.npy`, `documents-00000.npy`.
[[nodiscard]] TESSERA_API std::string tokens_file(size_t i);
[[nodiscard]] TESSERA_API std::string documents_file(size_t i);

/// The files of a shard.
struct ShardFiles {
  ArrayFile tokens, documents;
};
/// Opens shard `i`. IoError: cannot be read. DataError: a link, or not what the index says.
[[nodiscard]] TESSERA_API ShardFiles open_shard(const std::string& folder, const DataIndex& index,
                                                size_t i);
/// Reads every byte of a prepared folder; what is wrong, a line each. Errors as read_index.
[[nodiscard]] TESSERA_API std::vector<std::string> verify_index(const std::string& folder);

}  // namespace tessera::train

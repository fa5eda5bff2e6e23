// SPDX-License-Identifier: Apache-2.0
// The interface of tokenizers, how one is opened, the byte tokenizer, which needs no file: one
// token per byte, and begin-of-text and end-of-text tokens; and what stands in the place of a
// tokenizer that is not there.
#pragma once

#include "tessera/core/api.h"
#include "tessera/nn/io/files.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// A file that a tokenizer is made of: `tokenizer.json`.
struct TokenizerFile {
  std::string name, bytes;
};

/// Text to token ids and back. A mark is a special token: one that stands for no text, such as the
/// begin of a document or the end of an answer. Called from several threads at once.
class TESSERA_API Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// Vocabulary size: ids are below it.
  [[nodiscard]] virtual int64_t vocabulary() const = 0;
  /// Token ids for begin and end of a document; -1: none.
  [[nodiscard]] virtual int64_t begin_id() const = 0;
  [[nodiscard]] virtual int64_t end_id() const = 0;
  /// Whether texts begin with begin_id(): a tokenizer may have the token and say that they do not.
  [[nodiscard]] virtual bool begins_texts() const { return begin_id() >= 0; }
  /// Length of a prefix of `text`, about `most` bytes, whose tokens do not depend on the following
  /// bytes, so that long documents are tokenised in pieces; the whole length if none is known.
  [[nodiscard]] virtual size_t piece(std::string_view text, size_t most) const = 0;
  /// Appends the tokens of `text` (UTF-8, or a piece of it) without marks around it. The name of a
  /// mark within it becomes the mark.
  virtual void append(std::string_view text, std::vector<int32_t>& tokens) const = 0;
  /// Appends the tokens of a whole text that may come from anyone: the name of a mark within it is
  /// text like any other, so no text can pose as a mark. `first`: nothing stands before it, else
  /// other tokens do. DataError: the vocabulary has nothing but a mark for a part of it.
  virtual void append_untrusted(std::string_view text, bool first,
                                std::vector<int32_t>& tokens) const = 0;
  /// The text; marks and ids beyond the vocabulary are dropped.
  [[nodiscard]] virtual std::string text(std::span<const int64_t> tokens) const = 0;
  /// The bytes that a token stands for within a text; those of its name for a mark, none for an id
  /// beyond the vocabulary.
  [[nodiscard]] virtual std::string bytes(int64_t id) const = 0;
  /// Whether the token is a mark, which text() drops.
  [[nodiscard]] virtual bool is_mark(int64_t id) const = 0;
  /// The mark of this name; -1 if there is none.
  [[nodiscard]] virtual int64_t mark(std::string_view name) const = 0;
  /// The files that make_tokenizer makes an equal one of; none for the byte tokenizer.
  [[nodiscard]] virtual std::span<const TokenizerFile> files() const = 0;
  /// Why there is no tokenizer, for errors; empty: there is one.
  [[nodiscard]] virtual std::string_view missing() const { return {}; }
};

class TESSERA_API ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kBegin = 256, kEnd = 257, kVocabulary = 258;
  /// Appends the bytes as tokens, without marks.
  [[nodiscard]] static std::vector<int64_t> encode(std::string_view text);
  /// The bytes; marks and ids beyond the vocabulary are dropped.
  [[nodiscard]] static std::string decode(std::span<const int64_t> tokens);

  [[nodiscard]] int64_t vocabulary() const override { return kVocabulary; }
  [[nodiscard]] int64_t begin_id() const override { return kBegin; }
  [[nodiscard]] int64_t end_id() const override { return kEnd; }
  [[nodiscard]] size_t piece(std::string_view text, size_t most) const override {
    return text.size() < most ? text.size() : most;
  }
  void append(std::string_view text, std::vector<int32_t>& tokens) const override;
  void append_untrusted(std::string_view text, bool, std::vector<int32_t>& tokens) const override {
    append(text, tokens);
  }
  [[nodiscard]] std::string text(std::span<const int64_t> tokens) const override {
    return decode(tokens);
  }
  [[nodiscard]] std::string bytes(int64_t id) const override;
  [[nodiscard]] bool is_mark(int64_t id) const override { return id == kBegin || id == kEnd; }
  [[nodiscard]] int64_t mark(std::string_view name) const override;
  [[nodiscard]] std::span<const TokenizerFile> files() const override { return {}; }
};

/// In the place of a tokenizer that a model has, but that is not there: token ids need none. Every
/// function that text needs throws a DataError that says why.
class TESSERA_API NoTokenizer final : public Tokenizer {
 public:
  explicit NoTokenizer(std::string why) : why_(std::move(why)) {}
  [[nodiscard]] int64_t vocabulary() const override { return 0; }
  [[nodiscard]] int64_t begin_id() const override { return -1; }
  [[nodiscard]] int64_t end_id() const override { return -1; }
  [[nodiscard]] size_t piece(std::string_view, size_t) const override { stop(); }
  void append(std::string_view, std::vector<int32_t>&) const override { stop(); }
  void append_untrusted(std::string_view, bool, std::vector<int32_t>&) const override { stop(); }
  [[nodiscard]] std::string text(std::span<const int64_t>) const override { stop(); }
  [[nodiscard]] std::string bytes(int64_t) const override { stop(); }
  [[nodiscard]] bool is_mark(int64_t) const override { return false; }
  [[nodiscard]] int64_t mark(std::string_view) const override { return -1; }
  [[nodiscard]] std::span<const TokenizerFile> files() const override { return {}; }
  [[nodiscard]] std::string_view missing() const override { return why_; }

 private:
  [[noreturn]] void stop() const;
  std::string why_;
};

/// What names the byte tokenizer in the place of a folder or file; a folder of this name is
/// `./bytes`.
inline constexpr std::string_view kByteTokenizer = "bytes";

/// Reads the tokenizer's files of a folder: tokenizer.json, or vocab.json and merges.txt, and
/// tokenizer_config.json if it is there; or the one file that `path` names. IoError: cannot be
/// read, or larger than 256 MiB. DataError: the folder has none. Errors name `field`. None for
/// kByteTokenizer.
TESSERA_API std::vector<TokenizerFile> read_tokenizer_files(const std::string& path,
                                                            const std::string& field);
/// Makes a tokenizer of its files; of none, the byte tokenizer. DataError names file and key: not
/// JSON, of the wrong type, contradictory, or a kind of tokenizer that is not supported.
TESSERA_API std::shared_ptr<const Tokenizer> make_tokenizer(std::vector<TokenizerFile> files);
/// Both; the byte tokenizer if `path` is empty or kByteTokenizer.
TESSERA_API std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path,
                                                            const std::string& field);

/// A file of a tokenizer, by which it is known again.
struct TokenizerEntry {
  std::string name;
  io::FileSum sum;
  bool operator==(const TokenizerEntry&) const = default;
};
/// Of each file that the tokenizer is made of; nothing for NoTokenizer.
[[nodiscard]] TESSERA_API std::optional<std::vector<TokenizerEntry>> entries_of(
    const Tokenizer& tokenizer);
/// Calls work(i) for each i of [0, n), by up to `threads` threads; the first error of one ends all
/// of them and is thrown.
TESSERA_API void share_among_threads(size_t n, int threads,
                                     const std::function<void(size_t)>& work);

/// The tokens of each text, without marks, by up to `threads` threads.
TESSERA_API std::vector<std::vector<int32_t>> tokenize_all(const Tokenizer& tokenizer,
                                                           std::span<const std::string_view> texts,
                                                           int threads);

/// Text for a terminal: control characters except tab and newline become '.', invalid UTF-8 becomes
/// the replacement character.
TESSERA_API std::string printable(std::string_view text);

}  // namespace tessera::train

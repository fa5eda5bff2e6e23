// SPDX-License-Identifier: Apache-2.0
// What turns text into tokens and back, and the one that needs no file: a token per byte, and two
// that mark where a document begins and ends.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Called from several threads at once, so it has no state that changes.
class TESSERA_API Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// Ids are below it.
  [[nodiscard]] virtual int64_t vocabulary() const = 0;
  /// The marks around a document; -1: none.
  [[nodiscard]] virtual int64_t begin_id() const = 0;
  [[nodiscard]] virtual int64_t end_id() const = 0;
  /// How many bytes at the front of `text` have the same tokens whatever follows them: about
  /// `most`, so that long documents need no long buffers; all of it where no such place is known.
  [[nodiscard]] virtual size_t piece(std::string_view text, size_t most) const = 0;
  /// Appends the tokens of `text`, which is UTF-8 or a piece of it, without marks.
  virtual void append(std::string_view text, std::vector<int32_t>& tokens) const = 0;
  /// The text; marks and ids beyond the vocabulary give nothing.
  [[nodiscard]] virtual std::string text(std::span<const int64_t> tokens) const = 0;
};

class TESSERA_API ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kBegin = 256, kEnd = 257, kVocabulary = 258;
  /// The bytes alone, without marks.
  [[nodiscard]] static std::vector<int64_t> encode(std::string_view text);
  /// The bytes; marks and ids beyond the vocabulary give nothing.
  [[nodiscard]] static std::string decode(std::span<const int64_t> tokens);

  [[nodiscard]] int64_t vocabulary() const override { return kVocabulary; }
  [[nodiscard]] int64_t begin_id() const override { return kBegin; }
  [[nodiscard]] int64_t end_id() const override { return kEnd; }
  [[nodiscard]] size_t piece(std::string_view text, size_t most) const override {
    return text.size() < most ? text.size() : most;
  }
  void append(std::string_view text, std::vector<int32_t>& tokens) const override;
  [[nodiscard]] std::string text(std::span<const int64_t> tokens) const override {
    return decode(tokens);
  }
};

/// Text for a terminal: control characters but tab and newline become '.', invalid UTF-8 the
/// replacement character.
TESSERA_API std::string printable(std::string_view text);

}  // namespace tessera::train

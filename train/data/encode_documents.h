// SPDX-License-Identifier: Apache-2.0
// Tokenises documents in order, with special tokens around each. Threads share the pieces of a
// batch of text while the next batch is read, so memory holds two batches, however long a document
// is.
#pragma once

#include "tessera/train/tokenizer/document_tokens.h"

#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

/// A part of a document as tokens. The ids do not depend on how documents are cut into parts.
struct EncodedPart {
  std::span<const int32_t> ids;  ///< special tokens included
  bool begins = false, ends = false;
};

class TESSERA_API DocumentEncoder {
 public:
  /// `take` gets the parts in order, in calls of add() and finish().
  DocumentEncoder(const Tokenizer& tokenizer, const DocumentTokens& around, int threads,
                  std::function<void(const EncodedPart&)> take);
  DocumentEncoder(const DocumentEncoder&) = delete;
  DocumentEncoder& operator=(const DocumentEncoder&) = delete;

  /// Adds a document, which is not empty.
  void add(std::string_view document);
  /// Waits for all that was added. Otherwise it is dropped.
  void finish();

 private:
  struct Batch {
    std::string text;
    struct Piece {
      size_t end;  // in `text`
      bool begins, ends;
    };
    std::vector<Piece> pieces;
  };
  using Encoded = std::vector<std::vector<int32_t>>;

  void start();
  void take_encoded();

  const Tokenizer& tokenizer_;
  DocumentTokens around_;
  int threads_;
  std::function<void(const EncodedPart&)> take_;
  Batch filling_, encoding_;
  std::future<Encoded> encoded_;  // of encoding_; last, since it uses the others
};

}  // namespace tessera::train

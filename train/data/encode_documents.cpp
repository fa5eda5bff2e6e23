// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data/encode_documents.h"

namespace tessera::train {
namespace {

constexpr size_t kPiece = 1 << 16, kBatch = 1 << 22;  // bytes of text

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, const DocumentTokens& around,
                                 int threads, std::function<void(const EncodedPart&)> take)
    : tokenizer_(tokenizer), around_(around), threads_(threads), take_(std::move(take)) {}

void DocumentEncoder::add(std::string_view document) {
  for (size_t at = 0; at < document.size();) {
    const size_t n = tokenizer_.piece(document.substr(at), kPiece);
    filling_.text += document.substr(at, n);
    filling_.pieces.push_back({filling_.text.size(), at == 0, at + n == document.size()});
    at += n;
    if (filling_.text.size() >= kBatch) start();
  }
}

void DocumentEncoder::finish() {
  start();
  take_encoded();
}

void DocumentEncoder::start() {
  take_encoded();
  std::swap(filling_, encoding_);
  filling_ = {};
  encoded_ = std::async(std::launch::async, [this] {
    std::vector<std::string_view> texts;
    size_t begin = 0;
    for (const Batch::Piece& piece : encoding_.pieces) {
      texts.push_back(std::string_view(encoding_.text).substr(begin, piece.end - begin));
      begin = piece.end;
    }
    Encoded ids = tokenize_all(tokenizer_, texts, threads_);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (encoding_.pieces[i].begins && around_.begin >= 0)
        ids[i].insert(ids[i].begin(), static_cast<int32_t>(around_.begin));
      if (encoding_.pieces[i].ends && around_.end >= 0)
        ids[i].push_back(static_cast<int32_t>(around_.end));
    }
    return ids;
  });
}

void DocumentEncoder::take_encoded() {
  if (!encoded_.valid()) return;
  const Encoded ids = encoded_.get();
  for (size_t i = 0; i < ids.size(); ++i)
    take_({ids[i], encoding_.pieces[i].begins, encoding_.pieces[i].ends});
}

}  // namespace tessera::train

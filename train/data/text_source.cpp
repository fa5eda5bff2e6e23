// SPDX-License-Identifier: Apache-2.0
// Text is tokenised once into one array, with two bytes per id if the vocabulary allows, and a
// sorted list of document starts.
#include "tessera/core/error.h"
#include "tessera/train/data/encode_documents.h"
#include "tessera/train/data/text_reader.h"
#include "tessera/train/data/token_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

template <class Id> class TextSource final : public TokenSource {
 public:
  TextSource(const DataFiles& files, const Tokenizer& tokenizer, const SourceOptions& options,
             const std::stop_token& stop)
      : around_(document_tokens(options.document_tokens, tokenizer, kDocumentTokensField)) {
    // At most about one token per byte: unwritten pages cost no memory, but growing would.
    size_t most = 0;
    for (const std::string& path : files.paths) {
      std::error_code error;
      const auto bytes = fs::file_size(path, error);
      if (!error && !path.ends_with(".gz")) most += bytes + 2;  // and two marks
    }
    stream_.reserve(most);
    DocumentEncoder encoder(tokenizer, around_, options.threads, [&](const EncodedPart& part) {
      if (part.begins) {
        drop_empty();
        starts_.push_back(tokens());
      }
      stream_.insert(stream_.end(), part.ids.begin(), part.ids.end());
    });
    for (const std::string& path : files.paths) {
      read_documents(
          path, options.text_field, [&](std::string_view text) { encoder.add(text); }, stop);
      if (stop.stop_requested()) return;
    }
    encoder.finish();
    drop_empty();
  }

  [[nodiscard]] int64_t tokens() const override { return static_cast<int64_t>(stream_.size()); }
  [[nodiscard]] int64_t row_length() const override { return 0; }
  [[nodiscard]] int64_t documents() const override { return static_cast<int64_t>(starts_.size()); }
  [[nodiscard]] std::optional<DocumentTokens> around() const override { return around_; }
  void read(int64_t from, std::span<int64_t> to, std::span<uint8_t> starts) const override {
    std::copy_n(stream_.begin() + from, to.size(), to.begin());
    std::ranges::fill(starts, uint8_t{0});
    const int64_t end = from + static_cast<int64_t>(to.size());
    for (auto at = std::ranges::lower_bound(starts_, from); at != starts_.end() && *at < end; ++at)
      starts[static_cast<size_t>(*at - from)] = 1;
  }

 private:
  // The document that was begun last, if it has given no tokens: there is nothing to learn of it.
  void drop_empty() {
    if (!starts_.empty() && starts_.back() == tokens()) starts_.pop_back();
  }

  DocumentTokens around_;
  std::vector<Id> stream_;
  std::vector<int64_t> starts_;
};

}  // namespace

std::unique_ptr<TokenSource> text_source(const DataFiles& files, const Tokenizer& tokenizer,
                                         const SourceOptions& options,
                                         const std::stop_token& stop) {
  if (tokenizer.vocabulary() <= UINT16_MAX + 1)
    return std::make_unique<TextSource<uint16_t>>(files, tokenizer, options, stop);
  return std::make_unique<TextSource<int32_t>>(files, tokenizer, options, stop);
}

}  // namespace tessera::train

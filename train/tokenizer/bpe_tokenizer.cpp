// SPDX-License-Identifier: Apache-2.0
// The pipeline of tokenizer.json: added tokens are cut out, the rest is normalised, split into
// words and encoded. Threads share all but buffers and caches, which they borrow for a call.
#include "tessera/train/tokenizer/tokenizer_file_impl.h"

#include <algorithm>
#include <mutex>

namespace tessera::train {
namespace {

constexpr std::string_view kMark = "\xE2\x96\x81";

std::vector<AddedToken> those_of(const std::vector<AddedToken>& all, const Normalizer& normalizer,
                                 bool normalised) {
  std::vector<AddedToken> out;
  for (AddedToken t : all) {
    if (t.normalised != normalised) continue;
    if (normalised) t.content = normalizer.apply(t.content);
    if (!t.content.empty()) out.push_back(std::move(t));
  }
  return out;
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(BpeParts parts, std::vector<TokenizerFile> files)
      : parts_(std::move(parts)),
        files_(std::move(files)),
        bpe_(std::move(parts_.model)),
        raw_(those_of(parts_.added, parts_.normalizer, false)),
        normalised_(those_of(parts_.added, parts_.normalizer, true)),
        marks_(parts_.bytes.size()) {
    for (const AddedToken& t : parts_.added) marks_[static_cast<size_t>(t.id)] = t.special;
    cuts_ = parts_.normalizer.allows_cuts() && parts_.pre_tokenizer.allows_cuts() &&
            !raw_.may_cross_a_cut() && !normalised_.may_cross_a_cut();
    // Words that no merge joins may be encoded apart, and found in the cache.
    const auto& tokens = bpe_.model().tokens;
    splits_at_marks_ = !bpe_.model().of_bytes && !bpe_.model().whole_words &&
                       std::ranges::find(tokens, kMark) != tokens.end();
  }

  [[nodiscard]] int64_t vocabulary() const override {
    return static_cast<int64_t>(parts_.bytes.size());
  }
  [[nodiscard]] int64_t begin_id() const override { return parts_.begin; }
  [[nodiscard]] int64_t end_id() const override { return parts_.end; }

  [[nodiscard]] size_t piece(std::string_view text, size_t most) const override {
    if (!cuts_ || text.size() <= most) return text.size();
    const auto letter = [&](size_t i) {
      return (static_cast<unsigned char>(text[i]) | 32u) - 'a' < 26;
    };
    for (size_t i = most < 1 ? 1 : most; i + 1 < text.size(); ++i) {
      if (text[i] == ' ' && letter(i - 1) && letter(i + 1)) return i;
    }
    return text.size();
  }

  void append(std::string_view text, std::vector<int32_t>& tokens) const override {
    const Borrowed scratch(*this);
    raw_.split(text, [&](std::string_view part, int32_t id) {
      if (id >= 0) return tokens.push_back(id);
      const bool begins = part.data() == text.data();
      if (parts_.normalizer.empty()) return add_normalised(part, begins, *scratch, tokens);
      add_normalised(parts_.normalizer.apply(part), begins, *scratch, tokens);
    });
  }

  [[nodiscard]] std::string text(std::span<const int64_t> tokens) const override {
    std::string out;
    for (const int64_t id : tokens) {
      if (!is_mark(id)) out += bytes(id);
    }
    if (parts_.drops_first_space && out.starts_with(' ')) out.erase(0, 1);
    return out;
  }
  [[nodiscard]] std::string bytes(int64_t id) const override {
    return id >= 0 && id < vocabulary() ? parts_.bytes[static_cast<size_t>(id)] : std::string();
  }
  [[nodiscard]] bool is_mark(int64_t id) const override {
    return id >= 0 && id < vocabulary() && marks_[static_cast<size_t>(id)];
  }
  [[nodiscard]] std::span<const TokenizerFile> files() const override { return files_; }

 private:
  struct Scratch {
    PreTokenizer::Buffers buffers;
    Bpe::Cache cache;
  };
  // One of the scratches that no thread uses now, or a new one.
  class Borrowed {
   public:
    explicit Borrowed(const BpeTokenizer& owner) : owner_(owner) {
      const std::lock_guard lock(owner_.mutex_);
      if (owner_.idle_.empty()) owner_.idle_.push_back(std::make_unique<Scratch>());
      scratch_ = std::move(owner_.idle_.back());
      owner_.idle_.pop_back();
    }
    ~Borrowed() {
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(std::move(scratch_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Scratch& operator*() const { return *scratch_; }

   private:
    const BpeTokenizer& owner_;
    std::unique_ptr<Scratch> scratch_;
  };

  void add_normalised(std::string_view text, bool begins, Scratch& scratch,
                      std::vector<int32_t>& tokens) const {
    normalised_.split(text, [&](std::string_view part, int32_t id) {
      if (id >= 0) return tokens.push_back(id);
      parts_.pre_tokenizer.split(part, begins && part.data() == text.data(), scratch.buffers);
      for (const std::string_view word : scratch.buffers.words) encode(word, scratch.cache, tokens);
    });
  }

  void encode(std::string_view word, Bpe::Cache& cache, std::vector<int32_t>& tokens) const {
    size_t begin = 0;
    for (size_t at = 1; splits_at_marks_ && (at = word.find(kMark, at)) != word.npos; ++at) {
      if (bpe_.joins_space_mark(static_cast<unsigned char>(word[at - 1]))) continue;
      bpe_.encode(word.substr(begin, at - begin), cache, tokens);
      begin = at;
    }
    bpe_.encode(word.substr(begin), cache, tokens);
  }

  BpeParts parts_;
  std::vector<TokenizerFile> files_;
  Bpe bpe_;
  AddedTokens raw_, normalised_;  // found in the text as it is, and in the normalised text
  std::vector<char> marks_;       // of each id: whether it is one
  bool cuts_ = false;             // text may be cut at spaces
  bool splits_at_marks_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(std::vector<TokenizerFile> files) {
  if (files.empty()) return std::make_shared<ByteTokenizer>();
  BpeParts parts = parse_tokenizer_files(files);
  return std::make_shared<BpeTokenizer>(std::move(parts), std::move(files));
}

}  // namespace tessera::train

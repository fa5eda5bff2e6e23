// SPDX-License-Identifier: Apache-2.0
// The pipeline of tokenizer.json: added tokens are cut out, the rest is normalised, split into
// words and encoded. Threads share all but buffers and caches, which they borrow for a call.
#include "tessera/core/error.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/tokenizer/tokenizer_file_impl.h"

#include <algorithm>
#include <mutex>

namespace tessera::train {
namespace {

constexpr std::string_view kMark = "\xE2\x96\x81";

enum class Which { all, words };  // words: not the marks

std::vector<AddedToken> those_of(const std::vector<AddedToken>& all, const Normalizer& normalizer,
                                 bool normalised, Which which) {
  std::vector<AddedToken> out;
  for (AddedToken t : all) {
    if (t.normalised != normalised || (which == Which::words && t.special)) continue;
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
        all_(parts_, Which::all),
        words_(parts_, Which::words),
        marks_(parts_.bytes.size()) {
    parts_.names = {};  // nobody asks for them
    for (const AddedToken& t : parts_.added) marks_[static_cast<size_t>(t.id)] = t.special;
    cuts_ = parts_.normalizer.allows_cuts() && parts_.pre_tokenizer.allows_cuts() &&
            !all_.raw.may_cross_a_cut() && !all_.normalised.may_cross_a_cut();
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
  [[nodiscard]] bool begins_texts() const override {
    return parts_.begin >= 0 && parts_.begins_documents;
  }

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
    add(text, true, all_, tokens);
  }
  void append_untrusted(std::string_view text, bool first,
                        std::vector<int32_t>& tokens) const override {
    const size_t before = tokens.size();
    add(text, first, words_, tokens);
    for (size_t i = before; i < tokens.size(); ++i) {
      if (!is_mark(tokens[i]) || tokens[i] == bpe_.model().unknown) continue;
      fail<DataError>("tokenizer", "the text '", io::excerpt(text, 40), "' gives the mark ",
                      io::excerpt(bytes(tokens[i]), 40),
                      ", which its merges make of plain characters; only a template may write it");
    }
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
  [[nodiscard]] int64_t mark(std::string_view name) const override {
    const auto at = std::ranges::find_if(
        parts_.added, [&](const AddedToken& t) { return t.special && t.content == name; });
    return at == parts_.added.end() ? -1 : at->id;
  }
  [[nodiscard]] std::span<const TokenizerFile> files() const override { return files_; }

 private:
  // Tokens that are found in the text as it is, and in the normalised text.
  struct Added {
    Added(const BpeParts& parts, Which which)
        : raw(those_of(parts.added, parts.normalizer, false, which)),
          normalised(those_of(parts.added, parts.normalizer, true, which)) {}
    AddedTokens raw, normalised;
  };
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

  void add(std::string_view text, bool first, const Added& added,
           std::vector<int32_t>& tokens) const {
    const Borrowed scratch(*this);
    added.raw.split(text, [&](std::string_view part, int32_t id) {
      if (id >= 0) return tokens.push_back(id);
      const bool begins = first && part.data() == text.data();
      if (parts_.normalizer.empty()) return add_normalised(part, begins, added, *scratch, tokens);
      add_normalised(parts_.normalizer.apply(part), begins, added, *scratch, tokens);
    });
  }

  void add_normalised(std::string_view text, bool begins, const Added& added, Scratch& scratch,
                      std::vector<int32_t>& tokens) const {
    added.normalised.split(text, [&](std::string_view part, int32_t id) {
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
  Added all_, words_;        // words_: without the marks
  std::vector<char> marks_;  // of each id: whether it is one
  bool cuts_ = false;        // text may be cut at spaces
  bool splits_at_marks_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(std::vector<TokenizerFile> files) {
  if (files.empty()) return std::make_shared<ByteTokenizer>();
  BpeParts parts = parse_tokenizer_files(files);
  if (!parts.reads_older) {
    std::erase_if(files, [](const TokenizerFile& f) {
      return f.name == kSpecialTokensMap || f.name == kAddedTokens;
    });
  }
  return std::make_shared<BpeTokenizer>(std::move(parts), std::move(files));
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// Prompts of one length need no padding and share one cache. When it is full, it restarts with the
// last half of the context. The key of a draw is (seed, index of the prompt, index of the token),
// so it does not depend on the other prompts. On a mesh all ranks run the model and take the
// choices of its first rank, so that they cannot part.
#include "tessera/train/generate/generate.h"

#include "tessera/core/rng.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/views/views.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tessera::train {
namespace {

// Prompts of one length, which grow in step.
class Batch {
 public:
  // `prompts`: the tokens of all prompts, of which `rows` have equal lengths.
  Batch(const models::LanguageModel& model, const GenerateOptions& options,
        std::span<const std::vector<int64_t>> prompts, std::vector<size_t> rows)
      : model_(model),
        options_(options),
        context_(std::min(options.context, model.max_seq_len())),
        rows_(std::move(rows)),
        ended_(rows_.size(), false) {
    for (const size_t row : rows_) tokens_.push_back(prompts[row]);
  }

  void run(std::vector<std::string>& texts, const OnToken& on_token) {
    for (int64_t made = 0; made < options_.tokens && !std::ranges::all_of(ended_, std::identity());
         ++made) {
      const Tensor logits = next_logits();                        // (B, V)
      const Tensor chosen = empty({logits.size(0)}, DType::i64);  // (B)
      for (size_t i = 0; i < rows_.size(); ++i)
        chosen.data<int64_t>()[i] = choose(i, logits, static_cast<uint64_t>(made));
      agree_on(chosen);
      for (size_t i = 0; i < rows_.size(); ++i) {
        if (!ended_[i]) take(i, chosen.data<int64_t>()[i]);
        // A text that has ended keeps its row until all have ended.
        if (ended_[i]) {
          tokens_[i].push_back(std::max<int64_t>(0, tokenizer().end_id()));
          continue;
        }
        const int64_t last = tokens_[i].back();
        const std::string bytes = tokenizer().is_mark(last) ? "" : tokenizer().bytes(last);
        texts[rows_[i]] += bytes;
        if (on_token) on_token(rows_[i], bytes);
      }
    }
  }

 private:
  [[nodiscard]] const Tokenizer& tokenizer() const { return *options_.tokenizer; }
  [[nodiscard]] int64_t choose(size_t i, const Tensor& logits, uint64_t made) const {
    if (ended_[i]) return 0;  // not looked at
    const auto row = static_cast<int64_t>(i);
    // The model's table may be longer than the tokenizer's vocabulary.
    const Tensor known = slice(slice(logits, 0, {row, row + 1}), 1,
                               {0, std::min(tokenizer().vocabulary(), logits.size(1))});
    const RngKey key{options_.seed, stream_of(concat("generate.", rows_[i]))};
    return draw(candidates(known.values(), options_.sampling()), rng::uniform4(key, made).v[0]);
  }

  void agree_on(const Tensor& chosen) const {
    const Mesh mesh = model_.placement().mesh;
    if (!mesh || mesh.size() == 1) return;
    std::vector<int> axes(static_cast<size_t>(mesh.axes()));
    std::iota(axes.begin(), axes.end(), 0);
    mesh.group(axes).broadcast(chosen, 0)->wait();
  }

  void take(size_t i, int64_t next) {
    const bool ends = next == tokenizer().end_id() || std::ranges::count(options_.ends, next) > 0 ||
                      (options_.chat && next == options_.chat->end_of_answer());
    if (ends) ended_[i] = true;
    else tokens_[i].push_back(next);
  }

  // The logits after the tokens that are not yet in the cache; adds them to the cache.
  Tensor next_logits() {
    const auto length = static_cast<int64_t>(tokens_[0].size());
    const models::Placement at_model = model_.placement();
    const bool fresh = cache_.layers.empty();
    const auto held = fresh ? 0 : cache_.layers[0].length;
    if (fresh || held + length - seen_ > context_) {
      // A full cache restarts with the last tokens, so that each is computed at most twice.
      const int64_t kept = fresh ? context_ : (context_ + 1) / 2;
      cache_ = model_.make_cache(std::min(context_, length + options_.tokens));
      if (options_.cut) {
        nn::ContextParallelOptions cut = *options_.cut;
        cut.device = at_model.device;
        cache_.cut.emplace(std::move(cut));
      }
      seen_ = length - std::min(kept, length);
    }
    Tensor ids = empty({static_cast<int64_t>(rows_.size()), length - seen_}, DType::i64);  // (B, T)
    auto* at = ids.data<int64_t>();
    for (const auto& row : tokens_) at = std::copy(row.begin() + seen_, row.end(), at);
    seen_ = length;
    ids = to_device(ids, at_model.device);
    if (at_model.mesh) ids = distribute(ids, Layout::replicated(at_model.mesh));
    const Tensor logits = model_.next_logits(ids, cache_);  // (B, 1, V)
    // Tokens are chosen on the host.
    return to_device(select(logits.is_distributed() ? full_tensor(logits) : logits, 1, 0), kCpu);
  }

  const models::LanguageModel& model_;
  const GenerateOptions& options_;
  int64_t context_;
  std::vector<size_t> rows_;  // numbers of the prompts
  std::vector<std::vector<int64_t>> tokens_;
  std::vector<char> ended_;
  models::Cache cache_;
  int64_t seen_ = 0;  // tokens that the cache holds or has dropped
};

// Number of bytes at the end of `text` that begin an incomplete UTF-8 character.
size_t begun_character(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if ((c & 0xC0) == 0x80) continue;
    const size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

void check(const GenerateOptions& o) {
  if (o.tokens < 0) fail<ValueError>("generate", "tokens is ", o.tokens, ", expected 0 or more");
  if (o.context < 1)
    fail<ValueError>("generate", "context is ", o.context, ", expected at least 1 token");
  check(o.sampling());
}

std::vector<int64_t> prompt_tokens(const GenerateOptions& options, const std::string& prompt) {
  const Tokenizer& tokenizer = *options.tokenizer;
  std::vector<int32_t> ids;
  if (options.chat) {
    ids = options.chat->prompt({{Role::user, prompt}});
    return {ids.begin(), ids.end()};
  }
  tokenizer.append(prompt, ids);
  std::vector<int64_t> tokens(ids.begin(), ids.end());
  if (options.begins.value_or(tokenizer.begins_texts()))
    tokens.insert(tokens.begin(), tokenizer.begin_id());
  // Without a mark of its own, a document begins where another has ended.
  else if (tokens.empty() && tokenizer.end_id() >= 0) tokens = {tokenizer.end_id()};
  return tokens;
}

std::vector<std::string> generate(models::LanguageModel& model,
                                  std::span<const std::string> prompts,
                                  const GenerateOptions& given, const OnToken& on_token) {
  check(given);
  GenerateOptions options = given;
  if (!options.tokenizer) options.tokenizer = std::make_shared<ByteTokenizer>();
  std::vector<std::vector<int64_t>> tokens;
  for (const std::string& prompt : prompts) {
    tokens.push_back(prompt_tokens(options, prompt));
    if (tokens.back().empty())
      fail<ValueError>("generate", "the prompt has no tokens; give a text");
  }
  const NoGrad guard;
  const nn::EvalMode evaluating(model);
  // Batches in the order of their first prompts, so that the first prompt's text comes first.
  std::vector<std::vector<size_t>> batches;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto alike = std::ranges::find_if(
        batches, [&](const auto& rows) { return tokens[rows[0]].size() == tokens[i].size(); });
    if (alike == batches.end()) batches.push_back({i});
    else alike->push_back(i);
  }
  std::vector<std::string> texts(prompts.size());
  for (const auto& rows : batches) {
    Batch batch(model, options, tokens, rows);
    batch.run(texts, on_token);
  }
  return texts;
}

std::string generate(models::LanguageModel& model, std::string_view prompt,
                     const GenerateOptions& options) {
  const std::string one(prompt);
  return std::move(generate(model, std::span(&one, 1), options)[0]);
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  const size_t whole = held_.size() - begun_character(held_);
  std::string shown = printable(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return shown;
}

std::string Utf8Stream::finish() {
  std::string shown = printable(held_);
  held_.clear();
  return shown;
}

}  // namespace tessera::train

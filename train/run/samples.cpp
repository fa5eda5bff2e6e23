// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/samples.h"

#include "tessera/core/message.h"
#include "tessera/train/generate/generate.h"

#include <fmt/format.h>

namespace tessera::train {
namespace {

// Empty: samples can be made.
std::string why_none(const Tokenizer& tokenizer, int64_t known) {
  if (const int64_t ids = tokenizer.vocabulary(); ids > known)
    return fmt::format("the tokenizer has {}, the model {}", counted(ids, "token"), known);
  return std::string(tokenizer.missing());
}

}  // namespace

void print_samples(const RunFacts& run, models::LanguageModel& model, const Print& print) {
  const SampleConfig& c = run.config.sample;
  if (c.tokens == 0) return;
  if (const std::string why = why_none(*run.tokenizer, run.config.model.vocab_size());
      !why.empty()) {
    print(fmt::format("no samples: {}", why));
    return;
  }
  GenerateOptions options{
      .tokens = c.tokens,
      .temperature = 0,
      .top_k = c.top_k,
      .top_p = c.top_p,
      .context = run.config.training.seq_len,
      .seed = static_cast<uint64_t>(run.config.debug.seed),
      .tokenizer = run.tokenizer,
      .begins = documents_begin(run.config.dataloader.document_tokens, *run.tokenizer),
      .ends = end_ids(run.config.special_tokens, *run.tokenizer, -1),
      .chat = run.chat,
      .cut = run.config.parallelism.sequence_cut()};
  if (prompt_tokens(options, c.prompt).empty()) {
    print("no samples: --sample.prompt is empty, and no token begins a text of this run");
    return;
  }
  const auto sample = [&] {
    return printable(concat(c.prompt, run.chat ? "\n" : "", generate(model, c.prompt, options)));
  };
  print(fmt::format("greedy text:\n{}", sample()));
  options.temperature = c.temperature;
  print(
      fmt::format("sampled text (temperature {}, top {}):\n{}", c.temperature, c.top_k, sample()));
}

}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/generate/generate.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/error.h"
#include "tessera/core/rng.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/gpt2/gpt2.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace tessera::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> logs(std::vector<double> probabilities) {
  for (double& p : probabilities) p = std::log(p);
  return probabilities;
}

TEST(Sampling, CandidatesHaveTheExactProbabilities) {
  const auto logits = logs({0.1, 0.4, 0.2, 0.3});
  const auto all = candidates(logits, {.temperature = 1, .top_k = 9, .top_p = 1});
  ASSERT_EQ(all.size(), 4u);
  const std::vector<std::pair<int64_t, double>> expected{{1, 0.4}, {3, 0.3}, {2, 0.2}, {0, 0.1}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].token, expected[i].first);
    EXPECT_NEAR(all[i].probability, expected[i].second, 1e-15);
  }
  // Half the temperature squares them: 16, 9, 4, 1 of 30.
  const auto sharp = candidates(logits, {.temperature = 0.5, .top_k = 4, .top_p = 1});
  EXPECT_NEAR(sharp[0].probability, 16.0 / 30, 1e-15);
  EXPECT_NEAR(sharp[3].probability, 1.0 / 30, 1e-15);
}

TEST(Sampling, TopKThenTopP) {
  const auto logits = logs({0.1, 0.4, 0.2, 0.3});
  const auto three = candidates(logits, {.temperature = 1, .top_k = 3, .top_p = 1});
  ASSERT_EQ(three.size(), 3u);
  EXPECT_NEAR(three[0].probability, 4.0 / 9, 1e-15);
  // Of 4/9, 3/9, 2/9 two hold 0.7; of 0.4, 0.3, 0.2, 0.1 it takes three to hold more than that.
  const auto two = candidates(logits, {.temperature = 1, .top_k = 3, .top_p = 0.7});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_NEAR(two[0].probability, 4.0 / 7, 1e-15);
  EXPECT_EQ(candidates(logits, {.temperature = 1, .top_k = 4, .top_p = 0.75}).size(), 3u);
  // The likeliest always stays, and nearly 1 leaves nearly all.
  EXPECT_EQ(candidates(logits, {.temperature = 1, .top_k = 4, .top_p = 1e-12}).size(), 1u);
  EXPECT_EQ(candidates(logits, {.temperature = 1, .top_k = 4, .top_p = 0.999}).size(), 4u);
}

TEST(Sampling, TiesZeroTemperatureAndImpossibleTokens) {
  const std::vector<double> tied{1, 5, 5, -kInfinity};
  EXPECT_EQ(candidates(tied, {.temperature = 0})[0].token, 1);
  EXPECT_EQ(candidates(tied, {.temperature = 0}).size(), 1u);
  const auto all = candidates(tied, {.temperature = 1, .top_k = 4});
  EXPECT_EQ(all[0].token, 1);
  EXPECT_EQ(all[1].token, 2);
  EXPECT_EQ(all[3].probability, 0);
  EXPECT_NE(draw(all, std::nextafter(1.0, 0.0)), 3);
  // A temperature so low that all but the top vanish.
  EXPECT_EQ(candidates(tied, {.temperature = 1e-300, .top_k = 4})[2].probability, 0);
}

TEST(Sampling, DrawsFollowTheProbabilities) {
  const auto all = candidates(logs({0.1, 0.4, 0.2, 0.3}), {.temperature = 1, .top_k = 3});
  EXPECT_EQ(draw(all, 0), 1);
  EXPECT_EQ(draw(all, 0.45), 3);
  EXPECT_EQ(draw(all, 0.99), 2);
  std::map<int64_t, int> counts;
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i)
    ++counts[draw(all, rng::uniform4({1, 2}, static_cast<uint64_t>(i)).v[0])];
  EXPECT_EQ(counts.size(), 3u);
  // Five standard deviations of a binomial share.
  for (const Candidate& c : all) {
    const double sigma = std::sqrt(c.probability * (1 - c.probability) / kDraws);
    EXPECT_NEAR(counts[c.token] / double{kDraws}, c.probability, 5 * sigma) << c.token;
  }
}

TEST(Sampling, BadOptionsAndLogitsAreTypedErrors) {
  const std::vector<double> logits{1, 2};
  EXPECT_THROW(check(SamplingOptions{.temperature = -0.1}), ValueError);
  EXPECT_THROW(check(SamplingOptions{.temperature = kInfinity}), ValueError);
  EXPECT_THROW(check(SamplingOptions{.top_k = 0}), ValueError);
  for (const double p : {0.0, -1.0, 1.001, std::nan("")})
    EXPECT_THROW(check(SamplingOptions{.top_p = p}), ValueError) << p;
  EXPECT_THROW(check(GenerateOptions{.tokens = -1}), ValueError);
  EXPECT_THROW(check(GenerateOptions{.context = 0}), ValueError);
  EXPECT_THROW((void)candidates({}, {}), ValueError);
  EXPECT_THROW((void)candidates(std::vector{1.0, std::nan("")}, {}), NumericError);
  EXPECT_THROW((void)candidates(std::vector{1.0, kInfinity}, {}), NumericError);
  EXPECT_THROW((void)candidates(std::vector{-kInfinity}, {}), NumericError);
}

class GenerateTest : public testing::Test {
 protected:
  GenerateTest()
      : model_({.dim = 32,
                .n_layers = 2,
                .n_heads = 4,
                .n_kv_heads = 2,
                .ffn_dim = 48,
                .vocab_size = 300,
                .max_seq_len = 64}) {
    nn::initialize(model_, 3);
  }
  // The same text by a model that computes every token that it sees anew for each token that it
  // writes, without a cache. It sees the last tokens, as many as the context has; where one more
  // does not fit, it goes on with the last half of them.
  static std::string without_cache(const models::LanguageModel& model, std::string_view prompt,
                                   size_t row, const GenerateOptions& o) {
    const NoGrad guard;
    std::vector<int64_t> tokens;
    if (o.begins.value_or(true)) tokens.push_back(ByteTokenizer::kBegin);
    for (int64_t t : ByteTokenizer::encode(prompt)) tokens.push_back(t);
    const size_t given = tokens.size(),
                 context = static_cast<size_t>(std::min(o.context, model.max_seq_len()));
    size_t first = given - std::min(given, context);
    for (int64_t i = 0; i < o.tokens; ++i) {
      if (tokens.size() - first > context) first = tokens.size() - (context + 1) / 2;
      const auto seen = std::span(tokens).subspan(first);
      Tensor ids = empty({1, std::ssize(seen)}, DType::i64);
      std::ranges::copy(seen, ids.data<int64_t>());
      const Tensor logits = slice(select(select(model.forward(ids), 0, 0), 0, -1), 0,
                                  {0, ByteTokenizer::kVocabulary});
      const RngKey key{o.seed, stream_of(concat("generate.", row))};
      const int64_t next = draw(candidates(logits.values(), o.sampling()),
                                rng::uniform4(key, static_cast<uint64_t>(i)).v[0]);
      if (next == ByteTokenizer::kEnd) break;
      tokens.push_back(next);
    }
    return ByteTokenizer::decode(std::span(tokens).subspan(given));
  }
  std::string without_cache(std::string_view prompt, size_t row, const GenerateOptions& o) {
    return without_cache(model_, prompt, row, o);
  }
  Session session_{{.threads = 1}};
  llama3::Model model_;
};

TEST_F(GenerateTest, ABatchGivesWhatEachPromptGivesAlone) {
  const std::vector<std::string> prompts{"ab", "", "xyz", "cd", "ab"};
  const GenerateOptions options{
      .tokens = 20, .temperature = 0.9, .top_k = 50, .top_p = 0.95, .context = 64, .seed = 5};
  const auto texts = generate(model_, prompts, options);
  ASSERT_EQ(texts.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(texts[i], without_cache(prompts[i], i, options)) << i;
  EXPECT_NE(texts[0], texts[4]);  // each prompt has draws of its own
  EXPECT_EQ(generate(model_, prompts, options), texts);
  GenerateOptions other = options;
  other.seed = 6;
  EXPECT_NE(generate(model_, prompts, other), texts);
}

TEST_F(GenerateTest, EveryTokenIsGivenAsItComes) {
  const std::vector<std::string> prompts{"a", "b", "long one"};
  std::vector<std::string> seen(3);
  const auto texts = generate(model_, prompts, {.tokens = 9, .temperature = 1, .context = 64},
                              [&](size_t row, std::string_view bytes) { seen[row] += bytes; });
  EXPECT_EQ(seen, texts);
}

TEST_F(GenerateTest, PromptsBeginAsDocumentsDid) {
  GenerateOptions options{.tokens = 20, .temperature = 0.9, .context = 64, .seed = 5};
  const ByteTokenizer bytes;
  int others = 0;
  for (char c = 'a'; c <= 'z'; ++c) {
    const std::string prompt(3, c);
    std::vector<std::string> texts;
    for (const char* words : {"both", "end"}) {
      options.begins = documents_begin(words, bytes);
      texts.push_back(generate(model_, prompt, options));
      EXPECT_EQ(texts.back(), without_cache(prompt, 0, options)) << words << ' ' << prompt;
    }
    others += texts[0] != texts[1];
  }
  EXPECT_GT(others, 0);
}

// Of positions by rotation, which are relative, and by a table, which ends at the context.
TEST_F(GenerateTest, BeyondTheContextItGoesOnWithTheLastHalf) {
  gpt2::Model learned(
      {.dim = 32, .n_layers = 2, .n_heads = 4, .vocab_size = 300, .max_seq_len = 12});
  llama3::Model rotary({.dim = 32,
                        .n_layers = 2,
                        .n_heads = 4,
                        .n_kv_heads = 2,
                        .ffn_dim = 48,
                        .vocab_size = 300,
                        .max_seq_len = 12});
  for (models::LanguageModel* model :
       std::initializer_list<models::LanguageModel*>{&learned, &rotary}) {
    nn::initialize(*model, 3);
    // So that a token depends on all that are seen and on their places, not on the last one alone.
    const NoGrad guard;
    for (const auto& [name, weight] : nn::named_parameters(*model))
      if (weight.rank() > 1) assign_(weight, weight * 8);
    int beyond = 0;
    // Odd and even; the model's own; more than it has.
    for (const int64_t context : {1, 2, 7, 8, 12, 1000}) {
      const GenerateOptions options{
          .tokens = 40, .temperature = 1, .top_k = 300, .context = context, .seed = 5};
      // With the mark of the begin: shorter than the context, as long, one longer, much longer.
      const std::vector<std::string> prompts{
          "", "abcdefg", "gfedcba", "abcdefghijk", "abcdefghijkl", std::string(30, 'q') + "z"};
      const auto texts = generate(*model, prompts, options);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(texts[i], without_cache(*model, prompts[i], i, options))
            << "context " << context << ", prompt '" << prompts[i] << "'";
        beyond += texts[i].size() > 12;
      }
    }
    EXPECT_GT(beyond, 30);  // of 36; others ended before
  }
}

TEST_F(GenerateTest, EdgesOfLengths) {
  EXPECT_EQ(generate(model_, "abc", {.tokens = 0}), "");
  EXPECT_TRUE(generate(model_, std::span<const std::string>(), {}).empty());
  EXPECT_THROW((void)generate(model_, "a", {.tokens = 1, .temperature = 1, .top_p = 0}),
               ValueError);
}

TEST_F(GenerateTest, APromptWithoutTokensIsAnErrorIfNoMarkStandsBeforeATextOrBehindIt) {
  const auto tokenizer =
      make_tokenizer({{"vocab.json", R"({"a": 0})"},
                      {"merges.txt", ""},
                      {"tokenizer_config.json", R"({"bos_token": null, "eos_token": null})"}});
  const auto error = [&](const std::string& prompt) {
    return test::error_of<ValueError>([&] {
      (void)generate(model_, prompt, {.tokens = 1, .tokenizer = tokenizer, .begins = false});
    });
  };
  EXPECT_EQ(error(""), "[generate] the prompt has no tokens; give a text");
  EXPECT_EQ(error("a"), "nothing was thrown");
}

TEST(Utf8StreamTest, NeverGivesHalfACharacter) {
  const std::string text =
      "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z\x80\xE0\x80"
      "A\xF0\x9F";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    Utf8Stream stream;
    std::string all;
    for (size_t i = 0; i < text.size(); i += piece) {
      const std::string shown = stream.push(std::string_view(text).substr(i, piece));
      EXPECT_EQ(printable(shown), shown);  // whole characters only
      all += shown;
    }
    all += stream.finish();
    EXPECT_EQ(all, printable(text)) << piece;
    EXPECT_EQ(stream.finish(), "");
  }
}

}  // namespace
}  // namespace tessera::train

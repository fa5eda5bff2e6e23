// SPDX-License-Identifier: Apache-2.0
// Rows of fine-tuning sets, taken apart again: each example once, whole, with the targets of its
// answers alone.
#include "tessera/core/context.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/data/data.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <random>

namespace tessera::train {
namespace {

using Ids = std::vector<int64_t>;
using Example = std::pair<Ids, Ids>;  // inputs and targets
constexpr int64_t kNone = -100;

Ids ids_of(const Tensor& t) {
  const auto* data = t.data<int64_t>();
  return {data, data + t.numel()};
}

class FineTuningRowsTest : public test::FolderTest {
 protected:
  [[nodiscard]] std::string put_pairs(
      const std::vector<std::pair<std::string, std::string>>& pairs) const {
    std::string lines;
    for (const auto& [prompt, completion] : pairs)
      lines += nlohmann::json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
    return put("pairs.jsonl", lines);
  }
  static DataConfig config(const std::string& path,
                           const std::string& format = "prompt_completion") {
    return {.path = path, .format = format};
  }
  static BatchPlan plan(int64_t seq_len, int64_t rows = 1) {
    return {.seq_len = seq_len, .vocabulary = 260, .global_rows = rows, .rows = rows, .seed = 5};
  }
  // Its inputs and targets by the plain template, cut to seq_len inputs.
  static Example example_of(const std::string& prompt, const std::string& completion,
                            size_t seq_len) {
    Ids ids = ByteTokenizer::encode(prompt + completion);
    ids.insert(ids.begin(), 256);
    ids.push_back(257);
    Ids targets(ids.begin() + 1, ids.end());
    ids.pop_back();
    std::fill_n(targets.begin(), prompt.size(), kNone);
    if (ids.size() > seq_len) ids.resize(seq_len), targets.resize(seq_len);
    return {ids, targets};
  }
  // The examples of all rows of a batch, by their documents; those without a target are padding.
  static void take_apart(const Batch& batch, std::map<Example, int>& examples) {
    const Ids tokens = ids_of(batch.tokens), targets = ids_of(batch.targets),
              positions = ids_of(batch.positions), documents = ids_of(batch.documents);
    const int64_t length = batch.tokens.size(1);
    for (int64_t row = 0; row < batch.tokens.size(0); ++row) {
      std::map<int64_t, Example> of_row;
      for (auto i = static_cast<size_t>(row * length); i < static_cast<size_t>((row + 1) * length);
           ++i) {
        auto& [inputs, wanted] = of_row[documents[i]];
        ASSERT_EQ(positions[i], static_cast<int64_t>(inputs.size()));
        inputs.push_back(tokens[i]);
        wanted.push_back(targets[i]);
      }
      for (const auto& [document, example] : of_row) {
        if (std::ranges::count(example.second, kNone) != std::ssize(example.second))
          ++examples[example];
      }
    }
  }
  static std::string error_of(const DataConfig& config, const BatchPlan& plan) {
    return test::error_of([&] { (void)DataLoader(config, plan).info(); });
  }

  Session session_;
};

TEST_F(FineTuningRowsTest, EachExampleIsOnceInAnEpochAndWhole) {
  std::mt19937 random(std::random_device{}());
  constexpr size_t kLength = 23;
  std::vector<std::pair<std::string, std::string>> pairs;
  std::map<Example, int> expected;
  for (int i = 0; i < 60; ++i) {
    pairs.emplace_back(std::string(random() % 30, static_cast<char>('a' + random() % 3)),
                       std::string(random() % 12, static_cast<char>('x' + random() % 3)));
    const Example example = example_of(pairs[static_cast<size_t>(i)].first,
                                       pairs[static_cast<size_t>(i)].second, kLength);
    if (std::ranges::count(example.second, kNone) < std::ssize(example.second)) ++expected[example];
  }
  const std::string path = put_pairs(pairs);
  DataLoader loader(config(path), plan(kLength));
  const int64_t rows = loader.info().windows;
  std::map<Example, int> epoch, next;
  for (int64_t i = 0; i < rows; ++i) take_apart(loader.next(), epoch);
  for (int64_t i = 0; i < rows; ++i) take_apart(loader.next(), next);
  EXPECT_EQ(epoch, expected);
  EXPECT_EQ(next, expected);

  BatchPlan whole = plan(kLength, 4);
  whole.evaluation = true;
  DataLoader once(config(path), whole);
  std::map<Example, int> evaluated;
  EXPECT_EQ(once.info().batches, (rows + 3) / 4);
  for (int64_t i = 0; i < once.info().batches; ++i) take_apart(once.next(), evaluated);
  EXPECT_EQ(evaluated, expected);
}

TEST_F(FineTuningRowsTest, RowsAreThoseOfTheRunOnAnyRanks) {
  std::mt19937 random(11);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < 40; ++i)
    pairs.emplace_back(std::to_string(i), std::string(1 + random() % 9, 'z'));
  const std::string path = put_pairs(pairs);
  DataLoader straight(config(path), plan(16));
  for (const int64_t ranks : {2, 4}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      BatchPlan share = plan(16, 3 * ranks);
      share.first_row = 3 * rank;
      share.rows = 3;
      DataLoader loader(config(path), share);
      for (const int64_t first : {0, 24, 12}) {
        const Batch batch = loader.at(first);
        for (int64_t row = 0; row < 3; ++row) {
          const Batch one = straight.at(first + share.first_row + row);
          for (const auto& [all, own] : {std::pair(&batch.tokens, &one.tokens),
                                         {&batch.targets, &one.targets},
                                         {&batch.positions, &one.positions},
                                         {&batch.documents, &one.documents}}) {
            const Ids values = ids_of(*all);
            EXPECT_EQ(Ids(values.begin() + row * 16, values.begin() + (row + 1) * 16),
                      ids_of(*own));
          }
        }
      }
    }
  }
}

TEST_F(FineTuningRowsTest, RowsHoldTargetsOfAnswersAlone) {
  DataConfig c = config(put("m.jsonl", R"({"messages": [{"role": "user", "content": "ab"},
    {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]})"
                                       "\n\n"),
                        "messages");
  EXPECT_NE(error_of(c, plan(8)).find("line 1: not JSON: wrong at byte "), std::string::npos)
      << "a line is a line";
  c.path = put("m.jsonl", R"({"messages": [{"role": "user", "content": "ab"}, )"
                          R"({"role": "assistant", "content": "c"}, )"
                          R"({"role": "user", "content": "d"}]})"
                          "\n \n");
  DataLoader loader(c, plan(8));
  const Batch b = loader.next();
  EXPECT_EQ(ids_of(b.tokens), (Ids{256, 'a', 'b', 'c', 257, 0, 0, 0}));
  EXPECT_EQ(ids_of(b.targets), (Ids{kNone, kNone, 'c', 257, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(ids_of(b.positions), (Ids{0, 1, 2, 3, 4, 0, 1, 2}));
  EXPECT_EQ(ids_of(b.documents), (Ids{0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(b.padding.values(), (std::vector<double>{0, 0, 0, 0, 0, 1, 1, 1}));
  DataLoader full(c, plan(5));
  EXPECT_FALSE(full.next().padding.defined());
}

// What a line says is written, refused or counted.
TEST_F(FineTuningRowsTest, MembersOfLinesAreRefusedOrCounted) {
  const auto lines = [&](const std::string& more) {
    return config(put("m.jsonl", R"({"prompt": "a", "completion": "b", )" + more + "}\n"));
  };
  EXPECT_EQ(error_of(lines(R"("tools": [{"type": "function"}])"), plan(8)),
            concat("[data] ", folder_,
                   "/m.jsonl, line 1: has 'tools', which the chat template plain does not write, "
                   "nor any other here; write what it says into the messages, or leave it out"));
  EXPECT_NE(error_of(lines(R"("rejected": "c")"), plan(8)).find("has 'rejected'"),
            std::string::npos);
  DataLoader none(lines(R"("tools": [], "system": null)"), plan(8));
  EXPECT_EQ(none.info().details, "fine-tuning: 2 targets, 37 % of the rows filled");
  DataLoader some(lines(R"("id": 7, "a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "z": 1)"), plan(8));
  EXPECT_EQ(some.info().details,
            "fine-tuning: 2 targets, 37 % of the rows filled; members of lines passed over: a (1), "
            "b (1), c (1), d (1), e (1), id (1), ...");
}

TEST_F(FineTuningRowsTest, LongExamplesAreCutLeftOutOrRefusedAndCounted) {
  DataConfig c = config(put_pairs({{"abcdef", "g"}, {"abcd", "efgh"}, {"a", "b"}}));
  DataLoader cut(c, plan(6));
  EXPECT_EQ(cut.info().documents, 2);
  EXPECT_EQ(cut.info().details,
            "fine-tuning: 4 targets, 75 % of the rows filled, 2 examples cut at the end of a row, "
            "1 example without a target left out");
  c.long_examples = "drop";
  DataLoader drop(c, plan(6));
  EXPECT_EQ(drop.info().details,
            "fine-tuning: 2 targets, 50 % of the rows filled, 2 examples longer than a row left "
            "out");
  EXPECT_EQ(error_of(c, plan(1)),
            concat("[dataloader.path] ", c.path,
                   " holds no example to learn from: 3 lines, of which 0 have no target and 3 are "
                   "too long for seq_len 1"));
  c.long_examples = "refuse";
  EXPECT_EQ(error_of(c, plan(6)),
            concat("[data] ", c.path,
                   ", line 1 is 9 tokens, but a row of seq_len 6 has room for 7; give a larger "
                   "seq_len, or --dataloader.long_examples cut or drop"));
}

TEST_F(FineTuningRowsTest, FaultsAreFoundBeforeTraining) {
  const std::string pairs = put_pairs({{"a", "b"}});
  DataConfig c = config(pairs);
  c.packing = "concat";
  EXPECT_EQ(error_of(c, plan(4)),
            "[--dataloader.packing] concat is given, but examples of --dataloader.format "
            "prompt_completion never see each other; leave it out");
  c = config(put("a.txt", "text"));
  EXPECT_EQ(error_of(c, plan(4)),
            concat("[dataloader.path] ", c.path,
                   " is no .jsonl, which --dataloader.format prompt_completion needs"));
  c = config(pairs);
  c.chat_template = "chatml";
  EXPECT_NE(error_of(c, plan(4)).find("chatml writes the mark <|im_start|>, which is no special"),
            std::string::npos);
  c = config(put("b.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"prompt\": 1}\n{"));
  EXPECT_EQ(error_of(c, plan(4)),
            concat("[data] ", c.path, ", line 3: 'prompt' is a number, expected a string"));
  c = config(put("c.jsonl", R"({"messages": [{"role": "tool", "content": "a"}]})"), "messages");
  EXPECT_EQ(error_of(c, plan(4)),
            concat("[data] ", c.path,
                   ", line 1: [chat_template] plain has no form for the role tool; give another "
                   "--dataloader.chat_template"));
  c = config(put("d.jsonl", "{\"prompt\": \"\xE9\", \"completion\": \"b\"}"));
  EXPECT_NE(error_of(c, plan(4)).find("line 1, byte 12 of the file: 0xE9 is not UTF-8"),
            std::string::npos);
  c = config(put("e.jsonl", ""));
  EXPECT_NE(error_of(c, plan(4)).find("holds no example to learn from: 0 lines"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::train

// SPDX-License-Identifier: Apache-2.0
// The ids of special tokens that the files of a folder name: read, used, and written as they came.
#include "tessera/train/exchange/special_tokens.h"

#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/exchange/gguf_tokenizer.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

using Ids = std::vector<int64_t>;

std::shared_ptr<const Tokenizer> tokenizer() {
  return make_tokenizer(
      {{"tokenizer.json",
        R"({"model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1, "</s>": 2},
                              "merges": []}, "added_tokens":
                              [{"id": 1, "content": "<s>", "special": true},
                               {"id": 2, "content": "</s>", "special": true}]})"},
       {"tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})"}});
}

class SpecialTokens : public test::FolderTest {
 protected:
  [[nodiscard]] SpecialTokensConfig said(const std::string& config,
                                         const std::string& generation) const {
    std::filesystem::remove_all(folder_);
    if (!config.empty()) (void)put("config.json", config);
    if (!generation.empty()) (void)put("generation_config.json", generation);
    return read_special_tokens(folder_);
  }
};

TEST_F(SpecialTokens, AreReadAsTheyAreWritten) {
  const SpecialTokensConfig all =
      said(R"({"model_type": "x", "bos_token_id": null, "eos_token_id": [7, 2]})",
           R"({"eos_token_id": 9, "pad_token_id": -1})");
  EXPECT_EQ(all.config, (models::HfMarks{"null", "[7,2]", ""}));
  EXPECT_EQ(all.generation, (models::HfMarks{"", "9", "-1"}));
  EXPECT_EQ(end_ids(all, *tokenizer(), 5), (Ids{2, 9, 7, 5}));
  EXPECT_EQ(end_ids(all, *tokenizer(), -1), (Ids{2, 9, 7}));
  // The text of a whole says it, or else the whole.
  EXPECT_EQ(said(R"({"model_type": "x", "bos_token_id": 1, "eos_token_id": 2,
                     "text_config": {"eos_token_id": [3]}})",
                 "")
                .config,
            (models::HfMarks{"1", "[3]", ""}));
  EXPECT_EQ(said(R"({"eos_token_id": 2})", ""), SpecialTokensConfig());  // a run's
  EXPECT_EQ(said("", ""), SpecialTokensConfig());
  TESSERA_EXPECT_HOLDS(
      test::error_of<DataError>([&] { (void)said("", R"({"eos_token_id": "</s>"})"); }),
      "eos_token_id is \"</s>\", expected an id or a list of ids");
}

TEST_F(SpecialTokens, GoOutAsTheyCameIn) {
  const auto marks = tokenizer();
  const SpecialTokensConfig all =
      said(R"({"model_type": "x", "eos_token_id": [7, 9]})", R"({"eos_token_id": 9})");
  const SpecialTokensConfig out = special_tokens_to_write(all, marks.get(), -1, true);
  EXPECT_EQ(out.config, (models::HfMarks{"1", "[7,9]", ""}));
  EXPECT_EQ(out.generation, all.generation);
  // The end of answers is added to both, once.
  for (const int64_t end : {5, 9}) {
    const SpecialTokensConfig more = special_tokens_to_write(all, marks.get(), end, true);
    EXPECT_EQ(more.config.end, end == 5 ? "[7,9,5]" : "[7,9]");
    EXPECT_EQ(more.generation.end, end == 5 ? "[9,5]" : "9");
  }
  // The tokenizer's where nothing was said; a file that is not there says the same.
  const SpecialTokensConfig own = special_tokens_to_write({}, marks.get(), 0, false);
  EXPECT_EQ(own.config, (models::HfMarks{"1", "[2,0]", ""}));
  EXPECT_EQ(own.generation, own.config);
  // One that is there and says nothing of them stays so.
  EXPECT_EQ(special_tokens_to_write({}, marks.get(), -1, true).generation, models::HfMarks());
  const ByteTokenizer bytes;
  EXPECT_EQ(special_tokens_to_write({}, &bytes, 257, false), SpecialTokensConfig());
}

TEST_F(SpecialTokens, HaveThreePlacesThatEndATextInGguf) {
  const auto marks = tokenizer();
  const SpecialTokensConfig all =
      said(R"({"model_type": "x", "eos_token_id": [2, 7], "pad_token_id": 11})",
           R"({"eos_token_id": [8, 9]})");
  const GgufMarks chat = gguf_marks(all, *marks, 9);
  EXPECT_EQ((Ids{chat.begin, chat.pad, chat.end, chat.end_of_turn, chat.end_of_message}),
            (Ids{1, 11, 2, 9, 8}));
  EXPECT_EQ(chat.left_out, 1);
  const GgufMarks plain = gguf_marks({}, *marks, -1);
  EXPECT_EQ((Ids{plain.begin, plain.pad, plain.end, plain.end_of_turn, plain.end_of_message}),
            (Ids{1, -1, 2, -1, -1}));
  EXPECT_EQ(plain.left_out, 0);
}

TEST_F(SpecialTokens, FieldsThatAreNoIdsAreNamed) {
  SpecialTokensConfig all;
  all.config.end = "</s>";
  all.generation.pad = "[1,";
  const std::vector<std::string> faults = all.conflicts();
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0],
            "[--special_tokens.eos] </s>: expected an id, a list of ids such as [2, 5], or null");
  EXPECT_TRUE(faults[1].starts_with("[--special_tokens.generation_pad] [1,"));
}

}  // namespace
}  // namespace tessera::train

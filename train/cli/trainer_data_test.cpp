// SPDX-License-Identifier: Apache-2.0
// Data through the whole trainer: packed documents give one loss on any number of ranks, and what
// is wrong with data ends a run before it writes.
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/process.h"
#include "tessera/train/cli/cli.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class TrainerDataTest : public test::FolderTest {
 protected:
  TrainerDataTest() {
    std::string lines;
    for (int i = 0; i < 300; ++i) {
      lines += "{\"body\": \"";
      for (int n = 0; n < i % 7; ++n) lines += "a document of words, ";
      lines += "\"}\n";
    }
    io::write_file_atomically(folder_ + "/text.jsonl", lines);
  }
  int run(const std::string& dump, const Words& more) {
    Words words{"train",
                "--dataloader.path=" + folder_ + "/text.jsonl",
                "--dump_folder=" + folder_ + "/" + dump,
                "--model.dim=16",
                "--model.n_layers=1",
                "--model.n_heads=2",
                "--model.n_kv_heads=1",
                "--model.ffn_dim=32",
                "--model.vocab_size=258",
                "--training.seq_len=32",
                "--training.steps=3",
                "--sample.tokens=0",
                "--threads=1"};
    words = test::joined(words, more);
    out_.str("");
    err_.str("");
    return run_cli(words, out_, err_);
  }
  [[nodiscard]] std::vector<double> losses(const std::string& dump) const {
    std::vector<double> all;
    std::ifstream lines(folder_ + "/" + dump + "/metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("loss")) all.push_back(record.at("loss"));  // not of a validation
    }
    return all;
  }

  std::ostringstream out_, err_;
};

TEST_F(TrainerDataTest, PackedDocumentsGiveOneLossOnAnyWorld) {
  const std::string field = "--dataloader.text_field=body";
  ASSERT_EQ(run("one", {field, "--training.local_batch_size=4", "--ranks=1"}), 0) << err_.str();
  ASSERT_EQ(run("two", {field, "--training.local_batch_size=2", "--ranks=2"}), 0) << err_.str();
  ASSERT_EQ(run("joined", {field, "--training.local_batch_size=4", "--ranks=1",
                           "--dataloader.packing=concat"}),
            0)
      << err_.str();
  const auto one = losses("one"), two = losses("two"), joined = losses("joined");
  ASSERT_EQ(one.size(), 3u);
  ASSERT_EQ(two.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(one[i], two[i], 5e-6);
  EXPECT_GT(std::abs(one[0] - joined[0]), 1e-4) << "documents do not see each other";
}

// A mixture of text and prepared data, stopped after three steps and taken up by two ranks.
TEST_F(TrainerDataTest, AMixtureGoesOnOnAnotherMesh) {
  std::ostringstream out;
  const std::string text = folder_ + "/text.jsonl", tokens = folder_ + "/tokens";
  ASSERT_EQ(run_cli(Words{"data", "prepare", "--out", tokens, "--text_field", "body",
                          "--shard_tokens", "3000", text},
                    out, err_),
            0)
      << err_.str();
  EXPECT_NE(out.str().find("tokens, 257 documents, "), std::string::npos) << out.str();
  out.str("");
  ASSERT_EQ(run_cli(Words{"data", "verify", tokens}, out, err_), 0);
  EXPECT_NE(out.str().find(" is whole: "), std::string::npos) << out.str();

  const auto mixed = [&](const std::string& dump, const Words& more) {
    Words words{"--dataloader.path=",
                concat("--dataloader.mixture=", text, " weight=0.75,", tokens, " weight=0.25"),
                "--dataloader.text_field=body",
                "--training.global_batch_size=4",
                "--lr_scheduler.total_steps=6",
                "--checkpoint.enable",
                "--checkpoint.last_save_model_only=false",
                "--validation.enable",
                "--validation.freq=6",
                "--validation.dataset_path=" + tokens};
    return run(dump, test::joined(words, more));
  };
  const Words one{"--ranks=1", "--training.local_batch_size=4"};
  const Words two{"--ranks=2", "--training.local_batch_size=1", "--training.steps=6"};
  Words straight = one;
  straight.emplace_back("--training.steps=6");
  ASSERT_EQ(mixed("straight", straight), 0) << err_.str();
  EXPECT_NE(out_.str().find("of 32, 75 % of the rows"), std::string::npos) << out_.str();
  EXPECT_NE(out_.str().find("of 32, 25 % of the rows"), std::string::npos) << out_.str();
  ASSERT_EQ(mixed("parts", one), 0) << err_.str();
  ASSERT_EQ(mixed("parts", two), 0) << err_.str();
  EXPECT_EQ(out_.str().find("warning: the data"), std::string::npos) << out_.str();
  const auto a = losses("straight"), b = losses("parts");
  ASSERT_EQ(a.size(), 6u);
  ASSERT_EQ(b.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(a[i], b[i], 5e-6) << "step " << i + 1;
  // Other data is known again, in whichever part it is.
  (void)put("text.jsonl", io::read_file(text) + "{\"body\": \"more\"}\n");
  ASSERT_EQ(mixed("parts", two), 0) << err_.str();
  EXPECT_NE(out_.str().find("mixture[0]/text.jsonl has "), std::string::npos) << out_.str();
}

TEST_F(TrainerDataTest, BadDataStopsARunBeforeItWrites) {
  EXPECT_EQ(run("bad", {"--ranks=2", "--training.local_batch_size=1"}), 1);
  EXPECT_NE(err_.str().find("error: [data] " + folder_ +
                            "/text.jsonl, line 1: has no field 'text'; it has: body; choose one"),
            std::string::npos)
      << err_.str();
  EXPECT_FALSE(fs::exists(folder_ + "/bad/config.json"));
  EXPECT_FALSE(fs::exists(folder_ + "/bad/metrics.jsonl"));
}

}  // namespace
}  // namespace tessera::train

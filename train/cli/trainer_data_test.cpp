// SPDX-License-Identifier: Apache-2.0
// Data through the whole trainer: packed documents give one loss on any number of ranks, and what
// is wrong with data ends a run before it writes.
#include "tessera/nn/io/files.h"
#include "tessera/tests/support/folder_test.h"
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
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out;
    err_.str("");
    return run_cli(words, out, err_);
  }
  [[nodiscard]] std::vector<double> losses(const std::string& dump) const {
    std::vector<double> all;
    std::ifstream lines(folder_ + "/" + dump + "/metrics.jsonl");
    for (std::string line; std::getline(lines, line);)
      all.push_back(nlohmann::json::parse(line).at("loss"));
    return all;
  }

  std::ostringstream err_;
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

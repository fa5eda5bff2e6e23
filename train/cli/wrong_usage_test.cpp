// SPDX-License-Identifier: Apache-2.0
// Wrong command lines with their exact messages: tests/goldens/wrong_usage.json. `$TMP` stands for
// a folder of the test's own, which holds the files that a case lists.
#include "tessera/nn/io/files.h"
#include "tessera/train/cli/cli.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

std::string with(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

TEST(WrongUsage, IsRefusedWithTheseMessages) {
  const std::string folder = testing::TempDir() + "wrong_usage." + std::to_string(::getpid());
  const auto cases = nlohmann::json::parse(std::ifstream("tests/goldens/wrong_usage.json"));
  ASSERT_GE(cases.size(), 40u);
  for (const auto& golden : cases) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    const auto files = golden.value("files", nlohmann::json::object());
    for (const auto& [name, text] : files.items())
      io::write_file_atomically(folder + "/" + name, text.get<std::string>());
    std::vector<std::string> arguments;
    for (const auto& word : golden["arguments"])
      arguments.push_back(with(word.get<std::string>(), "$TMP", folder));
    std::ostringstream out, err;
    const int status = run_cli(arguments, out, err);
    EXPECT_EQ(status, golden["status"].get<int>()) << golden.dump();
    std::string message;
    for (const auto& line : golden["error"]) message += line.get<std::string>() + "\n";
    EXPECT_EQ(with(err.str(), folder, "$TMP"), message) << golden["arguments"].dump();
    EXPECT_TRUE(out.str().empty()) << out.str();
    EXPECT_FALSE(fs::exists(folder + "/run")) << "work was begun: " << golden["arguments"].dump();
  }
  fs::remove_all(folder);
}

// What can be seen from the words, and from which files there are, is 2; what is in a file is 1.
TEST(WrongUsage, OfWhatIsNotThereHasTheStatus2) {
  const std::string folder = testing::TempDir() + "not_there." + std::to_string(::getpid());
  fs::create_directories(folder + "/empty");
  io::write_file_atomically(folder + "/text.txt", "some text");
  io::write_file_atomically(folder + "/bad.jsonl", "{");
  using Words = std::vector<std::string>;
  const auto at = [&](const char* name) { return folder + "/" + name; };
  const std::string none = at("none"), text = at("text.txt"), there = at("empty");
  const auto train = [&](const Words& more) {
    Words words{"train", "--dump_folder", at("run"), "--training.seq_len", "4"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::pair<int, Words>> cases{
      {2, train({})},
      {2, train({"--dataloader.path", none})},
      {2, train({"--dataloader.mixture", text + "," + none})},
      {2, train({"--dataloader.path", text, "--hf_assets_path", none})},
      {2, train({"--dataloader.path", text, "--checkpoint.initial_load_path", none})},
      {2, {"train", "--model.initial_hf", none, "--dataloader.path", text}},
      {1, train({"--dataloader.path", there})},
      {1, train({"--dataloader.path", at("bad.jsonl")})},
      {2, {"eval", "--checkpoint", none}},
      {1, {"eval", "--checkpoint", there}},
      {2, {"generate", "--checkpoint", none}},
      {2, {"import-hf", none, "--out", at("new")}},
      {1, {"import-hf", there, "--out", at("new")}},
      {2, {"export-hf", "--checkpoint", none, "--out", at("new")}},
      {2, {"export-gguf", "--checkpoint", none, "--out", at("new")}},
      {2, {"export-gguf", "--checkpoint", there, "--out", text}},
      {2, {"tokenize", "--tokenizer", none, "--text", "a"}},
      {2, {"tokenize", "--file", none}},
      {2, {"tokenizer", "train", none, "--out", at("new")}},
      {2, {"data", "prepare", none, "--out", at("new")}},
      {2, {"data", "prepare", text, "--out", there}},
      {2, {"data", "verify", none}},
      {1, {"data", "verify", there}},
      {2, {"plot", none}},
      {1, {"plot", there}},
      {2, {"trace", none}},
      {1, {"trace", there}},
      {2, {"checkpoint", "ls", none}},
      {1, {"checkpoint", "ls", there}},
      {2, {"compare", none, none}},
      {2, {"schedule", "--csv", none}}};
  for (const auto& [status, words] : cases) {
    std::ostringstream out, err;
    EXPECT_EQ(run_cli(words, out, err), status) << testing::PrintToString(words) << err.str();
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::train

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

}  // namespace
}  // namespace tessera::train

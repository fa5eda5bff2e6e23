// SPDX-License-Identifier: Apache-2.0
// Every hostile file is refused: with the error that errors.txt has for it, of one line (one for
// each fault of a configuration), with the right exit status, and without a trace in the folder.
#include "tessera/nn/io/files.h"
#include "tessera/tests/hostile/cases.h"
#include "tessera/tests/support/expect_golden.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/train/cli/cli.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace tessera::hostile {
namespace {

namespace fs = std::filesystem;

std::string all_with(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

// Paths, sizes and bytes of what is in the folder.
std::string contents(const std::string& folder) {
  std::set<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string line = entry.path().string();
    if (entry.is_symlink()) line += " to " + fs::read_symlink(entry.path()).string();
    else if (entry.is_regular_file()) line += '\n' + io::read_file(entry.path().string());
    lines.insert(std::move(line));
  }
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

class Hostile : public test::FolderTest {
 protected:
  // One family alone: some errors list all families, and a new one would change the golden.
  Hostile() {
    std::erase_if(catalogue_.families, [](const auto& f) { return f.name != "llama3"; });
  }
  // The lines of the golden.
  std::string refusal(const Case& c) const {
    const std::string in = folder_ + "/in", out = folder_ + "/out";
    fs::remove_all(in);
    fs::remove_all(out);
    fs::create_directories(in);
    for (const auto& [name, bytes] : c.files) {
      const fs::path path = fs::path(in) / name;
      fs::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary) << bytes;  // no sync: there are hundreds
    }
    for (const auto& [name, to] : c.links) fs::create_symlink(to, in + "/" + name);
    const std::string before = contents(in);
    Words words;
    for (const std::string& word : c.words)
      words.push_back(all_with(all_with(word, "$IN", in), "$OUT", out));
    std::ostringstream printed, err;
    const int status = train::run_cli(words, printed, err, catalogue_);
    EXPECT_EQ(contents(in), before) << c.name << " left something";
    EXPECT_FALSE(fs::exists(out + ".partial")) << c.name;
    if (fs::exists(out)) {
      EXPECT_EQ(c.words[0], "train") << c.name << " left " << out;
      for (const auto& entry : fs::directory_iterator(out))
        EXPECT_EQ(entry.path().filename(), ".lock") << c.name;
    }
    const std::string error = all_with(err.str(), in, "$IN");
    EXPECT_TRUE(status == 1 || status == 2) << c.name << ": " << status;
    EXPECT_EQ(status == 1 ? std::ranges::count(error, '\n') : 1, 1) << c.name << ": " << error;
    EXPECT_TRUE(error.starts_with("error: [")) << c.name << " has no typed error: " << error;
    return concat(c.name, " (", status, ")\n", error, '\n');
  }

  train::Catalogue catalogue_;
};

TEST_F(Hostile, FilesAreRefusedWithTheseErrors) {
  std::string golden;
  std::set<std::string> names;
  for (const Cases& cases : {weight_cases(), index_cases(), model_config_cases(), tokenizer_cases(),
                             checkpoint_cases(), data_cases(), config_cases(), chat_cases()}) {
    for (const Case& c : cases) {
      EXPECT_TRUE(names.insert(c.name).second) << "two cases " << c.name;
      golden += refusal(c);
    }
  }
  EXPECT_GE(names.size(), 100u);
  test::expect_golden("tests/hostile/errors.txt", golden);
}

}  // namespace
}  // namespace tessera::hostile

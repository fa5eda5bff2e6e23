// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/data.h"

#include "tessera/autograd/autograd.h"
#include "tessera/train/files.h"
#include "tessera/train/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unistd.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class DataTest : public testing::Test {
 protected:
  DataTest() : folder_(testing::TempDir() + "data_test." + std::to_string(::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~DataTest() override { fs::remove_all(folder_); }
  std::string put(const std::string& name, const std::string& text) const {
    const fs::path path = fs::path(folder_) / name;
    fs::create_directories(path.parent_path());
    write_file_atomically(path.string(), text);
    return path.string();
  }
  template <class E> static std::string error_of(const std::string& path, int64_t seq_len = 4) {
    try {
      const TextData data(path, seq_len, 0);
    } catch (const E& error) {
      return error.what();
    }
    return "no error";
  }

  Session session_;
  std::string folder_;
};

std::string counting_text(size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += static_cast<char>('0' + i % 75);
  return text;
}

TEST_F(DataTest, TokenizerIsBytes) {
  const std::string text = "h\xC3\xA9\x00!";
  EXPECT_EQ(ByteTokenizer::encode("hA"), (std::vector<int64_t>{'h', 'A'}));
  EXPECT_EQ(ByteTokenizer::decode(ByteTokenizer::encode(text)), text);
  EXPECT_EQ(ByteTokenizer::decode(std::vector<int64_t>{256, 'a', 257, 2000, 'b'}), "ab");
}

TEST_F(DataTest, PrintableTextHasNoEscapes) {
  EXPECT_EQ(printable("a\tb\n\x1B[31m"), "a\tb\n.[31m");
  EXPECT_EQ(printable("h\xC3\xA9"), "h\xC3\xA9");
  EXPECT_EQ(printable("\xC3"), "\xEF\xBF\xBD");
  EXPECT_EQ(printable("\xED\xA0\x80").size(), 9u);
}

TEST_F(DataTest, TargetsAreTheNextTokens) {
  const TextData data(put("a.txt", counting_text(50)), 8, 1);
  const Batch b = data.batch(0, 3);
  EXPECT_EQ(b.tokens.shape(), (Shape{3, 8}));
  const auto tokens = b.tokens.values(), targets = b.targets.values();
  for (size_t row = 0; row < 3; ++row) {
    for (size_t t = 0; t + 1 < 8; ++t) EXPECT_EQ(tokens[row * 8 + t + 1], targets[row * 8 + t]);
  }
}

TEST_F(DataTest, AFolderIsItsTextFilesInOrder) {
  put("b.txt", "bb");
  put("a/x.cpp", "a");
  put("a/image.png", "no");
  put(".hidden/x.txt", "no");
  put("build/x.txt", "no");
  put("empty.md", "");
  const auto files = text_files(folder_);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_TRUE(files[0].ends_with("a/x.cpp"));
  EXPECT_TRUE(files[1].ends_with("b.txt"));
  const TextData data(folder_, 6, 0);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.tokens(), 7);
  // One window: the begin mark, a, the end mark, the begin mark, b, b; the end mark follows.
  EXPECT_EQ(data.batch(0, 1).tokens.values(), (std::vector<double>{256, 'a', 257, 256, 'b', 'b'}));
  EXPECT_EQ(data.batch(0, 1).targets.values().back(), 257);
}

TEST_F(DataTest, OrderIsAFunctionOfSeedAndStep) {
  const std::string path = put("a.txt", counting_text(999));
  const TextData a(path, 4, 7), b(path, 4, 7), c(path, 4, 8);
  EXPECT_EQ(a.batch(5, 3).tokens.values(), b.batch(5, 3).tokens.values());
  // Rows do not depend on how many a step has.
  const auto wide = a.batch(1, 4).tokens.values(), narrow = a.batch(2, 2).tokens.values();
  EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), wide.begin()));
  EXPECT_NE(a.batch(0, 8).tokens.values(), c.batch(0, 8).tokens.values());
}

TEST_F(DataTest, AnEpochSeesEveryWindowOnce) {
  for (size_t size : {3u, 40u, 999u}) {
    const TextData data(put("a.txt", counting_text(size)), 4, 7);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < data.windows(); ++i)
        seen.insert(data.window(epoch * data.windows() + i));
      EXPECT_EQ(static_cast<int64_t>(seen.size()), data.windows());
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), data.windows() - 1);
    }
  }
}

TEST_F(DataTest, EpochsAreInAnotherOrder) {
  const TextData data(put("a.txt", counting_text(999)), 4, 7);
  int64_t same = 0, in_order = 0;
  for (int64_t i = 0; i < data.windows(); ++i) {
    same += data.window(i) == data.window(i + data.windows());
    in_order += data.window(i) == i;
  }
  EXPECT_LT(same, 10);
  EXPECT_LT(in_order, 10);
}

TEST_F(DataTest, BadDataIsNamed) {
  EXPECT_NE(error_of<DataError>("").find("no data given"), std::string::npos);
  EXPECT_NE(error_of<DataError>(folder_ + "/none").find("does not exist"), std::string::npos);
  EXPECT_NE(error_of<DataError>(folder_).find("holds no text file"), std::string::npos);
  EXPECT_NE(error_of<DataError>(put("empty.txt", "")).find("is empty"), std::string::npos);
  const std::string text = error_of<DataError>(put("short.txt", "abc"), 5);
  EXPECT_NE(text.find("holds 5 tokens, too few for one window of training.seq_len 5"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace tessera::train

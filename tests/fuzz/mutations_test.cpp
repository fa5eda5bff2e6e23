// SPDX-License-Identifier: Apache-2.0
// Some thousand changed inputs through what the fuzzers call, the same on every run: each is taken
// or refused by a tessera Error, in little time and memory.
#include "tessera/nn/io/files.h"
#include "tessera/tests/fuzz/entries.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/mutator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <set>
#include <string>
#include <vector>

namespace {
// The largest block asked for: what an input can make a reader allocate shows here.
std::atomic<size_t> largest_block{0};

void* noted_or_null(size_t bytes) noexcept {
  size_t before = largest_block.load();
  while (before < bytes && !largest_block.compare_exchange_weak(before, bytes)) continue;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* noted(size_t bytes) {
  if (void* block = noted_or_null(bytes)) return block;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) { return noted(bytes); }
void* operator new[](size_t bytes) { return noted(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return noted_or_null(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return noted_or_null(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }

namespace tessera::fuzz {
namespace {

namespace fs = std::filesystem;
using Entry = bool (*)(std::string_view);

std::vector<std::string> corpus(const std::string& name) {
  std::set<std::string> paths;
  for (const auto& file : fs::directory_iterator("tests/fuzz/corpus/" + name)) {
    if (file.is_regular_file()) paths.insert(file.path().string());
  }
  std::vector<std::string> inputs;
  for (const std::string& path : paths) inputs.push_back(io::read_file(path));
  return inputs;
}

void expect_answers(const std::string& name, Entry entry) {
  std::vector<std::string> seeds = corpus(name);
  const std::vector<std::string> refused = corpus(name + "/refused");
  ASSERT_FALSE(seeds.empty() || refused.empty());
  for (const std::string& seed : seeds) EXPECT_TRUE(entry(seed)) << "a seed is refused: " << seed;
  for (const std::string& seed : refused) EXPECT_FALSE(entry(seed)) << "accepted: " << seed;
  seeds.insert(seeds.end(), refused.begin(), refused.end());
  constexpr size_t kMostBytes = size_t{8} << 20;
  constexpr std::chrono::seconds kLongest(5);
  const int wanted = test::long_form() ? 200'000 : 4'000;
  test::Mutator mutator(seeds);
  int accepted = 0;
  largest_block = 0;
  for (int i = 0; i < wanted; ++i) {
    const std::string input = mutator.next();
    const auto start = std::chrono::steady_clock::now();
    try {
      accepted += entry(input) ? 1 : 0;
    } catch (const std::exception& error) {
      FAIL() << "input " << i << ": " << error.what() << '\n' << input;
    }
    ASSERT_LT(std::chrono::steady_clock::now() - start, kLongest) << "input " << i;
    ASSERT_LT(largest_block.load(), kMostBytes) << "input " << i << '\n' << input;
  }
  EXPECT_GT(accepted, wanted / 100) << "the changes are too wild to say much";
  EXPECT_LT(accepted, wanted);
  std::cout << wanted << " changed inputs, " << accepted << " taken, largest block "
            << largest_block / 1024 << " KiB\n";
}

TEST(Fuzz, ChangedConfigurationsAreAnswered) { expect_answers("config", config_input); }
TEST(Fuzz, ChangedTokenizersAreAnswered) { expect_answers("tokenizer", tokenizer_input); }
TEST(Fuzz, ChangedModelsOfHuggingFaceAreAnswered) {
  expect_answers("hugging_face", hugging_face_input);
}
TEST(Fuzz, ChangedTokenDataIsAnswered) { expect_answers("data", data_input); }
TEST(Fuzz, ChangedChatsAreAnswered) { expect_answers("chat", chat_input); }
TEST(Fuzz, ChangedCheckpointsAreAnswered) { expect_answers("checkpoint", checkpoint_input); }

// Known to have broken readers of this kind: recursion as deep as the input is long.
TEST(Fuzz, DepthAndLengthAreAnswered) {
#ifdef __SANITIZE_THREAD__
  constexpr std::chrono::seconds kLimit(60);
#else
  constexpr std::chrono::seconds kLimit(5);
#endif
  const std::set<std::string> patterns{"a", "-", "9"};  // any number of them is a pattern,
  for (const char* piece : {"[", "{\"a\":", "(", "a", "-", "9", "[--"}) {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += piece;
    const std::string group = text + " lr=1";
    for (const std::string& input :
         {"{\"training\": " + text, "{\"optimizer\": {\"param_groups\": [\"" + group + "\"]}}",
          "{\"training\": {\"steps\": " + text, "--" + text + "\n1",
          "--optimizer.param_groups\n" + group, "--training.steps\n" + text}) {
      const auto start = std::chrono::steady_clock::now();
      // but as a word, what begins with '-' is another option.
      const bool pattern = patterns.contains(piece) && input.find(group) != input.npos &&
                           input.find("\n-") == input.npos;
      EXPECT_EQ(config_input(input), pattern) << piece;
      EXPECT_FALSE(checkpoint_input(input)) << piece;
      EXPECT_FALSE(tokenizer_input(input)) << piece;
      EXPECT_FALSE(hugging_face_input(input + std::string(1, '\0') + text)) << piece;
      EXPECT_FALSE(data_input(input)) << piece;
      EXPECT_FALSE(chat_input(input)) << piece;
      EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit) << piece;
    }
    std::string closed = "{\"training\": {\"steps\": ";
    for (int i = 0; i < 200'000; ++i) closed += '[';
    for (int i = 0; i < 200'000; ++i) closed += ']';
    EXPECT_FALSE(config_input(closed + "}}"));
  }
}

}  // namespace
}  // namespace tessera::fuzz

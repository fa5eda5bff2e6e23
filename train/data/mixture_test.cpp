// SPDX-License-Identifier: Apache-2.0
// Mixtures: exact shares after any number of rows, and the same rows on any world, from any row.
#include "tessera/train/data/mixture.h"

#include "tessera/autograd/autograd.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/train/data/data.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace tessera::train {
namespace {

using Ids = std::vector<int64_t>;

// Twice a period, so that the seam is in it.
void expect_exact_shares(const std::vector<int64_t>& weights) {
  const Mixture mixture(weights);
  const int64_t sum = std::reduce(weights.begin(), weights.end());
  ASSERT_EQ(mixture.period(), sum);
  std::vector<int64_t> given(weights.size());
  for (int64_t n = 0; n < 2 * sum; ++n) {
    const auto [source, index] = mixture.at(n);
    ASSERT_EQ(index, given[source]++) << "row " << n;
    for (size_t i = 0; i < weights.size(); ++i)
      ASSERT_LT(std::abs(given[i] * sum - (n + 1) * weights[i]), sum) << "source " << i;
  }
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(given[i], 2 * weights[i]);
}

TEST(Mixture, EachSourceIsWithinARowOfItsShare) {
  expect_exact_shares({1});
  expect_exact_shares({1, 1});
  expect_exact_shares({7, 3});
  expect_exact_shares({1, 999});
  expect_exact_shares({1, 1, 1, 1, 1, 1, 1});
  expect_exact_shares(std::vector<int64_t>(64, 3));
  std::mt19937 random(std::random_device{}());
  const int trials = test::long_form() ? 3000 : 60;
  for (int i = 0; i < trials; ++i) {
    std::vector<int64_t> weights(1 + random() % 9);
    for (int64_t& w : weights) w = 1 + static_cast<int64_t>(random() % (random() % 4 ? 20 : 700));
    SCOPED_TRACE(testing::PrintToString(weights));
    expect_exact_shares(weights);
  }
}

TEST(Mixture, RowsFarAwayAreFoundAtOnce) {
  const Mixture mixture(std::vector<int64_t>{7, 3});
  const int64_t far = (int64_t{1} << 50) * 10;
  for (int64_t n = 0; n < 10; ++n) {
    const auto [source, index] = mixture.at(n);
    const Mixture::Row there = mixture.at(far + n);
    EXPECT_EQ(there.source, source);
    EXPECT_EQ(there.index, index + (int64_t{1} << 50) * (source == 0 ? 7 : 3));
  }
}

TEST(Mixture, WeightsAreReadExactly) {
  const auto parse = [](const std::vector<std::string>& parts) {
    return parse_mixture(parts, "dataloader.mixture");
  };
  EXPECT_EQ(parse({"a b.txt weight=0.7", " c  weight=.3 "}),
            (std::vector<MixturePart>{{"a b.txt", 7, "dataloader.mixture[0]"},
                                      {"c", 3, "dataloader.mixture[1]"}}));
  EXPECT_EQ(parse({"a", "b weight=2."})[1].weight, 2);
  EXPECT_EQ(parse({"a weight=0.333333", "b weight=0.666667"})[0].weight, 333333);
  for (const char* weight : {"0", "-1", "1e3", "0x1", "nan", "", ".", "0.0000001", "12345678"}) {
    EXPECT_EQ(test::error_of<ConfigError>([&] { (void)parse({concat("a weight=", weight)}); }),
              concat("[--dataloader.mixture] 'a weight=", weight, "': the weight '", weight,
                     "' is not a number above 0 with at most 7 digits and 6 decimals; expected "
                     "'PATH weight=W'"));
  }
  EXPECT_EQ(test::error_of<ConfigError>([&] { (void)parse({"weight=1"}); }),
            "[--dataloader.mixture] 'weight=1' has no path; expected 'PATH weight=W'");
  EXPECT_EQ(test::error_of<ConfigError>([&] {
              (void)parse({"a weight=1", "b weight=1000000"});
            }),
            "[--dataloader.mixture] the weights come out even after 1000001 rows, expected at most "
            "1000000; round them");
  EXPECT_EQ(test::error_of<ConfigError>([&] { (void)parse(std::vector<std::string>(65, "a")); }),
            "[--dataloader.mixture] 65 data sets, expected at most 64; join some in a folder");
}

class MixtureDataTest : public test::FolderTest {
 protected:
  MixtureDataTest() {
    // Each data set has bytes of its own; the first is the one with documents.
    std::string lines;
    for (int i = 0; i < 40; ++i) lines += "{\"text\": \"" + std::string(3 + i % 5, 'a') + "\"}\n";
    config_.mixture = {put("a.jsonl", lines) + " weight=0.5",
                       put("b.txt", std::string(90, 'b')) + " weight=0.3",
                       put("c.txt", std::string(41, 'c')) + " weight=0.2"};
  }
  static BatchPlan plan(int64_t rows) {
    return {.seq_len = 4, .vocabulary = 300, .global_rows = rows, .rows = rows, .seed = 5};
  }
  static Ids ids_of(const Tensor& t) {
    const int64_t* data = t.data<int64_t>();
    return {data, data + t.numel()};
  }
  // Tokens, targets, positions and documents of a batch, row after row.
  static std::vector<Ids> rows_of(const Batch& batch) {
    std::vector<Ids> rows;
    for (int64_t r = 0; r < batch.tokens.size(0); ++r) {
      Ids& row = rows.emplace_back();
      for (const Tensor& part : {batch.tokens, batch.targets, batch.positions, batch.documents}) {
        const Ids all = ids_of(part);
        row.insert(row.end(), all.begin() + 4 * r, all.begin() + 4 * (r + 1));
      }
    }
    return rows;
  }

  DataConfig config_;
  Session session_;
};

TEST_F(MixtureDataTest, SourcesHaveTheirSharesEpochsAndOrders) {
  DataLoader loader(config_, plan(1));
  ASSERT_EQ(loader.sources().size(), 3u);
  EXPECT_EQ(loader.sources()[0].documents, 40);
  EXPECT_EQ(loader.sources()[1].share, 0.3);
  EXPECT_EQ(loader.info().tokens, loader.sources()[0].tokens + 92 + 43);
  EXPECT_EQ(loader.info().windows, loader.sources()[0].windows + 22 + 10);
  std::map<int64_t, int64_t> given;
  for (int64_t n = 1; n <= 300; ++n) {
    const Batch batch = loader.next();
    // Marks are above 255; a window of them alone is too short to be.
    const Ids tokens = ids_of(batch.tokens), positions = ids_of(batch.positions);
    const int64_t letter = *std::ranges::find_if(tokens, [](int64_t t) { return t < 256; });
    ++given[letter];
    EXPECT_TRUE(letter == 'a' || positions == (Ids{0, 1, 2, 3})) << "one document";
    EXPECT_LT(std::abs(given['a'] - 0.5 * static_cast<double>(n)), 1);
    EXPECT_LT(std::abs(given['b'] - 0.3 * static_cast<double>(n)), 1);
    EXPECT_LT(std::abs(given['c'] - 0.2 * static_cast<double>(n)), 1);
  }
  // Permutations of two sources are not the same, and source 0 has that of a run without a mixture.
  int same = 0;
  for (int64_t i = 0; i < 100; ++i)
    same += shuffled_window(i, 100, 5, 1) == shuffled_window(i, 100, 5);
  EXPECT_LT(same, 15);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 100; ++i) seen.insert(shuffled_window(i, 100, 5, 1));
  EXPECT_EQ(seen.size(), 100u);
}

// A run goes on at any row, on any number of ranks and with any batch, with the rows of the
// straight run.
TEST_F(MixtureDataTest, AnyWorldGoesOnWithTheNextRow) {
  DataLoader straight(config_, plan(1));
  std::vector<std::vector<Ids>> rows;
  for (int i = 0; i < 96; ++i) rows.push_back(rows_of(straight.next()));
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t first : {0, 7, 36}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        BatchPlan p = plan(2 * ranks);
        p.rows = 2;
        p.first_row = 2 * rank;
        DataLoader loader(config_, p);
        for (int64_t step = 0; step < 6; ++step) {
          const auto batch = rows_of(loader.at(first + step * p.global_rows));
          for (size_t r = 0; r < 2; ++r) {
            const auto row = static_cast<size_t>(first + step * p.global_rows + p.first_row) + r;
            ASSERT_EQ(batch[r], rows[row][0]) << ranks << " ranks, row " << row;
          }
        }
      }
    }
  }
}

TEST_F(MixtureDataTest, FaultsNameThePart) {
  const auto error = [&] {
    return test::error_of([&] { static_cast<void>(DataLoader(config_, plan(1)).info()); });
  };
  const std::string good = config_.mixture[2];
  config_.mixture[2] = folder_ + "/none weight=1";
  EXPECT_EQ(error(), "[dataloader.mixture[2]] " + folder_ + "/none does not exist");
  config_.mixture[2] = put("short.txt", "x");
  EXPECT_NE(error().find("[dataloader.mixture[2]] " + folder_ + "/short.txt holds 3 tokens"),
            std::string::npos)
      << error();
  config_.mixture[2] = good;
  config_.path = folder_ + "/b.txt";
  EXPECT_EQ(config_.conflicts(),
            std::vector<std::string>{"[--dataloader.mixture] and --dataloader.path are both given; "
                                     "give one of them"});
  BatchPlan p = plan(1);
  p.evaluation = true;
  EXPECT_EQ(test::error_of([&] { DataLoader(config_, p); }),
            "[dataloader.path] an evaluation reads one data set, not a mixture");
}

}  // namespace
}  // namespace tessera::train
